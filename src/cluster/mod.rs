//! The way to the API server: the client, and one watch per kind.

pub mod client;
pub mod store;
pub mod watch;
