//! The real controller in the embedded cluster, under everything that can go wrong.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and tell what it saw")]

use setu::sim::drama::Drama;

#[test]
fn a_gang_that_nothing_happens_to_runs_and_leaves_nothing() {
    if std::env::var_os("SETU_LOG").is_some() {
        tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).init();
    }
    let outcome = Drama::quiet(4).play(true).unwrap();
    for line in &outcome.lines {
        print!("{line}");
    }
    assert_eq!(outcome.violations, []);
    println!("{} changes, {} writes", outcome.changes, outcome.writes);
}
