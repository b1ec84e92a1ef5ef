//! Runs the checks of the fuzz targets with the stable compiler, on the corpus and on mutations of it.

#[path = "../../fuzz/checks.rs"]
mod checks;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};
use std::path::Path;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files.iter().map(|f| std::fs::read(f).unwrap()).collect()
}

#[test]
fn every_input_of_the_corpus_is_handled() {
    for (target, check) in checks::ALL {
        let inputs = corpus(target);
        assert!(!inputs.is_empty(), "no corpus of {target}");
        for input in &inputs {
            check(input);
        }
        println!("{target}: {} inputs", inputs.len());
    }
}

/// A change to an input: cut out a part, and insert something else there.
fn mutation() -> impl Strategy<Value = (Index, Index, usize, Vec<u8>)> {
    let words = ["0", "-1", "4294967295", "18446744073709551616", "\"", "{", "[", "null", "\n", "é", "9999"];
    let word = proptest::sample::select(words.to_vec()).prop_map(|w| w.as_bytes().to_vec());
    let other = prop_oneof![word, proptest::collection::vec(any::<u8>(), 0..4), Just(vec![b'a'; 9_000])];
    (any::<Index>(), any::<Index>(), 0..24_usize, other)
}

#[test]
fn every_mutation_of_the_corpus_is_handled() {
    for (target, check) in checks::ALL {
        let inputs = corpus(target);
        let cases = 2_000;
        let mut runner = TestRunner::new(Config { cases, ..Config::default() });
        let outcome = runner.run(&proptest::collection::vec(mutation(), 1..4), |mutations| {
            let mut input = inputs[mutations[0].0.index(inputs.len())].clone();
            for (_, at, length, other) in mutations {
                let from = at.index(input.len() + 1);
                let to = (from + length).min(input.len());
                input.splice(from..to, other);
            }
            check(&input);
            Ok(())
        });
        outcome.unwrap();
        println!("{target}: {cases} mutations");
    }
}

mod planted {
    use super::{checks, corpus};
    use setu::planted::{Planted, plant};

    fn finds(target: &'static str, bug: Planted) {
        let (_, check) = checks::ALL.into_iter().find(|(name, _)| *name == target).unwrap();
        let found = std::thread::spawn(move || {
            plant(Some(bug));
            for input in corpus(target) {
                check(&input);
            }
        });
        assert!(found.join().is_err(), "{bug:?} was not found");
    }

    #[test]
    fn names_that_do_not_follow_from_the_uid_are_found() {
        finds("names", Planted::NameWithoutUid);
    }

    #[test]
    fn random_names_are_found() {
        finds("names", Planted::RandomClaimNames);
    }

    #[test]
    fn a_journal_that_is_bound_to_no_workload_is_found() {
        finds("journal", Planted::JournalUnbound);
    }
}
