//! Generated files are committed and equal to what the code makes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

fn compare(file: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("SETU_REGENERATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(committed, made, "{file} is out of date: run `just generate`");
}

#[test]
fn the_crd_is_that_of_the_code() {
    let crd = setu::cli::crds::text().unwrap();
    compare("examples/setup/crds.yaml", &crd);
    compare("charts/setu/files/crds.yaml", &crd);
    compare("manifests/crds.yaml", &crd);
}
