//! The helm commands in the documents, as a reader types them: helm knows their flags, and the chart renders with
//! their values. Flags that only the text names are those of an upgrade.

use crate::helm::{chart, command, root, said};
use crate::render::fenced;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The flag that names the image where a command does not: a released chart, and the install before an upgrade.
const IMAGE: &str = "--set image.repository=setu";

/// The README, the docs, and what the chart says of itself.
fn documents() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md"), chart().join("templates/NOTES.txt")];
    let mut folders = vec![root().join("docs"), root().join("charts")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Whether it is a command with arguments. With fewer words a text only speaks of it.
fn is_command(text: &str) -> bool {
    let verbs = ["install", "upgrade", "template", "test", "rollback", "uninstall"];
    let words: Vec<&str> = text.split_whitespace().collect();
    words.len() > 3 && words[0] == "helm" && verbs.contains(&words[1])
}

/// The commands in a document, each with the number of its line.
fn shown(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let mut typed = line.trim().trim_start_matches("$ ").to_owned();
        while typed.ends_with('\\') {
            typed.pop();
            typed.push_str(lines.next().map_or("", |(next, _)| next.trim()));
        }
        let mut all = vec![typed];
        for span in line.split('`').skip(1).step_by(2) {
            let is_flag = span.starts_with("--set") || span.starts_with("-f charts/");
            let upgrade = "helm upgrade setu charts/setu --reset-then-reuse-values";
            all.push(if is_flag { format!("{upgrade} {span}") } else { span.to_owned() });
        }
        found.extend(all.into_iter().filter(|typed| is_command(typed)).map(|typed| (number, typed)));
    }
    found
}

/// The content of a file that the document tells its reader to save: its policy, or the YAML behind the command.
fn saved<'t>(name: &str, text: &'t str, behind: &'t str) -> Option<&'t str> {
    if name == "policy.yaml" {
        return fenced(text, "yaml").into_iter().find(|block| block.contains("kind: Policy\n"));
    }
    fenced(behind, "yaml").first().copied()
}

/// The command that renders this chart with the same values. Files that it needs are written to `folder`.
fn rendering(typed: &str, text: &str, behind: &str, folder: &Path) -> String {
    let typed = typed.replace("{{ .Release.Name }} …", "setu charts/setu");
    let typed = typed.replace("{{ .Release.Namespace }}", "kueue-system");
    let mut line = String::from("helm template");
    for word in typed.split_whitespace().skip(2) {
        let name = word.rsplit('=').next().unwrap();
        let is_missing =
            Path::new(name).extension().is_some_and(|e| e == "yaml") && !root().join(name).exists();
        let word = match (word, saved(name, text, behind).filter(|_| is_missing)) {
            (".", _) => "charts/setu".to_owned(),
            ("--reset-then-reuse-values", _) => IMAGE.to_owned(),
            (_, Some(contents)) => {
                std::fs::write(folder.join(name), contents).unwrap();
                word.replace(name, &folder.join(name).display().to_string())
            }
            _ if word.starts_with("oci://") => format!("charts/setu {IMAGE}"),
            _ => word.replace("NAMESPACE", "elsewhere").replace("NAME", "named"),
        };
        line.extend([" ", word.as_str()]);
    }
    line
}

/// Helm's error if it refuses a command line.
fn refusal(line: &str, folder: &Path) -> Option<String> {
    let helm = command(folder);
    let bin = Path::new(helm.get_program()).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut bash = Command::new("bash");
    // Whatever a document shows, it reaches no cluster.
    bash.args(["-ec", line]).current_dir(root()).env("PATH", path).env("KUBECONFIG", "/dev/null");
    let output = bash.output().unwrap();
    (!output.status.success()).then(|| format!("{line}\n{}", said(&output)))
}

#[test]
fn helm_accepts_every_command_in_the_documents() {
    let folder = tempfile::tempdir().unwrap();
    let (mut commands, mut refused) = (0, Vec::new());
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for (number, typed) in shown(&text) {
            let verb = typed.split_whitespace().nth(1).unwrap();
            // With --help, helm reads the flags and does nothing.
            let mut lines = vec![typed.replacen(verb, &format!("{verb} --help"), 1)];
            if ["install", "upgrade", "template"].contains(&verb) {
                let behind = text.lines().skip(number).collect::<Vec<_>>().join("\n");
                lines.push(rendering(&typed, &text, &behind, folder.path()));
            }
            let place = document.strip_prefix(root()).unwrap().display();
            let said = lines.iter().find_map(|line| refusal(line, folder.path()));
            refused.extend(said.map(|said| format!("{place}:{number}: {said}")));
            commands += 1;
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(commands >= 44, "{commands} commands");
}

#[test]
fn an_unknown_flag_or_value_in_a_command_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (line, words) in [
        ("helm rollback --help setu --name-space a", "unknown flag: --name-space"),
        ("helm template setu charts/setu --set image.repository=setu,imageTag=1", "'imageTag' not allowed"),
        ("helm template setu charts/setu", "image.repository is empty"),
    ] {
        let said = refusal(line, folder.path()).unwrap();
        assert!(said.contains(words), "{said}");
    }
}
