//! Checks the layers, the purity of the core, and the house rules that readers rely on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every source file of the core, the controller and the embedded cluster, with its path in `src`; the embedded cluster's
/// is below `sim`.
fn sources() -> Vec<(PathBuf, String)> {
    let embedded = sources_in("crates/setu-sim/src").into_iter().map(|(p, s)| (Path::new("sim").join(p), s));
    ["crates/setu-core/src", "src"].into_iter().flat_map(sources_in).chain(embedded).collect()
}

fn sources_in(folder: &str) -> Vec<(PathBuf, String)> {
    fn walk(dir: &Path, all: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, all);
            } else if path.extension().is_some_and(|e| e == "rs") {
                all.push((path.clone(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut all = Vec::new();
    walk(&root, &mut all);
    all.iter().map(|(p, s)| (p.strip_prefix(&root).unwrap().to_owned(), s.clone())).collect()
}

/// The part of a file before its unit tests.
fn without_tests(source: &str) -> &str {
    source.split("#[cfg(test)]").next().unwrap()
}

/// Layers. Each may use only itself and those before it; modules in one row may use each other.
const LAYERS: [&[&str]; 11] = [
    &["names", "digest", "words", "api", "error", "planted"],
    &["policy"],
    &["plan"],
    &["gang"],
    &["telemetry"],
    &["cluster"],
    &["effects"],
    &["controllers"],
    &["app"],
    &["sim"],
    &["cli"],
];

fn layer(path: &Path) -> Option<usize> {
    let first = path.iter().next()?.to_str()?.trim_end_matches(".rs").to_owned();
    LAYERS.iter().position(|names| names.contains(&first.as_str()))
}

#[test]
fn each_layer_uses_only_those_before_it() {
    for (path, source) in sources() {
        let Some(own) = layer(&path) else { continue };
        for (later, names) in LAYERS.iter().enumerate().skip(own + 1) {
            for name in *names {
                let source = without_tests(&source);
                let found = [format!("crate::{name}::"), format!("crate::{name};")]
                    .iter()
                    .any(|w| source.contains(w));
                assert!(!found, "{} (layer {own}) uses crate::{name} (layer {later})", path.display());
            }
        }
    }
}

/// Every package in the dependency tree of the packages that are selected, with its features, from `cargo tree`.
fn packages(edges: &str, selected: &[&str]) -> Vec<String> {
    let tree = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--edges",
            edges,
            "--prefix",
            "none",
            "--no-dedupe",
            "--format",
            "{p} {f}",
        ])
        .args(selected)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    String::from_utf8(tree.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The embedded cluster, virtual time, planted bugs and fail points are only for tests and the demo.
#[test]
fn the_image_and_the_releases_contain_no_test_features() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for file in ["Dockerfile", ".ci/image", ".github/workflows/release.yml"] {
        let text = fs::read_to_string(root.join(file)).unwrap().replace("\", \"", " ");
        let builds: Vec<&str> = text.lines().filter(|line| line.contains("--bin setu")).collect();
        assert!(!builds.is_empty(), "{file} builds nothing");
        for build in builds {
            // Without `-p`, cargo unifies the features that all workspace members request.
            let is_lean = build.contains("--no-default-features -p setu ") && !build.contains("--features");
            assert!(is_lean, "{file}: {build}");
        }
    }
    let features = |more: &[&str]| {
        let ours = |line: &String| {
            ["tokio ", "setu ", "setu-core ", "setu-sim "].iter().any(|p| line.starts_with(p))
        };
        let selected = [&["--package", "setu"], more].concat();
        packages("normal", &selected).into_iter().filter(ours).collect::<Vec<_>>().concat()
    };
    let [with, without] = [features(&[]), features(&["--no-default-features"])];
    assert!(["demo", "setu-sim", "test-util"].iter().all(|word| with.contains(word)), "{with}");
    for word in ["demo", "setu-sim", "test-util", "planted-bugs", "fail-points"] {
        assert!(!without.contains(word), "{without}");
    }
}

/// With other features Cargo would compile Setu and much of what it depends on once more: minutes.
#[test]
fn the_tests_on_the_real_control_plane_use_what_was_compiled_for_all_others() {
    let edges = "normal,dev,build";
    let others = ["--workspace", "--exclude", "setu-e2e"];
    let compiled: BTreeSet<String> = packages(edges, &others).into_iter().collect();
    let name = |line: &str| line.split(' ').next().unwrap().to_owned();
    let names: BTreeSet<String> = compiled.iter().map(|line| name(line)).collect();
    for package in packages(edges, &["--package", "setu-e2e"]) {
        let is_shared = compiled.contains(&package) || !names.contains(&name(&package));
        assert!(is_shared, "{package} has other features: add what differs to the dev-dependencies of both");
    }
}

/// The core has no crate that is impure, and only uses deterministic parts of the standard library.
#[test]
fn the_core_uses_no_client_runtime_log_clock_or_randomness() {
    let packages = packages("normal", &["--package", "setu-core"]);
    let crates: BTreeSet<&str> = packages.iter().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains("kube-core") && crates.len() > 30, "{crates:?}");
    for impure in ["kube", "kube-client", "tokio", "tracing", "log", "rand", "fastrand", "hyper", "chrono"] {
        assert!(!crates.contains(impure), "setu-core depends on {impure}");
    }
    for (path, source) in sources_in("crates/setu-core/src") {
        for word in ["::now()", "HashMap", "std::thread"] {
            assert!(!without_tests(&source).contains(word), "{} contains {word}", path.display());
        }
    }
}

#[test]
fn only_effects_and_the_lease_write_to_the_api_server() {
    for (path, source) in sources() {
        let writes =
            path.starts_with("effects") || path.starts_with("cluster/lease") || path.starts_with("sim");
        for params in ["PatchParams", "PostParams", "DeleteParams"] {
            let found = without_tests(&source).contains(params);
            assert!(writes || !found, "{} writes: it contains {params}", path.display());
        }
    }
}

#[test]
fn keys_are_spelled_out_only_in_names() {
    for (path, source) in sources() {
        if path != Path::new("names.rs") {
            let code = without_tests(&source);
            for key in ["setu.kueue.x-k8s.io/", "\"karpenter.sh/nodepool", "\"karpenter.sh/do-not-disrupt"] {
                let mut lines = code.lines().filter(|l| !l.trim_start().starts_with("//") && l.contains(key));
                // A version in a serde rename is not a key.
                assert!(lines.all(|l| l.contains("v1alpha1")), "{} spells out {key}", path.display());
            }
        }
    }
}

#[test]
fn the_code_uses_terms_of_the_glossary_instead_of_metaphors() {
    let metaphors = [
        "patience",
        "heed",
        "weed",
        "laggard",
        "strike",
        "struck",
        "untold",
        "glance",
        "gaze",
        "tombstone",
        "obituar",
        "graveyard",
    ];
    for (path, source) in sources() {
        for (number, line) in source.lines().enumerate() {
            let line = line.to_lowercase();
            let found = metaphors.iter().find(|word| line.contains(*word));
            assert!(found.is_none(), "{}:{}: {found:?}: {line}", path.display(), number + 1);
        }
    }
}

#[test]
fn every_file_has_a_module_doc_and_at_most_400_lines() {
    for (path, source) in sources() {
        assert!(source.starts_with("//! "), "{} does not open with what it owns", path.display());
        let lines = without_tests(&source).lines().count();
        assert!(lines <= 400, "{} has {lines} lines before its tests", path.display());
    }
}

/// Functions of a source in rustfmt's layout, each with its number of lines.
fn functions(source: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = without_tests(source).lines().collect();
    let function = |(start, line): (usize, &&str)| {
        let code = line.trim_start();
        let (head, rest) = code.split_once("fn ")?;
        let is_qualifier = |word| ["const", "async"].contains(&word) || word.starts_with("pub");
        let name = rest.split(['(', '<']).next().filter(|_| head.split_whitespace().all(is_qualifier))?;
        let indent = line.get(..line.len() - code.len())?;
        let ends = |line: &&str| {
            let rest = line.strip_prefix(indent).filter(|rest| !rest.starts_with(' '));
            rest.is_some_and(|rest| rest.ends_with(['}', ';']))
        };
        Some((name.to_owned(), lines.iter().skip(start).position(ends)? + 1))
    };
    lines.iter().enumerate().filter_map(function).collect()
}

/// Functions that are longer than 50 lines, each with the reason.
const LONG_FUNCTIONS: [(&str, &str); 0] = [];

#[test]
fn functions_have_at_most_50_lines() {
    let mut long = BTreeSet::new();
    for (path, source) in sources() {
        let all = functions(&source).into_iter().filter(|(_, lines)| *lines > 50);
        long.extend(all.map(|(name, _)| format!("{} {name}", path.display())));
    }
    let excepted = LONG_FUNCTIONS.iter().map(|(function, _)| (*function).to_owned()).collect();
    assert_eq!(long, excepted, "the left are too long, the right are excepted");
}

/// Names of types that stand for several things, each with the reason.
const SHARED_NAMES: [(&str, &str); 1] = [("Args", "clap's convention for the arguments of a command")];

#[test]
fn a_type_name_stands_for_one_thing() {
    let mut declared: BTreeMap<String, usize> = BTreeMap::new();
    for (_, source) in sources() {
        for line in without_tests(&source).lines().map(str::trim_start).filter(|l| l.starts_with("pub")) {
            let mut words = line.split_whitespace().skip(1);
            if words.next().is_some_and(|kind| ["struct", "enum", "trait"].contains(&kind)) {
                let name = words.next().and_then(|name| name.split(|c: char| !c.is_alphanumeric()).next());
                *declared.entry(name.unwrap_or_default().to_owned()).or_default() += 1;
            }
        }
    }
    let shared = declared.into_iter().filter(|(_, count)| *count > 1).map(|(name, _)| name);
    let excepted: BTreeSet<String> = SHARED_NAMES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(shared.collect::<BTreeSet<_>>(), excepted, "the left are shared, the right are excepted");
}

/// The files of a crate as modules: their code without comments and tests.
struct Modules(BTreeMap<String, String>);

impl Modules {
    fn of(folder: &str) -> Self {
        let module = |(path, source): (PathBuf, String)| {
            let path = path.with_extension("").to_str().unwrap().replace('/', "::");
            let code = without_tests(&source).lines().filter(|line| !line.trim_start().starts_with("//"));
            let name = path.strip_suffix("::mod").unwrap_or(&path).to_owned();
            (name, code.collect::<Vec<_>>().join("\n"))
        };
        Self(sources_in(folder).into_iter().map(module).collect())
    }

    /// The file with the item that `path` names in `module`; re-exports are followed.
    fn file_of(&self, module: &str, path: &str) -> Option<String> {
        let mut parts: Vec<&str> = path.split("::").filter(|part| !part.is_empty()).collect();
        let mut base: Vec<&str> = module.split("::").collect();
        match *parts.first()? {
            "crate" => base.clear(),
            "self" | "super" => {}
            child if self.0.contains_key(&format!("{module}::{child}")) => {}
            _ => return None,
        }
        let levels = parts.iter().take_while(|part| **part == "super").count();
        base.truncate(base.len().saturating_sub(levels));
        parts.retain(|part| !["crate", "self", "super"].contains(part));
        base.extend(parts);
        let known = (1..=base.len()).rev().find(|length| self.0.contains_key(&base[..*length].join("::")))?;
        let file = base[..known].join("::");
        let exported = base.get(known).and_then(|item| {
            let all = uses(&self.0[&file]).into_iter().filter(|(is_public, _)| *is_public);
            let path = all.map(|(_, path)| path).find(|path| path.ends_with(&format!("::{item}")))?;
            self.file_of(&file, &path)
        });
        Some(exported.unwrap_or(file))
    }

    /// The files that a module uses, without those that it is a part of.
    fn used_by(&self, module: &str) -> BTreeSet<String> {
        let code = &self.0[module];
        let inline = code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        let inline =
            inline.filter(|word| ["crate::", "super::", "self::"].iter().any(|p| word.starts_with(p)));
        // A word that ends with `::` is the start of a `use` tree.
        let inline = inline.filter(|word| !word.ends_with("::")).map(str::to_owned);
        let paths = uses(code).into_iter().map(|(_, path)| path).chain(inline);
        let files = paths.filter_map(|path| self.file_of(module, &path));
        files.filter(|file| file != module && !module.starts_with(&format!("{file}::"))).collect()
    }
}

/// Every path that is used by a declaration, and whether the declaration is public.
fn uses(code: &str) -> Vec<(bool, String)> {
    fn expand(prefix: &str, tree: &str, all: &mut Vec<String>) {
        let tree = tree.trim();
        let Some((head, rest)) = tree.split_once('{') else {
            let path = tree.split(" as ").next().unwrap();
            all.push(format!("{prefix}{}", if path == "self" { "" } else { path }));
            return;
        };
        let mut depth = 0;
        let is_comma = |c: char| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        };
        let inner = rest.rsplit_once('}').map_or("", |(inner, _)| inner);
        let parts = inner.split(is_comma).filter(|part| !part.trim().is_empty());
        parts.for_each(|part| expand(&format!("{prefix}{head}"), part, all));
    }
    let mut found = Vec::new();
    for statement in code.split(';') {
        let Some((start, tree)) = statement.rsplit_once("use ") else { continue };
        let visibility = start.rsplit('\n').next().unwrap().trim();
        if visibility.is_empty() || visibility.starts_with("pub") {
            let mut all = Vec::new();
            expand("", tree, &mut all);
            found.extend(all.into_iter().map(|path| (!visibility.is_empty(), path)));
        }
    }
    found
}

