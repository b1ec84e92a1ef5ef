//! How often and how fast a gang retries, and what happens after the last try.

use crate::api::duration::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How often and how fast to try again.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.compat) || self.compat != 'Setu' || !(has(self.inCheck) || has(self.yield) || has(self.onExhausted))",
    "message": "compat: Setu brings its own inCheck, yield and onExhausted; take them out",
}]))]
pub struct Retry {
    /// With the quota held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_check: Option<Backoff>,
    /// With the quota given back.
    #[serde(default, rename = "yield", skip_serializing_if = "Option::is_none")]
    pub yielding: Option<Backoff>,
    /// What happens once `inCheck` and `yield` are used up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exhausted: Option<OnExhausted>,
    /// Retry like the earlier controller named here, instead of `inCheck`, `yield`, `onExhausted` and `deadlines`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compat: Option<Compat>,
}

/// A bounded, doubling wait.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Backoff {
    /// How many times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1000), extend("format" = "int64"))]
    pub limit: Option<u32>,
    /// First wait; each further one is twice as long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Span>,
    /// Longest wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Span>,
}

/// What happens once every retry is used up.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExhausted {
    /// Keep giving the quota back, with the longest wait.
    #[default]
    Yield,
    /// Kueue deactivates the Workload. It must be deleted and created again.
    Reject,
}

/// A controller whose way of retrying is kept.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compat {
    /// Use `inCheck`, `yield`, `onExhausted` and `deadlines`.
    #[default]
    None,
    /// The first Setu: five retries with the quota held, after 5 s doubling to 80 s; ten minutes for
    /// the nodes to become ready; then Rejected.
    Setu,
}
