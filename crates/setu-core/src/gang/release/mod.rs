//! How nodes are given up: when their gang ends, when they are orphaned, and when Setu is uninstalled.

pub mod custody;
#[cfg(test)]
mod fixtures;
pub mod orphan;
pub mod stray_node;
pub mod undeletable;
pub mod uninstall;
