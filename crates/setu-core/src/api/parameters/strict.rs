//! Strict parsing of types that Setu shares with Karpenter and Kubernetes.
//!
//! Those types ignore unknown keys, because objects of others may have more fields than Setu reads. But a misspelt key in an
//! administrator's input must be an error.

use crate::api::node_claim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// One requirement on node labels.
#[derive(JsonSchema, Deserialize)]
#[serde(rename = "Requirement", rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)",
    "message": "operators In and NotIn need values",
}, {
    "rule": "!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || size(self.values) == 0",
    "message": "operators Exists and DoesNotExist take no values",
}, {
    "rule": "!(self.operator in ['Gt', 'Lt', 'Gte', 'Lte']) || (has(self.values) && size(self.values) == 1 && self.values[0].matches('^[0-9]+$'))",
    "message": "operators Gt, Lt, Gte and Lte need one whole number",
}]))]
pub struct StrictRequirement {
    /// Label key.
    #[schemars(length(min = 1, max = 316))]
    key: String,
    /// How `values` are compared with the label's.
    operator: Operator,
    /// Values the operator takes.
    #[serde(default)]
    #[schemars(length(max = 100), inner(length(max = 63)))]
    values: Vec<String>,
    /// Least number of distinct values the provider must keep to choose from.
    #[serde(default)]
    #[schemars(range(min = 1, max = 50))]
    min_values: Option<i32>,
}

/// Operators of requirements on node labels.
#[derive(JsonSchema, Deserialize, Debug, Clone, Copy)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
    Gte,
    Lte,
}

/// Labels that are selected.
#[derive(JsonSchema, Deserialize)]
#[serde(rename = "Selector", rename_all = "camelCase", deny_unknown_fields)]
pub struct StrictSelector {
    /// Labels with exactly these values.
    #[serde(default)]
    match_labels: Option<BTreeMap<String, String>>,
    /// Labels with values of a set.
    #[serde(default)]
    #[schemars(length(max = 32))]
    match_expressions: Option<Vec<Expression>>,
}

/// One requirement on a label.
#[derive(JsonSchema, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Expression {
    /// Label key.
    key: String,
    /// How `values` are compared with the label's.
    operator: ExpressionOperator,
    /// Values the operator takes.
    #[serde(default)]
    values: Option<Vec<String>>,
}

/// Operators of label selectors.
#[derive(JsonSchema, Deserialize, Debug, Clone, Copy)]
enum ExpressionOperator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl From<StrictRequirement> for node_claim::Requirement {
    fn from(read: StrictRequirement) -> Self {
        Self {
            key: read.key,
            operator: format!("{:?}", read.operator),
            values: read.values,
            min_values: read.min_values,
        }
    }
}

impl From<StrictSelector> for LabelSelector {
    fn from(read: StrictSelector) -> Self {
        let expression = |e: Expression| LabelSelectorRequirement {
            key: e.key,
            operator: format!("{:?}", e.operator),
            values: e.values,
        };
        Self {
            match_labels: read.match_labels,
            match_expressions: read.match_expressions.map(|all| all.into_iter().map(expression).collect()),
        }
    }
}

/// Reads requirements.
pub fn requirements<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<node_claim::Requirement>, D::Error> {
    Ok(Vec::<StrictRequirement>::deserialize(d)?.into_iter().map(Into::into).collect())
}

/// Reads requirements that may be absent.
pub fn some_requirements<'de, D: Deserializer<'de>>(
    d: D,
) -> Result<Option<Vec<node_claim::Requirement>>, D::Error> {
    let all = Option::<Vec<StrictRequirement>>::deserialize(d)?;
    Ok(all.map(|all| all.into_iter().map(Into::into).collect()))
}

/// Reads a selector that may be absent.
pub fn some_selector<'de, D: Deserializer<'de>>(d: D) -> Result<Option<LabelSelector>, D::Error> {
    Ok(Option::<StrictSelector>::deserialize(d)?.map(Into::into))
}
