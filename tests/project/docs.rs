//! The documents are correct: links resolve, commands parse and run, policies are valid, and the tests, reasons
//! and flags that they name exist.

#[path = "../e2e/tests/documents/typed.rs"]
mod typed;

use clap::CommandFactory as _;
use serde::Deserialize as _;
use serde_json::Value;
use setu::api::parameters::ProvisioningParametersSpec;
use setu::cli::Cli;
use setu::gang::FailureClass;
use setu::policy::PolicyFile;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use typed::{ELSEWHERE, FIRST_GANG, INSTALL, SECTIONS, begins, is_elsewhere, lines, shown};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Every file below a folder with this extension, as paths relative to the repository root.
fn files(folder: &str, extension: &str) -> Vec<String> {
    let mut folders = vec![root().join(folder)];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                folders.extend((!["target", ".git", "node_modules"].contains(&name)).then_some(path));
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

fn documents() -> Vec<String> {
    let all = files(".", "md");
    assert!(all.len() > 15, "{all:?}");
    all
}

/// The fenced blocks with their language, and the text outside of them.
fn blocks(text: &str) -> (Vec<(String, String)>, String) {
    let (mut blocks, mut prose, mut open) = (Vec::new(), String::new(), None::<(String, String)>);
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(word), None) => open = Some((word.trim().to_owned(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some((_, body))) => body.extend([line, "\n"]),
            (None, None) => prose.extend([line, "\n"]),
        }
    }
    assert!(open.is_none(), "a fence is not closed: {open:?}");
    (blocks, prose)
}

/// Every text between `start` and `end`.
fn between<'t>(text: &'t str, start: &str, end: &str) -> Vec<&'t str> {
    let mut rest = text;
    std::iter::from_fn(|| {
        let (found, behind) = rest.split_once(start)?.1.split_once(end)?;
        rest = behind;
        Some(found)
    })
    .collect()
}

