//! The Workload that has a gang: whose journal it carries, whether it may queue, and which ProvisioningRequest it stands for.

pub mod elastic_job;
pub mod finalizer;
pub mod journal_load;
pub mod other_installations;
pub mod queueing;
pub mod repair;
pub mod request;
pub mod standalone;
pub mod stored;
