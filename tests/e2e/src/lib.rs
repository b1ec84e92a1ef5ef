//! The real control plane for Setu's tests, without a container engine: etcd, Kubernetes, Kueue,
//! the JobSet and LeaderWorkerSet controllers, operators of other frameworks, Karpenter and kwok. They are built from their Go
//! modules and run on loopback.
//!
//! [`Stack`] starts them, waits until each one answers and leaves no process behind, however the test ends.
//! [`apply`] creates objects in it, [`programs`] builds the binaries.
//! The ConfigMap [`WEATHER_NAMESPACE`]/[`WEATHER_NAME`] controls the cloud behind Karpenter;
//! `programs/karpenter/weather.go` defines its rules. [`StackProvider::Aws`] replaces that cloud with Karpenter's AWS
//! provider and an EC2 mock that fails on demand: see [`aws`].

mod accounts;
pub mod apply;
pub mod aws;
pub mod definitions;
mod identity;
mod jaeger;
mod jobs;
mod kubernetes;
mod kueue;
mod layout;
pub mod node;
mod nodes;
mod operators;
mod options;
mod ports;
mod probe;
mod process;
pub mod programs;
mod ready;
pub mod requests;
mod spark;
mod stack;
pub mod titles;
pub mod versions;

pub use layout::HarnessLayout;
pub use options::{StackJobKinds, StackOptions, StackProvider, StackScope};
pub use process::Program;
pub use stack::Stack;

/// A pod with this annotation runs for that long (`5s`, `2m`) and then succeeds; without it, it runs until deleted.
pub const RUN_FOR_ANNOTATION: &str = "e2e.setu/run-for";

/// The namespace of the weather ConfigMap.
pub const WEATHER_NAMESPACE: &str = "kube-system";

/// The name of the weather ConfigMap.
pub const WEATHER_NAME: &str = "weather";

/// The namespace that Kueue runs in.
pub const KUEUE_NAMESPACE: &str = "kueue-system";
