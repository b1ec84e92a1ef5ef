//! The image is built from a few files of the repository: they must form a valid cargo workspace.

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        for entry in fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            copy(&path, &to.join(path.file_name().unwrap()));
        }
    } else {
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    }
}

/// The commands of the Dockerfile that create stub sources, up to the first build.
fn stand_ins(dockerfile: &str) -> String {
    let from = dockerfile.find("RUN mkdir -p src").unwrap() + "RUN ".len();
    let made = &dockerfile[from..];
    made[..made.find("cargo auditable build").unwrap()].replace("\\\n", " ") + "true"
}

/// The cargo configuration that the Dockerfile writes when built on `host` for `architecture`.
fn configuration(host: &str, architecture: &str) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("linker-{host}-{architecture}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let from = dockerfile.find("RUN case").unwrap() + "RUN ".len();
    let script = dockerfile[from..].split("\n#").next().unwrap().replace("\\\n", " ");
    let here = |path: &str| folder.join(path).display().to_string();
    let script = script.replace("/usr/local/cargo/", &here("")).replace("/target)", &here("target)"));
    let script = script.replace("> /target", &format!("> {}", here("target")));
    let programs = format!("rustup() {{ true; }}; rustc() {{ echo 'host: {host}'; }}; {script}");
    let shell = Command::new("sh").args(["-ec", &programs]).env("TARGETARCH", architecture).output().unwrap();
    assert!(shell.status.success(), "{}", String::from_utf8_lossy(&shell.stderr));
    fs::read_to_string(folder.join("config.toml")).unwrap_or_default()
}

#[test]
fn the_linker_for_static_binaries_is_not_used_for_build_scripts() {
    for (host, architecture, linker) in [
        ("x86_64", "amd64", ""),
        ("aarch64", "arm64", ""),
        ("x86_64", "arm64", "[target.aarch64-unknown-linux-musl]\nlinker = \"rust-lld\"\n"),
        ("aarch64", "amd64", "[target.x86_64-unknown-linux-musl]\nlinker = \"rust-lld\"\n"),
    ] {
        let host = format!("{host}-unknown-linux-musl");
        assert_eq!(configuration(&host, architecture), linker, "{host} for {architecture}");
    }
}

#[test]
fn the_files_of_the_image_build_form_a_valid_cargo_workspace() {
    let context = Path::new(env!("CARGO_TARGET_TMPDIR")).join("image");
    let _ = fs::remove_dir_all(&context);
    let ignore = fs::read_to_string(root().join(".dockerignore")).unwrap();
    for admitted in ignore.lines().filter_map(|line| line.strip_prefix('!')) {
        copy(&root().join(admitted), &context.join(admitted));
    }
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    for copied in dockerfile.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let sources: Vec<&str> = copied.split_whitespace().filter(|word| !word.starts_with("--")).collect();
        let sources = &sources[..sources.len() - 1];
        // Files copied from another stage have absolute paths.
        let missing = sources.iter().find(|s| !s.starts_with('/') && !context.join(s).exists());
        assert_eq!(missing, None, "COPY {copied}: .dockerignore leaves it out");
    }
    let shell =
        Command::new("sh").args(["-ec", &stand_ins(&dockerfile)]).current_dir(&context).output().unwrap();
    assert!(shell.status.success(), "{}", String::from_utf8_lossy(&shell.stderr));
    let cargo = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--quiet"])
        .current_dir(&context)
        .output()
        .unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
}

#[test]
fn every_base_image_is_pinned_by_digest() {
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let bases: Vec<&str> = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("FROM "))
        .filter_map(|from| from.split(' ').find(|word| !word.starts_with("--")))
        .collect();
    let [bases @ .., "scratch"] = bases.as_slice() else { panic!("the image has a base: {bases:?}") };
    assert_eq!(bases.len(), 1, "{bases:?}");
    // The Dockerfile frontend is a base image too, unless it is BuildKit's own.
    let reader = dockerfile.lines().filter_map(|line| line.strip_prefix("# syntax="));
    for base in bases.iter().copied().chain(reader) {
        let digest = base.split_once("@sha256:").map_or("", |(_, digest)| digest);
        assert!(digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()), "{base}");
    }
}

