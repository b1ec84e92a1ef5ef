//! For tests that make their worlds themselves instead of reading scenarios from files.

use crate::real::{Real, Shared};
use anyhow::{Context as _, Result};
use kube::CustomResourceExt as _;
use serde_json::Value;
use setu::api::ProvisioningParameters;
use setu::sim::scenario::{self, ScenarioStep, ScenarioWorld};
use setu_e2e::{KUEUE_NAMESPACE, Stack, apply};
use std::path::Path;
use std::sync::Arc;

/// Prepares a stack for Setu: with its CRD, and an account with the rights in these files of the workspace.
pub async fn prepare(stack: &Stack, rights: &[&str]) -> Result<Shared> {
    let client = stack.client()?;
    apply::all(&client, vec![serde_json::to_value(ProvisioningParameters::crd())?]).await?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for file in rights {
        apply::path(&client, &root.join(file)).await?;
    }
    let kinds = Arc::new(apply::kinds(&client).await?);
    Ok(Shared { kinds, kubeconfig: stack.kubeconfig_of(KUEUE_NAMESPACE, "setu").await?.into() })
}

/// Runs steps, as a scenario has them.
pub async fn take(world: &mut ScenarioWorld<Real>, steps: Value) -> Result<()> {
    for step in serde_json::from_value::<Vec<ScenarioStep>>(steps).context("reading the steps")? {
        scenario::take(world, &step).await.with_context(|| step.description())?;
    }
    Ok(())
}
