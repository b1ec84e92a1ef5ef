//! The real control plane for Setu's tests, with no container engine: etcd, Kubernetes,
//! Kueue, the controllers of JobSets and LeaderWorkerSets, Karpenter and kwok, built from their Go
//! modules and run on loopback.
//!
//! [`Stack`] starts them, waits until each really answers and leaves no process behind,
//! however the test ends. [`apply`] puts objects into it, [`programs`] builds the binaries.
//! The cloud behind Karpenter obeys the ConfigMap [`WEATHER_NAMESPACE`]/[`WEATHER_NAME`];
//! its rules are those of `programs/karpenter/weather.go`. With [`Provider::Aws`] it is Karpenter's own AWS provider
//! instead, in front of a mock of EC2 that fails as a test wants: see [`aws`].

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
mod nodes;
mod ports;
mod probe;
mod process;
pub mod programs;
mod stack;
pub mod titles;

pub use layout::Layout;
pub use process::Program;
pub use stack::{Options, Provider, Scope, Stack};

/// A pod with this annotation runs so long (`5s`, `2m`) and then succeeds; without it, it runs until deleted.
pub const RUN_FOR_ANNOTATION: &str = "e2e.setu/run-for";

/// The namespace of the ConfigMap with the cloud's weather.
pub const WEATHER_NAMESPACE: &str = "kube-system";

/// The name of the ConfigMap with the cloud's weather.
pub const WEATHER_NAME: &str = "weather";

/// The namespace Kueue takes as its own.
pub const KUEUE_NAMESPACE: &str = "kueue-system";