#[test]
fn the_image_has_labels_and_a_release_sets_their_arguments() {
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let release = fs::read_to_string(root().join(".github/workflows/release.yml")).unwrap();
    let labels = dockerfile.split("\nLABEL ").nth(1).unwrap().replace("\\\n", "\n");
    let labels = labels.split("\nCOPY ").next().unwrap();
    for key in ["title", "description", "licenses", "source", "version", "revision"] {
        assert!(labels.contains(&format!("org.opencontainers.image.{key}=\"")), "no label {key} in {labels}");
    }
    let arguments: Vec<&str> = labels.split("${").skip(1).filter_map(|rest| rest.split('}').next()).collect();
    assert!(arguments.len() > 2, "{arguments:?}");
    for argument in arguments {
        assert!(dockerfile.contains(&format!("\nARG {argument}=")), "{argument} has no default");
        assert!(
            release.contains(&format!("\n          {argument}=${{{{ ")),
            "a release does not say {argument}"
        );
    }
}

/// The flags that .ci/image compiles with, next to this Dockerfile. The error is what it prints.
fn flags(name: &str, dockerfile: &str) -> Result<String, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    for file in [".ci/image", ".ci/shared.py"] {
        copy(&root().join(file), &folder.join(file));
    }
    fs::write(folder.join("Dockerfile"), dockerfile).unwrap();
    let script = "import runpy; print(runpy.run_path('.ci/image')['flags']())";
    let mut python = Command::new("python3");
    python.args(["-c", script]).env("PYTHONPATH", ".ci").env("CARGO_HOME", "/home/of/crates");
    let output = python.current_dir(folder).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[test]
fn the_image_is_compiled_with_the_flags_of_the_dockerfile_and_without_folder_names_of_the_machine() {
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let found = flags("flags", &dockerfile).unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("flags");
    for flag in [
        "-C target-feature=+crt-static".to_owned(),
        format!("--remap-path-prefix={}=.", folder.display()),
        "--remap-path-prefix=/home/of/crates=cargo".to_owned(),
    ] {
        assert!(found.contains(&flag), "{flag}: {found}");
    }
    let error = flags("no-flags", "FROM scratch\n").unwrap_err();
    assert!(error.contains("does not set RUSTFLAGS"), "{error}");
    for folder in ["/build", "/usr/local/cargo"] {
        let error = flags("no-remap", &dockerfile.replace(&format!("={folder}="), "=/other=")).unwrap_err();
        assert!(error.contains(&format!("do not remap {folder}:")), "{error}");
    }
}

/// The number of an architecture in an ELF header.
const MACHINES: [(&str, u16); 2] = [("amd64", 62), ("arm64", 183)];

/// A folder with fake static binaries for .ci/image, one binary that needs a loader, and certificates.
fn fakes(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let elf = |machine: u16, interpreter: bool| {
        let mut header = vec![0_u8; 120];
        header[..5].copy_from_slice(b"\x7fELF\x02");
        header[18..20].copy_from_slice(&machine.to_le_bytes());
        header[32] = 64;
        header[54] = 56;
        header[56] = 1;
        header[64] = if interpreter { 3 } else { 1 };
        header
    };
    for (architecture, machine) in MACHINES {
        fs::write(folder.join(architecture), elf(machine, false)).unwrap();
    }
    fs::write(folder.join("dynamic"), elf(62, true)).unwrap();
    fs::write(folder.join("authorities.pem"), "of nobody\n").unwrap();
    folder
}

/// Runs .ci/image in a folder of fakes, at a fixed time.
fn image(folder: &Path, arguments: &[&str]) -> Output {
    let mut python = Command::new("python3");
    python.arg(root().join(".ci/image")).args(["--certificates", "authorities.pem"]).args(arguments);
    python.env("SOURCE_DATE_EPOCH", "1800000000").env("REVISION", "0f").env_remove("VERSION");
    python.current_dir(folder).output().unwrap()
}

fn tar(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new("tar").args(arguments).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The path of a descriptor's blob. Checks its size and digest.
fn blob(folder: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().unwrap();
    let path = folder.join("blobs").join(digest.replace(':', "/"));
    let data = fs::read(&path).unwrap();
    assert_eq!(format!("sha256:{:x}", Sha256::digest(&data)), digest);
    assert_eq!(descriptor["size"], data.len());
    path
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// All files below a folder.
fn held(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for path in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else {
                all.insert(path.strip_prefix(folder).unwrap().to_owned(), fs::read(&path).unwrap());
            }
        }
    }
    all
}

