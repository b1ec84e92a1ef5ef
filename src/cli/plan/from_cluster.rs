//! Reads from a cluster the inputs of a plan that the files do not hold.
//!
//! Rule: a kind is not read from the cluster if the files hold objects of it.

use super::objects::{Objects, meant};
use crate::cli::CliError;
use crate::cli::cluster::{Connection, VIEWER};
use crate::controllers::storage;
use crate::plan::PlanObjects;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Arc;

impl Objects {
    /// Reads from the cluster what the files do not hold.
    pub async fn complete(
        &mut self,
        connection: &Connection,
        workload: Option<&str>,
    ) -> Result<(), CliError> {
        let (client, namespace) = connection.connect_to_namespace().await.map_err(|e| {
            CliError::Invalid(format!(
                "without a cluster, give NodePools, queues and flavors with -f: none of the files has a NodePool, and {e}"
            ))
        })?;
        if let Some(name) = workload {
            list(Api::namespaced(client.clone(), &namespace), &mut self.workloads).await?;
            self.workload = Some(meant(&self.workloads, name, &namespace)?);
        }
        let of = self.workload.as_ref().and_then(|w| w.metadata.namespace.clone());
        list_plan_objects(&client, &mut self.plan).await?;
        list(Api::all(client.clone()), &mut self.node_claims).await?;
        list(Api::all(client.clone()), &mut self.nodes).await?;
        list(Api::all(client.clone()), &mut self.local_queues).await?;
        list(Api::all(client.clone()), &mut self.cohorts).await?;
        list(Api::all(client.clone()), &mut self.checks).await?;
        list(Api::all(client.clone()), &mut self.namespaces).await?;
        list_if_served(&client, &mut self.parameters).await?;
        if let Some(workload) = &self.workload {
            let read = storage::read(&client, workload)
                .await
                .map_err(|e| CliError::Failed(e.in_full().to_string()))?;
            self.storage.add(read);
        }
        if let Some(namespace) = of {
            list(Api::namespaced(client.clone(), &namespace), &mut self.limit_ranges).await?;
            list(Api::namespaced(client.clone(), &namespace), &mut self.workloads).await?;
        }
        Ok(())
    }
}

fn failed(what: &str, error: &kube::Error) -> CliError {
    if matches!(error, kube::Error::Api(status) if status.code == 403) {
        return CliError::Failed(format!("you may not list {what}; {VIEWER} has what is needed"));
    }
    CliError::Failed(format!("reading {what}: {error}"))
}

/// Reads a kind of which the files hold none.
async fn list<K>(api: Api<K>, all: &mut Vec<Arc<K>>) -> Result<(), CliError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    if all.is_empty() {
        let found = api.list(&ListParams::default()).await.map_err(|e| failed(&K::plural(&()), &e))?;
        all.extend(found.items.into_iter().map(Arc::new));
    }
    Ok(())
}

/// The same for a kind that the cluster may not serve: then there are none.
async fn list_if_served<K>(client: &Client, all: &mut Vec<Arc<K>>) -> Result<(), CliError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    if all.is_empty() {
        let api: Api<K> = Api::all(client.clone());
        match api.list(&ListParams::default()).await {
            Ok(found) => all.extend(found.items.into_iter().map(Arc::new)),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(failed(&K::plural(&()), &error)),
        }
    }
    Ok(())
}

macro_rules! list_plan_objects {
    ($($field:ident: $kind:ty, $resource:literal, $plural:literal, $limitation:expr, $matters:ident, $counted:ident;)+) => {
        /// Reads the kinds of which the files hold none.
        async fn list_plan_objects(client: &Client, plan: &mut PlanObjects) -> Result<(), CliError> {
            $(list_if_served(client, &mut plan.$field).await?;)+
            Ok(())
        }
    };
}

setu_core::for_each_plan_kind!(list_plan_objects);
