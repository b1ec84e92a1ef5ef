//! What plans are made from, read from the caches or from the API server. Only a live read gives a gang up, refuses it,
//! ends it, or lets it through without nodes. An attempt whose time is over is the exception.

use super::admission_check;
use super::context::Context;
use super::plan_kinds::{PlanObjects, all};
use super::plans;
use crate::api::{Namespace, Workload};
use crate::cluster::joined::Joined;
use crate::effects::call;
use crate::error::Error;
use k8s_openapi::api::core::v1::LimitRange;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use std::sync::Arc;

/// The objects that mostly decide whether a gang has a plan.
#[derive(Clone, Debug)]
pub struct Grounds {
    /// The objects that all Workloads share.
    pub cluster: Arc<PlanObjects>,
    /// The LimitRanges of the Workload's namespace.
    pub limit_ranges: Vec<Arc<LimitRange>>,
    /// The namespace, if namespaces can be read.
    pub namespace: Option<Arc<Namespace>>,
}

impl Grounds {
    /// What the caches show for a Workload.
    pub fn cached(context: &Context, workload: &Workload) -> Self {
        let stores = &context.stores;
        let namespace = workload.namespace();
        let named = |name: &String| stores.namespaces.store.get(&ObjectRef::new(name));
        Self {
            cluster: Arc::new(stores.plan.objects()),
            limit_ranges: plans::limit_ranges(context, workload),
            namespace: namespace.as_ref().and_then(named),
        }
    }

    /// Reads all of it for the Workloads of a namespace, and reads the parameters of their check again.
    ///
    /// # Errors
    /// The first read that failed.
    pub async fn read(context: &Context, check: &str, namespace: &str) -> Result<Self, Error> {
        let grounds = &context.grounds;
        // Faults of the parameters are reported by the policy.
        let (cluster, of_namespace, _) = tokio::try_join!(
            grounds.of_cluster.read((), PlanObjects::read(&context.client)),
            grounds.of_namespaces.read(namespace.to_owned(), OfNamespace::read(context, namespace)),
            admission_check::refresh(context, check),
        )?;
        let OfNamespace { limit_ranges, namespace } = (*of_namespace).clone();
        Ok(Self { cluster, limit_ranges, namespace })
    }
}

/// Reads under way. Concurrent requests for the same objects share a read.
#[derive(Debug, Default)]
pub struct Reads {
    of_cluster: Joined<(), PlanObjects, Error>,
    of_namespaces: Joined<String, OfNamespace, Error>,
}

/// The objects that all Workloads of a namespace share.
#[derive(Clone, Debug)]
struct OfNamespace {
    limit_ranges: Vec<Arc<LimitRange>>,
    namespace: Option<Arc<Namespace>>,
}

impl OfNamespace {
    async fn read(context: &Context, name: &str) -> Result<Arc<Self>, Error> {
        let (limit_ranges, namespace) = tokio::try_join!(
            all("listing LimitRanges", Api::namespaced(context.client.clone(), name)),
            named(context, name),
        )?;
        Ok(Arc::new(Self { limit_ranges, namespace }))
    }
}

/// A namespace, if namespaces can be read.
async fn named(context: &Context, name: &str) -> Result<Option<Arc<Namespace>>, Error> {
    if !context.stores.namespaces.listed.is_done() {
        return Ok(None);
    }
    let api: Api<Namespace> = Api::all(context.client.clone());
    Ok(call("reading a Namespace", name, api.get_opt(name)).await?.map(Arc::new))
}
