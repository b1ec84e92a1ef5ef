//! The published statecharts match the code.

use setu::gang::statechart::diagram;
use std::path::Path;

fn compare(file: &str, drawn: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("statecharts").join(file);
    if std::env::var_os("SETU_REGENERATE").is_some() {
        std::fs::write(&path, drawn).unwrap();
    }
    let published = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        published, drawn,
        "{file} is not what the code does: run `just generate` and look at the difference"
    );
}

#[test]
fn the_published_charts_match_the_code() {
    compare("gang.mmd", &diagram::mermaid());
    compare("gang.scxml", &diagram::scxml());
    compare("gang.dot", &diagram::dot());
}