/// Anchors of a document's headings, as GitHub generates them.
fn anchors(text: &str) -> BTreeSet<String> {
    let (_, prose) = blocks(text);
    let headings = prose.lines().filter(|l| l.starts_with('#')).map(|l| l.trim_start_matches('#').trim());
    let kept = |c: &char| c.is_alphanumeric() || ['-', '_', ' '].contains(c);
    headings.map(|h| h.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
}

#[test]
fn every_link_leads_to_an_existing_file_and_heading() {
    let mut checked = 0;
    for document in documents() {
        let text = read(&document);
        let (_, prose) = blocks(&text);
        let attributes = ["src=\"", "srcset=\"", "href=\""];
        let mut links = between(&prose, "](", ")");
        links.extend(attributes.iter().flat_map(|attribute| between(&prose, attribute, "\"")));
        for link in links.into_iter().filter(|l| !l.contains("://")) {
            let (path, anchor) = link.split_once('#').map_or((link, None), |(p, a)| (p, Some(a)));
            let target = root().join(&document).parent().unwrap().join(path);
            let target = if path.is_empty() { root().join(&document) } else { target };
            assert!(target.exists(), "{document}: {link} leads nowhere");
            if let Some(anchor) = anchor {
                let known = anchors(&std::fs::read_to_string(&target).unwrap());
                assert!(known.contains(anchor), "{document}: {link} is none of {known:?}");
            }
            checked += 1;
        }
    }
    assert!(checked > 80, "{checked} links");
}

/// The words of a command line, as a shell splits it. A `#` starts a comment.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None::<char>);
    for c in line.chars() {
        match (c, quote) {
            (c, Some(q)) if c == q => quote = None,
            ('\'' | '"', None) => (quote, word) = (Some(c), Some(word.unwrap_or_default())),
            (' ', None) => words.extend(word.take()),
            ('#', None) if word.is_none() => break,
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// The command lines of a document's shell blocks.
fn commands(text: &str) -> Vec<Vec<String>> {
    let (blocks, _) = blocks(text);
    let mut all = Vec::new();
    for (kind, body) in blocks.into_iter().filter(|(kind, _)| ["sh", "console"].contains(&kind.as_str())) {
        let prompt = if kind == "console" { "$ " } else { "" };
        all.extend(body.replace("\\\n", " ").lines().filter_map(|l| Some(words(l.strip_prefix(prompt)?))));
    }
    all
}

/// The arguments of Setu in a command line, if it calls Setu.
fn of_setu(words: &[String]) -> Option<Vec<String>> {
    let at = |n: usize| words.get(n).map_or("", String::as_str);
    let rest = match (at(0), at(1)) {
        ("setu", _) => &words[1..],
        ("kubectl", "setu") => &words[2..],
        ("cargo", "run") if !words.contains(&"-p".to_owned()) => {
            &words[words.iter().position(|w| w == "--")? + 1..]
        }
        _ => return None,
    };
    Some(rest.split(|word| word == ">").next()?.to_vec())
}

fn parses(arguments: &[String]) -> Result<(), clap::Error> {
    let typed = std::iter::once("setu").chain(arguments.iter().map(String::as_str));
    Cli::command().try_get_matches_from(typed).map(drop)
}

#[test]
fn every_setu_command_in_the_documents_parses() {
    let mut parsed = 0;
    for document in documents() {
        for words in commands(&read(&document)) {
            if let Some(arguments) = of_setu(&words) {
                if let Err(error) = parses(&arguments) {
                    panic!("{document}: setu {}: {error}", arguments.join(" "));
                }
                parsed += 1;
            }
        }
    }
    assert!(parsed > 20, "{parsed} commands");
}

#[test]
fn every_command_in_the_documents_runs_on_the_real_control_plane_or_is_listed_as_an_exception() {
    let mut typed: Vec<String> = [INSTALL, FIRST_GANG].into_iter().chain(SECTIONS).flat_map(lines).collect();
    let top = ["README.md", "CONTRIBUTING.md", "charts/setu/README.md"].map(str::to_owned);
    let all: Vec<String> =
        files("docs", "md").into_iter().chain(top).flat_map(|file| shown(&read(&file))).collect();
    assert!(all.len() > 50, "{} lines", all.len());
    for line in all.iter().filter(|line| !is_elsewhere(line)) {
        let at = typed.iter().position(|t| t == line);
        typed.swap_remove(
            at.unwrap_or_else(|| panic!("nobody types {line}: name its section, or say why not")),
        );
    }
    for (start, why) in ELSEWHERE {
        let used = all.iter().any(|line| begins(line, start));
        assert!(used, "no document shows {start} ({why})");
    }
}

/// The first word of a text as it is typed, without its quoted parts.
fn unquoted(text: &str) -> String {
    let mut quote = None::<char>;
    let mut word = String::new();
    for c in text.chars() {
        match (c, quote) {
            (c, Some(q)) if c == q => quote = None,
            (_, Some(_)) => {}
            ('\'' | '"', None) => quote = Some(c),
            (c, None) if c.is_whitespace() || c == '`' => break,
            (c, None) => word.push(c),
        }
    }
    word
}

#[test]
fn every_list_for_helm_is_quoted_for_the_shell() {
    let mut lists = 0;
    for document in documents() {
        let text = read(&document);
        for flag in ["--set ", "--set="] {
            for set in text.split(flag).skip(1) {
                let word = unquoted(set);
                // bash expands a{b,c} to two words, and zsh treats a[0] as a pattern.
                assert!(!word.contains(['{', '[', '*']), "{document}: put quotes around {flag}{word}");
                let typed = set.split(['`', '\n']).next().unwrap_or_default();
                lists += usize::from(typed.contains('{'));
            }
        }
    }
    assert!(lists > 3, "{lists} lists");
}

#[test]
fn every_value_of_the_chart_has_a_comment() {
    let mut documented: Vec<usize> = Vec::new();
    let (mut values, mut comment) = (0, false);
    for line in read("charts/setu/values.yaml").lines().skip(1).filter(|line| !line.is_empty()) {
        let depth = line.len() - line.trim_start().len();
        if line.trim_start().starts_with('#') {
            comment |= line.contains("# -- ");
            continue;
        }
        // A comment on a value covers all values below it.
        documented.retain(|of| *of < depth);
        documented.extend(std::mem::take(&mut comment).then_some(depth));
        if !line.ends_with(':') {
            assert!(!documented.is_empty(), "charts/setu/values.yaml does not say what this does: {line}");
            values += 1;
        }
    }
    assert!(values > 70, "{values} values");
}

#[test]
fn every_part_of_the_chart_that_can_be_switched_is_documented() {
    let values: Value = serde_yaml::from_str(&read("charts/setu/values.yaml")).unwrap();
    let parts = values.as_object().unwrap().iter().filter(|(_, part)| part.get("enabled").is_some());
    let operations = read("docs/operations.md");
    let (_, section) = operations.split_once("\n## What the chart can switch on\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut switches = 0;
    for (part, value) in parts {
        let (named, way) = if value["enabled"].as_bool().unwrap() {
            (format!("`{part}`"), "off")
        } else {
            (format!("`--set {part}.enabled=true"), "on")
        };
        assert!(section.contains(&named), "docs/operations.md does not say how {part} is switched {way}");
        switches += 1;
    }
    assert!(switches > 10, "{switches} parts");
    // Each value named there exists in the chart.
    for named in between(section, "--set ", "=") {
        let found = named.split('.').try_fold(&values, |value, key| value.get(key));
        let free = named.ends_with(".labels.release");
        assert!(found.is_some() || free, "docs/operations.md: the chart has no value {named}");
    }
}

#[test]
fn commands_and_flags_named_in_prose_exist() {
    let setu = Cli::command();
    for document in documents() {
        let (_, prose) = blocks(&read(&document));
        for named in between(&prose, "`setu ", "`") {
            let words = words(named);
            let mut command = &setu;
            for word in words.iter().take_while(|w| w.chars().all(|c| c.is_ascii_lowercase())) {
                let Some(inner) = command.find_subcommand(word) else { break };
                command = inner;
            }
            let known = |w: &String| w == "…" || w == "--help" || command.get_name() != setu.get_name();
            assert!(words.first().is_none_or(known), "{document}: there is no `setu {named}`");
            for flag in words.iter().filter_map(|w| w.strip_prefix("--")).filter(|f| *f != "help") {
                let flag = flag.split('=').next();
                let found = command.get_arguments().any(|a| a.get_long() == flag);
                assert!(found, "{document}: `setu {named}` has no flag {flag:?}");
            }
        }
        for words in commands(&read(&document)) {
            if let ["just", recipe, ..] = words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                let there = read("justfile").lines().any(|l| l.starts_with(recipe) && l.contains(':'));
                assert!(there, "{document}: just has no recipe {recipe}");
            }
        }
    }
}

/// The first block of a document with an object of this kind.
fn block_with(text: &str, kind: &str) -> Option<String> {
    let (blocks, _) = blocks(text);
    blocks.into_iter().map(|(_, body)| body).find(|body| body.contains(&format!("\nkind: {kind}\n")))
}

/// The file name that a guide uses for its NodePool, queues and first Job, and passes to `setu plan`.
const FIRST: &str = "first.yaml";

#[test]
fn every_yaml_block_parses_and_every_policy_is_valid() {
    let (mut policies, mut parameters) = (0, 0);
    for document in documents() {
        let (blocks, _) = blocks(&read(&document));
        for (_, body) in blocks.into_iter().filter(|(kind, _)| kind == "yaml") {
            for value in serde_yaml::Deserializer::from_str(&body) {
                let value = Value::deserialize(value).unwrap_or_else(|e| panic!("{document}: {e}\n{body}"));
                if value["kind"] == "ProvisioningParameters" {
                    let spec = serde_json::from_value::<ProvisioningParametersSpec>(value["spec"].clone());
                    spec.unwrap_or_else(|e| panic!("{document}: {e}\n{body}"));
                    parameters += 1;
                } else if value["kind"] == "Policy" {
                    PolicyFile::parse(&body).unwrap_or_else(|e| panic!("{document}: {e:?}\n{body}"));
                    // Users who copy it have no such condition on their Nodes, and all their gangs would wait for it.
                    let conditions = &value["defaults"]["readiness"]["nodeConditions"];
                    assert!(conditions.is_null(), "{document}: every gang waits for {conditions}");
                    policies += 1;
                }
            }
        }
    }
    assert!(policies >= 5 && parameters >= 1, "{policies} policies, {parameters} parameters");
}

/// A folder with the files that a document's commands need. It is deleted when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether a command needs no cluster.
fn is_offline(arguments: &[String]) -> bool {
    match arguments[0].as_str() {
        "plan" => arguments.iter().any(|a| a.contains("nodepools") || a == FIRST),
        // It runs until Ctrl-C; tests/commands/cli.rs tests it.
        "demo" if arguments.iter().any(|a| a == "--serve") => false,
        command => ["demo", "policy", "statechart", "crds", "completions"].contains(&command),
    }
}

#[test]
fn commands_that_need_no_cluster_print_what_the_documents_show() {
    let folder = Folder(std::env::temp_dir().join(format!("setu-docs-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).unwrap();
    for part in ["examples", "charts"] {
        std::os::unix::fs::symlink(root().join(part), folder.0.join(part)).unwrap();
    }
    let (mut run, mut shown) = (BTreeSet::new(), 0);
    for document in documents() {
        let text = read(&document);
        std::fs::write(folder.0.join("policy.yaml"), block_with(&text, "Policy").unwrap_or_default())
            .unwrap();
        std::fs::write(folder.0.join(FIRST), block_with(&text, "NodePool").unwrap_or_default()).unwrap();
        for words in commands(&text) {
            let Some(mut arguments) = of_setu(&words).filter(|a| !a.is_empty() && is_offline(a)) else {
                continue;
            };
            if arguments[0] == "demo" && !arguments.iter().any(|a| a == "--speed") {
                arguments.extend(["--speed".to_owned(), "0".to_owned()]);
            }
            // Several documents show parts of the same plan, and each part is compared.
            if !run.insert(arguments.clone()) && arguments[0] != "plan" {
                continue;
            }
            let mut command = Command::new(env!("CARGO_BIN_EXE_setu"));
            let output = command.args(&arguments).current_dir(&folder.0).output().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.success(), "{document}: setu {}: {stderr}", arguments.join(" "));
            shown += is_what_is_shown(&document, &text, &words, &String::from_utf8(output.stdout).unwrap());
        }
    }
    assert!(run.len() > 7 && shown > 1, "{run:?}, {shown} outputs");
    assert!(run.iter().any(|arguments| arguments.iter().any(|a| a == FIRST)), "no guide plans its first Job");
}

#[test]
fn the_first_job_of_every_guide_fits_the_guides_nodepool() {
    let folder = Folder(std::env::temp_dir().join(format!("setu-guides-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).unwrap();
    let first = block_with(&read("docs/eks.md"), "NodePool").unwrap();
    let (_, queues_and_job) = first.split_once("\n---\n").unwrap();
    for guide in ["aks", "gke"] {
        let text = read(&format!("docs/{guide}.md"));
        // The guide names what differs in the Job.
        let mut objects = queues_and_job.to_owned();
        for (field, of_eks) in [("requests", "cpu: 180, memory: 1800Gi"), ("limits", "nvidia.com/gpu: 8")] {
            assert!(objects.contains(&format!("{field}: {{{of_eks}}}")), "{objects}");
            if let [stated] = between(&text, &format!("`{field}: {{"), "}`")[..] {
                objects =
                    objects.replace(&format!("{field}: {{{of_eks}}}"), &format!("{field}: {{{stated}}}"));
            }
        }
        assert!(objects != queues_and_job, "docs/{guide}.md does not say what a pod may ask for");
        let pool = block_with(&text, "NodePool").unwrap();
        std::fs::write(folder.0.join(FIRST), format!("{pool}---\n{objects}")).unwrap();
        std::fs::write(folder.0.join("policy.yaml"), block_with(&text, "Policy").unwrap()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_setu"));
        let output = command.args(["plan", "-f", FIRST, "--config", "policy.yaml"]).current_dir(&folder.0);
        let output = output.output().unwrap();
        let plan = String::from_utf8(output.stdout).unwrap();
        assert!(plan.contains("Outcome   2 nodes: 2 from NodePool gpu as "), "docs/{guide}.md: {plan}");
    }
}

/// Compares an output with every occurrence below its command; `…` stands for the rest. Returns the number.
fn is_what_is_shown(document: &str, text: &str, command: &[String], output: &str) -> usize {
    let (blocks, _) = blocks(text);
    let mut compared = 0;
    for (_, body) in blocks.iter().filter(|(kind, _)| kind == "console") {
        let body = body.replace("\\\n", " ");
        for call in body.split("$ ").filter(|call| words(call.lines().next().unwrap_or_default()) == command)
        {
            let trimmed = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
            let shown = trimmed(call.split_once('\n').unwrap().1);
            let output = trimmed(output);
            match shown.trim_end().strip_suffix('…') {
                Some(start) => assert!(output.starts_with(start.trim_end()), "{document}:\n{output}"),
                None => assert_eq!(shown.trim_end(), output.trim_end(), "{document}"),
            }
            compared += 1;
        }
    }
    compared
}

#[test]
fn every_attack_has_a_defence_and_every_cited_test_exists() {
    let sources = ["src", "crates", "tests"].into_iter().flat_map(|folder| files(folder, "rs"));
    let sources: String = sources.map(|file| read(&file)).collect();
    let attacks = read("docs/security.md");
    let listed = read("tests/e2e/tests/tenant/README.md");
    let row = |text: &str, n: usize| {
        let row = text.lines().find(|l| l.starts_with(&format!("| A{n} |")));
        row.unwrap_or_else(|| panic!("A{n} is missing")).to_owned()
    };
    let count = attacks.lines().filter(|l| l.starts_with("| A")).count();
    assert!(count > 29, "{count} attacks");
    let mut cited = 0;
    for attack in 1..=count {
        assert_eq!(row(&attacks, attack).matches(" | ").count(), 2, "A{attack} has an attack and a defence");
        let row = row(&listed, attack);
        let column = row.trim_end_matches('|').rsplit(" | ").next().unwrap();
        let tests = between(column, "`", "`");
        assert!(!tests.is_empty() || column.trim() == "none", "{row}");
        for test in tests {
            assert!(sources.contains(&format!("fn {test}(")), "A{attack}: there is no test {test}");
            cited += 1;
        }
    }
    assert!(cited > 35, "{cited} tests");
}

/// The names of an enum's variants, read from its source.
fn variants(file: &str, name: &str) -> Vec<String> {
    let text = read(file);
    let body = text.split_once(&format!("pub enum {name} {{")).unwrap().1.split_once("\n}").unwrap().0;
    let variant = |l: &str| l.trim().trim_end_matches(',').to_owned();
    body.lines().map(variant).filter(|v| !v.is_empty() && v.chars().all(char::is_alphanumeric)).collect()
}

/// The reasons of Events: all CamelCase strings in files that create Events.
fn events() -> BTreeSet<String> {
    let sources = ["src", "crates"].into_iter().flat_map(|folder| files(folder, "rs"));
    let sources = sources.map(|file| read(&file)).filter(|s| s.contains("Notice"));
    let is_reason = |text: &&str| {
        text.starts_with(char::is_uppercase)
            && text.chars().all(char::is_alphabetic)
            && text.chars().filter(|c| c.is_uppercase()).count() > 1
    };
    let of = |source: String| {
        let source = source.split("#[cfg(test)]").next().unwrap().to_owned();
        between(&source, "\"", "\"").into_iter().filter(is_reason).map(str::to_owned).collect::<Vec<_>>()
    };
    sources.flat_map(of).collect()
}

#[test]
fn troubleshooting_lists_every_reason_class_and_event() {
    let text = read("docs/troubleshooting.md");
    let reasons = variants("crates/setu-core/src/plan/obstacle.rs", "ObstacleReason");
    assert!(reasons.len() > 20, "{reasons:?}");
    let events = events();
    assert!(events.len() >= 14, "{events:?}");
    let classes = FailureClass::ALL.iter().map(ToString::to_string);
    let (_, table) = text.split_once("\n## Events\n").unwrap();
    for event in between(table.split("\n## ").next().unwrap(), "\n| `", "`") {
        assert!(events.contains(event), "nobody tells {event}");
    }
    for word in reasons.into_iter().chain(classes).chain(events) {
        assert!(text.contains(&format!("| `{word}` |")), "{word} is not listed");
    }
}

#[test]
fn image_builders_are_told_which_platforms_to_build_for() {
    let release = read(".github/workflows/release.yml");
    let platforms = between(&release, "platforms: ", "\n")[0];
    for document in ["README.md", "docs/troubleshooting.md"] {
        let text = read(document);
        assert!(text.contains(&format!("docker buildx build --platform {platforms} ")), "{document}");
    }
    assert!(read("docs/troubleshooting.md").contains("`exec format error`"));
}

#[test]
fn the_readme_has_at_most_1100_words() {
    let words = read("README.md").split_whitespace().count();
    assert!(words <= 1100, "README.md has {words} words: move details to docs/");
}

#[test]
fn the_guides_name_the_break_glass_groups() {
    for document in ["eks", "gke", "aks", "operations", "troubleshooting"] {
        let text = read(&format!("docs/{document}.md"));
        assert!(text.contains("admissionPolicies.breakGlassGroups"), "docs/{document}.md");
    }
}

#[test]
fn every_flag_of_the_first_setu_is_accepted_or_documented_as_gone() {
    let text = read("docs/migration.md");
    let flags = [
        ("cloud-provider", "aws"),
        ("enforce-quota", "true"),
        ("enforce-capacity", "true"),
        ("validate-node-class", "true"),
        ("node-class-group", "g"),
        ("node-class-kind", "K"),
        ("node-class-default", "default"),
        ("node-class-gpu", "gpu"),
        ("leader-elect", "true"),
        ("metrics-bind-address", ":8080"),
        ("health-probe-bind-address", ":8081"),
    ];
    for (flag, value) in flags {
        let accepted = text.contains(&format!("| `--{flag}` | accepted |"));
        assert!(accepted || text.contains(&format!("| `--{flag}` | gone |")), "--{flag} is not listed");
        let taken = parses(&["run".to_owned(), format!("--{flag}={value}")]);
        assert_eq!(taken.is_ok(), accepted, "--{flag}: {taken:?}");
    }
}

#[test]
fn what_is_copied_into_a_document_is_up_to_date() {
    let architecture = read("docs/architecture.md");
    let (before, rest) = architecture.split_once("```mermaid\nstateDiagram-v2").unwrap();
    let (_, after) = rest.split_once("```").unwrap();
    let drawn = format!("{before}```mermaid\n{}```{after}", read("statecharts/gang.mmd"));
    if std::env::var_os("SETU_REGENERATE").is_some() {
        std::fs::write(root().join("docs/architecture.md"), &drawn).unwrap();
    }
    assert_eq!(read("docs/architecture.md"), drawn, "the statechart is out of date: run `just generate`");
    let version = |module: &str, package: &str| {
        let text = read(&format!("tests/e2e/programs/{module}/go.mod"));
        let line = text.lines().find(|l| l.trim_start().starts_with(&format!("{package} v")));
        line.unwrap().trim().split(' ').nth(1).unwrap().trim_start_matches('v').to_owned()
    };
    let table = read("docs/compatibility.md");
    let frameworks = read("docs/frameworks.md");
    for (what, module, package) in [
        ("Kueue", "kueue", "sigs.k8s.io/kueue"),
        ("JobSet", "kueue", "sigs.k8s.io/jobset"),
        ("LeaderWorkerSet", "kueue", "sigs.k8s.io/lws"),
        ("KubeRay", "kuberay", "github.com/ray-project/kuberay/ray-operator"),
        ("training operator", "training-operator", "github.com/kubeflow/training-operator"),
        ("MPI operator", "mpi-operator", "github.com/kubeflow/mpi-operator"),
        ("trainer", "trainer", "github.com/kubeflow/trainer/v2"),
        ("AppWrapper", "appwrapper", "github.com/project-codeflare/appwrapper"),
        ("Spark operator", "spark-operator", "github.com/kubeflow/spark-operator/v2"),
        ("Karpenter", "karpenter", "sigs.k8s.io/karpenter"),
        ("Kubernetes", "k8s", "k8s.io/kubernetes"),
        ("kwok", "kwok", "sigs.k8s.io/kwok"),
        ("Helm", "helm", "helm.sh/helm/v4"),
    ] {
        let tested = version(module, package);
        let row = table.lines().find(|l| l.starts_with(&format!("| {what} |"))).unwrap();
        assert!(
            row.contains(&format!("| {tested}")),
            "tested with {what} {tested}, and docs/compatibility.md says {row}"
        );
        // A name that is followed by a number there has its version.
        let versions =
            frameworks.split('|').filter_map(|cell| cell.trim().strip_prefix(what)?.strip_prefix(' '));
        for named in versions.filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
            assert_eq!(named, tested, "docs/frameworks.md says another {what}");
        }
    }
    let chart: Value = serde_yaml::from_str(&read("charts/setu/Chart.yaml")).unwrap();
    let oldest = chart["kubeVersion"].as_str().unwrap().trim_start_matches(">=").trim_end_matches(".0-0");
    assert!(table.contains(&format!("| Kubernetes | {oldest} or later |")), "the chart takes {oldest}");
    let examples = read("examples/README.md");
    for file in std::fs::read_dir(root().join("examples")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(name == "README.md" || examples.contains(&format!("({name}")), "{name} is not listed");
    }
}

#[test]
fn the_documents_verify_and_install_what_a_release_publishes() {
    let release = read(".github/workflows/release.yml");
    let text = read("docs/supply-chain.md");
    let commands: Vec<String> = commands(&text).into_iter().map(|words| words.join(" ")).collect();
    // Before the first release the owner is a placeholder.
    let verify = "cosign verify ghcr.io/";
    let image = commands.iter().find_map(|line| line.strip_prefix(verify)?.split(' ').next()).unwrap();
    let (owner, version) = image.split_once("/setu:").unwrap();
    let chart = format!("ghcr.io/{owner}/setu/charts/setu");
    let source = format!("github.com/{owner}/setu");
    for (published, command) in [
        ("image=$REGISTRY/${REPOSITORY,,}\n", format!("{verify}{owner}/setu:{version}")),
        ("oci://$image/charts", format!("cosign verify {chart}:{version}")),
        ("oci://$image/charts", format!("helm install setu oci://{chart} --version {version}")),
        ("SHA256SUMS\n", "sha256sum --check SHA256SUMS".to_owned()),
        ("setu-*.tar.gz", "gh attestation verify setu-linux-amd64.tar.gz".to_owned()),
        ("setu.krew.yaml", format!("kubectl krew install --manifest-url=https://{source}/releases/")),
    ] {
        assert!(release.contains(published), "a release does not say {published}");
        assert!(
            commands.iter().any(|line| line.starts_with(&command)),
            "docs/supply-chain.md has no {command}"
        );
    }
    for signed in commands.iter().filter(|line| line.starts_with("cosign verify")) {
        let identity = format!("https://{source}/.github/workflows/release.yml@refs/tags/v{version}");
        assert!(signed.contains(&identity), "{signed}");
    }
}

#[test]
fn external_links_are_listed_cleanly_and_without_example_hosts() {
    let script = Command::new("bash").args([".ci/links", "--list"]).current_dir(root()).output().unwrap();
    assert!(script.status.success(), "{}", String::from_utf8_lossy(&script.stderr));
    let links = String::from_utf8(script.stdout).unwrap();
    assert!(links.lines().count() > 5, "{links}");
    for link in links.lines() {
        let host = link.strip_prefix("https://").unwrap().split(['/', ':']).next().unwrap();
        assert!(!host.ends_with(".example") && !host.ends_with("example.com"), "{link}");
        assert!(link.chars().all(|c| c.is_ascii_graphic() && !"\"'`<>{}".contains(c)), "{link}");
    }
}

#[test]
fn every_code_block_is_fenced_so_that_tests_read_it() {
    for document in documents() {
        let (_, prose) = blocks(&read(&document));
        let lines: Vec<&str> = prose.lines().collect();
        // Four spaces after an empty line start a block, except that within a list they continue it.
        let is_block = |pair: &&[&str]| pair[0].is_empty() && pair[1].starts_with("    ");
        let found = lines.windows(2).find(is_block);
        assert!(found.is_none(), "{document}: put a fence around {found:?}");
    }
}
