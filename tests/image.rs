//! The image is built from a few files of the repository: they have to be a workspace that cargo takes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;
use std::process::Command;

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

/// The commands of the Dockerfile that make stand-ins, up to the first build.
fn stand_ins(dockerfile: &str) -> String {
    let from = dockerfile.find("RUN mkdir -p src").unwrap() + "RUN ".len();
    let made = &dockerfile[from..];
    made[..made.find("cargo auditable build").unwrap()].replace("\\\n", " ") + "true"
}

/// What the Dockerfile writes into cargo's configuration where it is built on `host` for `architecture`.
fn configuration(host: &str, architecture: &str) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("linker-{host}-{architecture}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let from = dockerfile.find("RUN case").unwrap() + "RUN ".len();
    let script = dockerfile[from..].split("\nENV ").next().unwrap().replace("\\\n", " ");
    let here = |path: &str| folder.join(path).display().to_string();
    let script = script.replace("/usr/local/cargo/", &here("")).replace("/target)", &here("target)"));
    let script = script.replace("> /target", &format!("> {}", here("target")));
    let programs = format!("rustup() {{ true; }}; rustc() {{ echo 'host: {host}'; }}; {script}");
    let shell = Command::new("sh").args(["-ec", &programs]).env("TARGETARCH", architecture).output().unwrap();
    assert!(shell.status.success(), "{}", String::from_utf8_lossy(&shell.stderr));
    fs::read_to_string(folder.join("config.toml")).unwrap_or_default()
}

#[test]
fn the_linker_for_static_binaries_links_no_build_script() {
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
fn what_the_image_is_built_from_is_a_workspace_that_cargo_takes() {
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
        // What is copied from another stage is an absolute path.
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
fn every_base_image_is_named_by_its_digest() {
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let bases: Vec<&str> = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("FROM "))
        .filter_map(|from| from.split(' ').find(|word| !word.starts_with("--")))
        .collect();
    assert_eq!(bases.len(), 2, "{bases:?}");
    // Whoever reads the Dockerfile is a base as well, if another is asked for than BuildKit's own.
    let reader = dockerfile.lines().filter_map(|line| line.strip_prefix("# syntax="));
    for base in bases.into_iter().chain(reader) {
        let digest = base.split_once("@sha256:").map_or("", |(_, digest)| digest);
        assert!(digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()), "{base}");
    }
}

#[test]
fn the_image_says_what_it_is_and_a_release_fills_in_what_it_says() {
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
