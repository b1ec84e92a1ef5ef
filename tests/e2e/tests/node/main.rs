//! The image and the chart on a node with a real kubelet: what people install is what runs here, in containers. `just e2e-node`
//! packs the image, installs what the node needs, and runs this.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test may panic"
)]
#![allow(dead_code, missing_docs, reason = "the world is shared with the scenarios, which use all of it")]

#[path = "../chart/helm.rs"]
mod helm;
mod life;
mod pods;
#[path = "../scenarios/real.rs"]
mod real;
mod release;
#[path = "../scenarios/setu.rs"]
mod setu;
#[path = "../chart/surroundings.rs"]
mod surroundings;
mod watch;

/// Fails the test, unless `SETU_NODE_WITHOUT` names this part as one that this machine cannot run. Then prints that it did not run.
fn cannot(part: &str, why: &str) {
    let known = std::env::var("SETU_NODE_WITHOUT").unwrap_or_default();
    assert!(
        known.split(',').any(|known| known == part),
        "{part}: {why}\nWhere that cannot be changed, SETU_NODE_WITHOUT={part} leaves this part out."
    );
    eprintln!("DID NOT RUN: {part}: {why}");
}
