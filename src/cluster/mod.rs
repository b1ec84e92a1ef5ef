//! The way to the API server: the client, one watch per kind, and who leads.

pub mod backoff;
pub mod client;
pub mod fence;
pub mod lease;
pub mod store;
pub mod time;
pub mod watch;