#[test]
#[ignore = "needs Python"]
fn the_archive_is_reproducible_and_has_the_dockerfiles_files_for_both_architectures() {
    let folder = fakes("archive");
    let binaries = ["--binary", "arm64=arm64", "--binary", "amd64=amd64"];
    for out in ["first.tar", "second.tar"] {
        let made = image(&folder, &[&binaries[..], &["--out", out]].concat());
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let message = String::from_utf8(made.stdout).unwrap();
        assert!(message.contains("linux/amd64: ") && message.contains(" MB, sha256:"), "{message}");
    }
    assert!(fs::read(folder.join("first.tar")).unwrap() == fs::read(folder.join("second.tar")).unwrap());
    let layout = folder.join("layout");
    fs::create_dir(&layout).unwrap();
    tar(&layout, &["-xf", "../first.tar"]);
    assert_eq!(json(&layout.join("oci-layout"))["imageLayoutVersion"], "1.0.0");
    let top = &json(&layout.join("index.json"))["manifests"];
    assert_eq!(top.as_array().unwrap().len(), 1, "one name leads to every architecture: {top}");
    assert_eq!(top[0]["annotations"]["org.opencontainers.image.ref.name"], env!("CARGO_PKG_VERSION"));
    let manifests = json(&blob(&layout, &top[0]))["manifests"].take();
    assert_eq!(manifests.as_array().unwrap().len(), MACHINES.len());
    for (manifest, (architecture, _)) in manifests.as_array().unwrap().iter().zip(MACHINES) {
        assert_eq!(manifest["platform"], serde_json::json!({"os": "linux", "architecture": architecture}));
        let manifest = json(&blob(&layout, manifest));
        let config = json(&blob(&layout, &manifest["config"]));
        assert_eq!((&config["architecture"], &config["os"]), (&architecture.into(), &"linux".into()));
        assert_eq!(config["created"], "2027-01-15T08:00:00Z");
        let runs = &config["config"];
        assert_eq!(runs["User"], "65532:65532");
        assert_eq!(runs["Entrypoint"], serde_json::json!(["/usr/local/bin/setu"]));
        assert_eq!(runs["Cmd"], serde_json::json!(["run"]));
        assert_eq!(runs["Labels"]["org.opencontainers.image.version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(runs["Labels"]["org.opencontainers.image.revision"], "0f");
        assert!(runs["ExposedPorts"]["8080/tcp"].is_object(), "{runs}");
        let layer = blob(&layout, &manifest["layers"][0]);
        let listed = tar(&layout, &["-tvzf", layer.to_str().unwrap(), "--numeric-owner"]);
        let modes: Vec<(&str, &str, &str)> = listed
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .map(|words| (words[0], words[1], *words.last().unwrap()))
            .filter(|(mode, ..)| !mode.starts_with('d'))
            .collect();
        assert_eq!(
            modes,
            [
                ("-rw-r--r--", "0/0", "etc/group"),
                ("-rw-r--r--", "0/0", "etc/passwd"),
                ("-rw-r--r--", "0/0", "etc/ssl/certs/ca-certificates.crt"),
                ("-rwxr-xr-x", "0/0", "usr/local/bin/setu"),
            ]
        );
        let (unpacked, tree) =
            (folder.join(format!("{architecture}-layer")), folder.join(format!("{architecture}-tree")));
        fs::create_dir(&unpacked).unwrap();
        tar(&unpacked, &["-xzf", layer.to_str().unwrap()]);
        let binary = format!("{architecture}={architecture}");
        let made = image(&folder, &["--binary", &binary, "--tree", tree.to_str().unwrap()]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        assert!(held(&unpacked) == held(&tree), "the Dockerfile copies other files");
        assert!(
            held(&tree)[Path::new("etc/passwd")]
                .ends_with(b"nonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")
        );
    }
}

#[test]
#[ignore = "needs Python"]
fn a_binary_that_no_node_can_start_is_rejected() {
    let folder = fakes("refused");
    for (binary, words) in [
        ("arm64=amd64", "amd64 is no binary for arm64"),
        ("amd64=authorities.pem", "is no binary for amd64"),
        ("amd64=dynamic", "dynamic is not static"),
    ] {
        let refused = image(&folder, &["--binary", binary, "--out", "none.tar"]);
        let message = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && message.contains(words), "{binary}: {message}");
    }
    assert!(!folder.join("none.tar").exists());
}
