//! Validation rules of Karpenter's NodeClaim and NodePool CRDs, with their messages.

use super::super::kinds::ServedKind;
use super::super::status::FieldError;
use crate::values::{list, number, text};
use serde_json::{Value, json};
use setu_core::names;

/// Keys of Karpenter's domain that requirements may use.
const OWN_KEYS: [&str; 2] = [names::CAPACITY_TYPE, names::NODEPOOL];
/// Domain of the embedded cloud, and its keys that requirements may use.
const CLOUD_DOMAIN: &str = "karpenter.kwok.sh";
const CLOUD_KEYS: [&str; 5] =
    ["kwoknodeclass", "instance-cpu", "instance-memory", "instance-family", "instance-size"];

/// Checks the changes of a claim or pool.
pub fn check(kind: &ServedKind, old: Option<&Value>, new: &Value, found: &mut Vec<FieldError>) {
    let claim = kind.kind == "NodeClaim";
    if claim && old.is_some_and(|o| o.get("spec") != new.get("spec")) {
        found.push(FieldError::rule("spec", "spec is immutable"));
    }
    let spec = if claim { "/spec" } else { "/spec/template/spec" };
    let at = spec.trim_start_matches('/').replace('/', ".");
    let pointer = format!("{spec}/requirements");
    // Unchanged requirements were checked when they were stored.
    if old.and_then(|o| o.pointer(&pointer)) == new.pointer(&pointer) {
        return;
    }
    let requirements = list(new, &pointer);
    lists(requirements, &format!("{at}.requirements"), found);
    for (index, requirement) in requirements.iter().enumerate() {
        let key = text(requirement, "/key");
        if let Some(why) = restricted(key, claim) {
            found.push(FieldError::invalid(format!("{at}.requirements[{index}].key"), &json!(key), &why));
        }
    }
}

fn restricted(key: &str, claim: bool) -> Option<String> {
    let (domain, name) = key.split_once('/')?;
    let own = domain == names::KARPENTER_DOMAIN && !OWN_KEYS.contains(&key);
    if own || (domain == CLOUD_DOMAIN && !CLOUD_KEYS.contains(&name)) {
        return Some(format!("label domain \"{domain}\" is restricted"));
    }
    (key == names::HOSTNAME || (key == names::NODEPOOL && !claim))
        .then(|| format!("label \"{key}\" is restricted"))
}

fn lists(requirements: &[Value], at: &str, found: &mut Vec<FieldError>) {
    let values = |r: &Value| list(r, "/values").len();
    let broken = |rule: &dyn Fn(&Value) -> bool| requirements.iter().any(rule);
    if broken(&|r| text(r, "/operator") == "In" && values(r) == 0) {
        found.push(FieldError::rule(at, "requirements with operator 'In' must have a value defined"));
    }
    let is_number = |r: &Value| {
        let one = list(r, "/values").first().and_then(Value::as_str);
        values(r) == 1 && one.is_some_and(|v| v.parse::<u64>().is_ok())
    };
    if broken(&|r| matches!(text(r, "/operator"), "Gt" | "Lt" | "Gte" | "Lte") && !is_number(r)) {
        let why =
            "requirements operator 'Gt', 'Lt', 'Gte', or 'Lte' must have a single positive integer value";
        found.push(FieldError::rule(at, why));
    }
    if broken(&|r| {
        let wanted = usize::try_from(number(r, "/minValues")).unwrap_or_default();
        text(r, "/operator") == "In" && values(r) < wanted
    }) {
        let why = "requirements with 'minValues' must have at least that many values specified in the 'values' field";
        found.push(FieldError::rule(at, why));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::kinds::{NODE_CLAIM, NODE_POOL};
    use super::*;

    fn faults(kind: &ServedKind, requirement: &Value) -> usize {
        let spec = json!({"requirements": [requirement]});
        let object = if kind.kind == "NodeClaim" {
            json!({"spec": spec})
        } else {
            json!({"spec": {"template": {"spec": spec}}})
        };
        let mut found = Vec::new();
        check(kind, None, &object, &mut found);
        found.len()
    }

    #[test]
    fn only_claims_may_require_a_node_pool_and_none_may_require_a_hostname() {
        let requires = |key: &str| json!({"key": key, "operator": "Exists"});
        assert_eq!(faults(&NODE_CLAIM, &requires(names::NODEPOOL)), 0);
        assert_eq!(faults(&NODE_POOL, &requires(names::NODEPOOL)), 1);
        for kind in [&NODE_CLAIM, &NODE_POOL] {
            assert_eq!(faults(kind, &requires(names::CAPACITY_TYPE)), 0);
            assert_eq!(faults(kind, &requires(names::HOSTNAME)), 1);
            assert_eq!(faults(kind, &requires("karpenter.sh/other")), 1);
            assert_eq!(faults(kind, &requires("karpenter.kwok.sh/other")), 1);
            assert_eq!(faults(kind, &requires("karpenter.kwok.sh/instance-cpu")), 0);
        }
    }

    #[test]
    fn requirement_values_must_fit_their_operator() {
        let with =
            |operator: &str, values: Value| json!({"key": "a", "operator": operator, "values": values});
        assert_eq!(faults(&NODE_CLAIM, &with("In", json!([]))), 1);
        assert_eq!(faults(&NODE_CLAIM, &with("Gt", json!(["1"]))), 0);
        assert_eq!(faults(&NODE_CLAIM, &with("Gt", json!(["1", "2"]))), 1);
        assert_eq!(faults(&NODE_CLAIM, &with("Lt", json!(["x"]))), 1);
    }

    #[test]
    fn the_spec_of_a_claim_is_immutable() {
        let (old, new) = (json!({"spec": {"a": 1}}), json!({"spec": {"a": 2}}));
        let mut found = Vec::new();
        check(&NODE_CLAIM, Some(&old), &new, &mut found);
        assert_eq!(found, [FieldError::rule("spec", "spec is immutable")]);
    }
}
