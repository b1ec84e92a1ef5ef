//! The Workload that has a gang: whose journal it carries, whether it may queue, and which ProvisioningRequest it stands for.

pub mod elastic_job;
pub mod finalizer;
pub mod opening;
pub mod others;
pub mod queueing;
pub mod repair;
pub mod request;
pub mod standalone;
pub mod stored;