/// Files in circles, each with the reason.
const CIRCLES: [(&str, &str); 0] = [];

/// Whether what `file` uses leads back to it.
fn is_in_circle(file: &str, uses: &BTreeMap<String, BTreeSet<String>>) -> bool {
    let (mut reached, mut next) = (BTreeSet::new(), uses[file].clone());
    while let Some(used) = next.pop_first() {
        if reached.insert(used.clone()) {
            next.extend(uses[&used].iter().cloned());
        }
    }
    reached.contains(file)
}

#[test]
fn files_form_no_circle() {
    let mut circles = BTreeMap::new();
    for folder in ["crates/setu-core/src", "crates/setu-sim/src", "src"] {
        let modules = Modules::of(folder);
        let uses: BTreeMap<String, BTreeSet<String>> =
            modules.0.keys().map(|file| (file.clone(), modules.used_by(file))).collect();
        circles.extend(uses.clone().into_iter().filter(|(file, _)| is_in_circle(file, &uses)));
    }
    let excepted: BTreeSet<&str> = CIRCLES.iter().map(|(file, _)| *file).collect();
    let files: BTreeSet<&str> = circles.keys().map(String::as_str).collect();
    assert_eq!(files, excepted, "the left are in a circle, the right are excepted: {circles:#?}");
}

#[test]
fn folders_of_the_gang_form_no_circle() {
    let modules = Modules::of("crates/setu-core/src");
    let folder =
        |file: &str| file.strip_prefix("gang::").map(|rest| rest.split("::").next().unwrap().to_owned());
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in modules.0.keys() {
        let Some(own) = folder(file) else { continue };
        let others: Vec<String> = modules.used_by(file).iter().filter_map(|used| folder(used)).collect();
        uses.entry(own.clone()).or_default().extend(others.into_iter().filter(|other| *other != own));
    }
    let circle: Vec<_> = uses.keys().filter(|folder| is_in_circle(folder, &uses)).collect();
    assert_eq!(circle, Vec::<&String>::new(), "{uses:#?}");
}
