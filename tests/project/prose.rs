//! The house style of the documents: the script that checks it finds what it should, and the documents follow it.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Checks these files, or all documents, and returns whether they pass and what was found.
fn check(files: &[&Path]) -> (bool, String) {
    let mut script = Command::new("python3");
    let output =
        script.arg(".ci/prose").args(files).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.code() == Some(0) || output.stderr.ends_with(b" findings\n"), "{output:?}");
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

/// Checks a Markdown text.
fn checked(name: &str, text: &str) -> (bool, String) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.md"));
    fs::write(&path, text).unwrap();
    check(&[&path])
}

#[test]
fn every_document_follows_the_house_style() {
    let (passed, found) = check(&[]);
    assert!(passed, "{found}");
}

#[test]
fn a_sentence_against_the_house_style_is_found_with_its_line() {
    let long = "one ".repeat(31);
    for (line, sentence, words) in [
        (3, format!("# Title\n\nSetu counts {long}."), "33 words in a sentence, 30 at most"),
        (3, "A gang waits.\n\nIt begins anew.".to_owned(), "“anew”: write again"),
        (1, "The squad waits for a node.".to_owned(), "“squad”: write gang"),
        (1, "Setu makes nodeclaims.".to_owned(), "as Karpenter writes them"),
        (3, "| a | b |\n|---|---|\n| x | utilised by Setu |".to_owned(), "“utilised”: write use"),
        (2, "- A gang waits.\n- Never does Setu buy half a gang.".to_owned(), "subject before verb"),
        (1, "Only then is the gang ready.".to_owned(), "subject before verb"),
        (1, "Behind the leader stands a second replica.".to_owned(), "subject before verb"),
        (1, "So that `setu` is there to be typed, install it.".to_owned(), "the purpose after"),
        (1, "It waits. Whoever may read Workloads gets the answer.".to_owned(), "a noun as the subject"),
        (1, "What exists is read from labels.".to_owned(), "a noun as the subject"),
        (1, "That holds too for a retry.".to_owned(), "the same applies to"),
    ] {
        let (passed, found) = checked("against", &sentence);
        assert!(!passed && found.lines().count() == 1, "{sentence}: {found}");
        assert!(found.contains(&format!("against.md:{line}: ")) && found.contains(words), "{found}");
    }
}

#[test]
fn code_addresses_headings_and_questions_are_no_findings() {
    let text = "# Anew\n\n```sh\nanew via etc\n```\n\nRun `anew`, see [the list](https://example.com/via/anew).\n\n\
        What happens when a node dies? Who pays?\n\n| key | meaning |\n|---|---|\n| a | What its Node has. |\n";
    assert_eq!(checked("plain", text), (true, String::new()));
}
