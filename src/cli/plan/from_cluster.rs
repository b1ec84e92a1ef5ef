//! Reads from a cluster the inputs of a plan that the files do not hold.
//!
//! Rule: a kind is not read from the cluster if the files hold objects of it.

use super::objects::{Objects, meant};
use crate::cli::CliError;
use crate::cli::cluster::{self, Connection, ListError};
use crate::cluster::decoded::Decoded;
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
            list("workloads", Api::namespaced(client.clone(), &namespace), &mut self.workloads).await?;
            self.workload = Some(meant(&self.workloads, name, &namespace)?);
        }
        if workload.is_none() && (self.has_any_namespace || connection.named_namespace().is_some()) {
            self.put_into(&namespace)?;
        }
        let of = self.workload.as_ref().and_then(|w| w.metadata.namespace.clone());
        list_plan_objects(&client, &mut self.plan).await?;
        list("nodeclaims", Api::all(client.clone()), &mut self.node_claims).await?;
        list("nodes", Api::all(client.clone()), &mut self.nodes).await?;
        list("localqueues", Api::all(client.clone()), &mut self.local_queues).await?;
        list("cohorts", Api::all(client.clone()), &mut self.cohorts).await?;
        list("admissionchecks", Api::all(client.clone()), &mut self.checks).await?;
        list("namespaces", Api::all(client.clone()), &mut self.namespaces).await?;
        list_if_served("provisioningparameters", &client, &mut self.parameters).await?;
        if let Some(workload) = &self.workload {
            let read = storage::read(&client, workload)
                .await
                .map_err(|e| CliError::Failed(e.in_full().to_string()))?;
            self.storage.add(read);
        }
        if let Some(namespace) = of {
            list("limitranges", Api::all(client.clone()), &mut self.limit_ranges).await?;
            list("workloads", Api::namespaced(client.clone(), &namespace), &mut self.workloads).await?;
        }
        Ok(())
    }
}

/// Reads a kind of which the files hold none. Objects that cannot be read are left out, as the controller does.
async fn list<K>(kind: &'static str, api: Api<Decoded<K>>, all: &mut Vec<Arc<K>>) -> Result<(), CliError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    if all.is_empty() {
        let found = cluster::list(kind, api, &ListParams::default()).await;
        all.extend(found.map_err(|e| CliError::Failed(e.to_string()))?.into_iter().map(Arc::new));
    }
    Ok(())
}

/// Lists a kind that the cluster may not serve. Then there are none.
async fn list_if_served<K>(kind: &'static str, client: &Client, all: &mut Vec<Arc<K>>) -> Result<(), CliError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    if all.is_empty() {
        match cluster::list(kind, Api::all(client.clone()), &ListParams::default()).await {
            Ok(found) => all.extend(found.into_iter().map(Arc::new)),
            Err(ListError::NotServed(..)) => {}
            Err(error) => return Err(CliError::Failed(error.to_string())),
        }
    }
    Ok(())
}

macro_rules! list_plan_objects {
    ($($field:ident: $kind:ty, $resource:literal, $plural:literal, $limitation:expr, $matters:ident, $counted:ident;)+) => {
        /// Reads the kinds of which the files hold none.
        async fn list_plan_objects(client: &Client, plan: &mut PlanObjects) -> Result<(), CliError> {
            $(list_if_served($resource, client, &mut plan.$field).await?;)+
            Ok(())
        }
    };
}

setu_core::for_each_plan_kind!(list_plan_objects);
