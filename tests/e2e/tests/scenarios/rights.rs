//! The permissions of the scenarios' Setu: only those in the manifests and examples/rbac, with the admission policies.
//! Scenarios that hand back or keep nodes use a second account, which has the permissions that users add for that.

use crate::real::Shared;
use anyhow::{Context as _, Result, ensure};
use kube::discovery::Discovery;
use serde::Deserialize as _;
use serde_json::{Value, json};
use setu::sim::scenario::Run;
use setu_e2e::{KUEUE_NAMESPACE, Stack, apply};
use std::path::Path;
use std::sync::Arc;

const PLAIN: &str = "setu";
const HANDS_BACK: &str = "setu-hand-back";

/// The two accounts.
#[derive(Clone)]
pub struct Accounts {
    plain: Shared,
    hands_back: Shared,
}

fn read(file: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

fn documents(file: &str) -> Result<Vec<Value>> {
    let text = read(file)?;
    let all = serde_yaml::Deserializer::from_str(&text).map(Value::deserialize);
    let all: Result<Vec<Value>, _> = all.filter(|d| !matches!(d, Ok(Value::Null))).collect();
    all.with_context(|| format!("reading {file}"))
}

fn subjects(object: &mut Value) -> Option<&mut Vec<Value>> {
    object.get_mut("subjects").and_then(Value::as_array_mut)
}

/// The policies, with the second account added wherever they name the first.
fn policies() -> Result<String> {
    let user = |account: &str| format!("\"system:serviceaccount:{KUEUE_NAMESPACE}:{account}\"");
    let text = read("manifests/admission-policies.yaml")?;
    let (plain, both) = (user(PLAIN), format!("{},{}", user(PLAIN), user(HANDS_BACK)));
    let policies = text.lines().filter(|line| *line == "kind: ValidatingAdmissionPolicy").count();
    ensure!(text.matches(&plain).count() == policies, "each of the {policies} policies names {plain} once");
    Ok(text.replace(&plain, &both))
}

impl Accounts {
    /// Creates both accounts, with their permissions and the policies.
    pub async fn make(stack: &Stack, kinds: Discovery) -> Result<Self> {
        let account = json!({"kind": "ServiceAccount", "name": HANDS_BACK, "namespace": KUEUE_NAMESPACE});
        // The second file is for the scenario with the TAS compatibility flag.
        let mut objects = documents("manifests/rbac.yaml")?;
        objects.append(&mut documents("examples/rbac/setu-tas-compat.yaml")?);
        for subjects in objects.iter_mut().filter_map(subjects) {
            subjects.push(account.clone());
        }
        let mut more = documents("examples/rbac/setu-hand-back.yaml")?;
        for subjects in more.iter_mut().filter_map(subjects) {
            *subjects = vec![account.clone()];
        }
        objects.append(&mut more);
        objects.push(json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": HANDS_BACK, "namespace": KUEUE_NAMESPACE},
        }));
        let client = stack.client()?;
        apply::all(&client, objects).await?;
        apply::yaml(&client, &policies()?).await?;
        let kinds = Arc::new(kinds);
        let plain = stack.kubeconfig_of(KUEUE_NAMESPACE, PLAIN).await?;
        let hands_back = stack.kubeconfig_of(KUEUE_NAMESPACE, HANDS_BACK).await?;
        Ok(Self {
            plain: Shared { kinds: Arc::clone(&kinds), kubeconfig: plain.into() },
            hands_back: Shared { kinds, kubeconfig: hands_back.into() },
        })
    }

    /// The account of this run's Setu.
    pub fn of(&self, run: &Run) -> &Shared {
        let release = run.scenario.policy.pointer("/custody/release").and_then(Value::as_str);
        match release {
            None | Some("Delete") => &self.plain,
            Some(_) => &self.hands_back,
        }
    }
}
