//! Serves standalone ProvisioningRequests: creates their Workloads, answers their clients, and deletes the Workloads in the end.
//!
//! Rule: `gang::workload::standalone` decides. A Workload is only deleted if its name and annotation say that it was created for a
//! request, and after that request or the pods were read past the caches.

use super::context::Context;
use super::plans;
use super::summary::{BY_OWNER, BY_WORKLOAD};
use crate::api::provisioning_request::name_of_standalone;
use crate::api::{FrontEnd, NodeClaim, Pod, ProvisioningRequest, Workload};
use crate::cluster::decoded::Decoded;
use crate::effects::{claims, request, standalone};
use crate::error::{Class, Error};
use crate::gang::workload::request::{Details, RequestFailure, has_ended, name_as_workload, owner_of};
use crate::gang::workload::standalone::{
    Answer, BookedNodes, Booking, CheckKind, NO_QUEUE, PodUse, Priority, Requested, answer, are_equivalent,
    conditions, is_ending, priority_class, workload_for,
};
use crate::names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::runtime::reflector::ObjectRef;
use kube::{Client, ResourceExt};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// How often the pods of a request are read, and what it waits for that is not watched.
const POLL: Duration = Duration::from_secs(30);
/// How soon a request is reconciled whose Workload is not in the cache yet.
const CREATED: Duration = Duration::from_secs(1);

/// Serves the standalone request that is mirrored as this Workload, or ends this Workload if its standalone request is gone. Does
/// nothing for other Workloads. Returns when to come back.
///
/// # Errors
/// Something could not be read or written.
pub(super) async fn reconcile(context: &Context, workload: &Workload) -> Result<Option<Timestamp>, Error> {
    let wait = match workload.front_end() {
        FrontEnd::Workload => None,
        FrontEnd::ProvisioningRequest => serve(context, workload).await?,
        FrontEnd::StandaloneRequest => end_without_request(context, workload).await?,
    };
    Ok(wait.and_then(|wait| context.now().checked_add(wait).ok()))
}

/// Serves the standalone request that is mirrored as this Workload; does nothing for any other.
async fn serve(context: &Context, mirror: &Workload) -> Result<Option<Duration>, Error> {
    let Some(request) = context.standalone_request(mirror) else { return Ok(None) };
    let served = Served { context, client: context.client_for(mirror), mirror, request: &request };
    let workload = context.workload_of(&request);
    if has_ended(request.conditions()) {
        served.delete(workload.as_deref()).await?;
        return Ok(None);
    }
    if workload.is_none() && !request.is_provisioned() {
        return served.create().await;
    }
    if workload.is_none() && served.has_workload().await? {
        return Ok(Some(POLL));
    }
    let kept = workload.as_deref().filter(|workload| workload.runs() && !is_ending(workload));
    let kind_of = |check: &str| context.kind_of(check);
    let answer = |nodes: &BookedNodes| answer(&request, workload.as_deref(), kind_of, nodes, context.now());
    let (mut nodes, failed) = served.nodes(kept, POLL).await?;
    let mut answered = answer(&nodes);
    if matches!(answered, Answer::Expired(_)) {
        // Pods may have come since they were listed.
        nodes = served.nodes(kept, Duration::ZERO).await?.0;
        answered = answer(&nodes);
    }
    served.report(&answered, &nodes).await?;
    if let Some(error) = failed {
        return Err(error);
    }
    match answered {
        Answer::Pending(_) | Answer::Provisioned => Ok(Some(POLL)),
        Answer::Failed(..) | Answer::Expired(_) | Answer::Revoked(_) => {
            served.delete(workload.as_deref()).await?;
            Ok(None)
        }
    }
}

/// Deletes a Workload whose standalone request is gone, unless pods that name the request still run.
async fn end_without_request(context: &Context, workload: &Workload) -> Result<Option<Duration>, Error> {
    let Some((name, uid)) = workload.standalone_request() else { return Ok(None) };
    let namespace = workload.namespace().unwrap_or_default();
    let object = ObjectRef::<ProvisioningRequest>::new(name).within(&namespace);
    let stays = |request: &ProvisioningRequest| {
        let is_meant = request.metadata.uid.as_deref() == Some(uid) && request.is_standalone();
        is_meant && request.metadata.deletion_timestamp.is_none()
    };
    let is_known = context.stores.requests.objects.get(&object).is_some_and(|request| stays(&request));
    let is_deleted = workload.metadata.deletion_timestamp.is_some();
    if is_known || is_deleted || !context.options.provisioning_requests {
        return Ok(None);
    }
    if request::read(&context.client, &namespace, name).await?.is_some_and(|request| stays(&request)) {
        return Ok(Some(POLL));
    }
    if workload.runs() && !is_ending(workload) {
        let since =
            workload.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let requested = Requested { name, since, pods: workload.pods() };
        let booking = booking_limit(context, workload);
        for age in [POLL, Duration::ZERO] {
            let pods = pods(context, &namespace, age).await?;
            if PodUse::of(requested, &pods, booking, context.now()) == PodUse::Running {
                return Ok(Some(POLL));
            }
        }
    }
    delete(context.client_for(workload), workload).await?;
    Ok(None)
}

/// A standalone request that is reconciled.
struct Served<'a> {
    context: &'a Context,
    /// Writes only while this replica leads the request's shard.
    client: &'a Client,
    mirror: &'a Workload,
    request: &'a ProvisioningRequest,
}

impl Served<'_> {
    /// Creates the Workload of the request, or tells why it cannot.
    async fn create(&self) -> Result<Option<Duration>, Error> {
        let Some(queue) = self.request.labels().get(names::QUEUE).filter(|queue| !queue.is_empty()) else {
            self.report_without_nodes(&Answer::Failed(RequestFailure::Rejected, NO_QUEUE.to_owned())).await?;
            return Ok(None);
        };
        let workload = match self.workload(queue).await {
            Ok(Ok(workload)) => workload,
            Ok(Err(missing)) => return self.wait(missing).await,
            Err(error) if error.is_forbidden() => return self.wait(text(&error)).await,
            Err(error) => return Err(error),
        };
        let namespace = self.request.namespace().unwrap_or_default();
        match standalone::create(self.client, &namespace, workload).await {
            Err(error) if error.code() == Some(409) => self.await_name(&namespace).await,
            Err(error) if error.is_forbidden() => self.wait(text(&error)).await,
            Err(error) if matches!(error.code(), Some(400 | 422)) => {
                self.report_without_nodes(&Answer::Failed(RequestFailure::Rejected, text(&error))).await?;
                Ok(None)
            }
            created => created.map(|()| Some(POLL)),
        }
    }

    /// The Workload to create, or which object it needs that does not exist.
    async fn workload(&self, queue: &str) -> Result<Result<Value, String>, Error> {
        let client = &self.context.client;
        let mut priority = None;
        if let Some(class) = priority_class(self.request) {
            let Some(value) = standalone::priority(client, class).await? else {
                return Ok(Err(format!("WorkloadPriorityClass {class} does not exist")));
            };
            priority = Some(Priority { class, value });
        }
        let namespace = self.request.namespace().unwrap_or_default();
        let mut templates: Vec<PodTemplateSpec> = Vec::new();
        for set in &self.request.spec.pod_sets {
            let name = &set.pod_template_ref.name;
            let Some(template) = standalone::template(client, &namespace, name).await? else {
                return Ok(Err(format!("PodTemplate {name} does not exist in namespace {namespace}")));
            };
            templates.push(template);
        }
        Ok(Ok(workload_for(self.request, queue, priority, &templates)))
    }

    /// There is a Workload of the name already: the request's own, or another one that has to go first.
    async fn await_name(&self, namespace: &str) -> Result<Option<Duration>, Error> {
        let name = name_of_standalone(&self.request.name_any());
        match request::read_workload(&self.context.client, namespace, &name).await? {
            Some(Decoded(Ok(found))) if !found.is_for(self.request) => {
                self.wait(format!("Workload {name} exists already, and is not for this request")).await
            }
            Some(Decoded(Err(_))) => self.wait(format!("Workload {name} cannot be read")).await,
            _ => Ok(Some(CREATED)),
        }
    }

    /// Whether the API server has the Workload of the request, although the cache does not show it.
    async fn has_workload(&self) -> Result<bool, Error> {
        let namespace = self.request.namespace().unwrap_or_default();
        let name = name_of_standalone(&self.request.name_any());
        let found = request::read_workload(&self.context.client, &namespace, &name).await?;
        // One that cannot be read may be its own.
        Ok(found.is_some_and(|found| found.0.map_or(true, |found| found.is_for(self.request))))
    }

    /// Tells what the request waits for that is not watched.
    async fn wait(&self, why: String) -> Result<Option<Duration>, Error> {
        self.report_without_nodes(&Answer::Pending(why)).await?;
        Ok(Some(POLL))
    }

    /// The nodes of the Workload if it is admitted, and what could not be read or written of their use. The pods were listed at
    /// most this long ago.
    async fn nodes(
        &self,
        workload: Option<&Workload>,
        age: Duration,
    ) -> Result<(BookedNodes, Option<Error>), Error> {
        let Some(workload) = workload else { return Ok((BookedNodes::Unreported(Details::default()), None)) };
        let mut failed = None;
        if !workload.is("PodsReady") {
            let set = standalone::set_pods_ready(self.client, workload, self.context.now()).await;
            // After a conflict, the watch delivers the Workload as it is now.
            failed = set.err().filter(|error| error.class() != Class::Again);
        }
        if !self.request.is_provisioned() {
            return Ok((BookedNodes::Unreported(self.context.details_of(workload).await?), failed));
        }
        Ok(match self.booking(workload, age).await {
            Ok(booking) => (BookedNodes::Reported(Some(booking)), failed),
            Err(error) => (BookedNodes::Reported(None), Some(error)),
        })
    }

    /// How the client uses its nodes.
    async fn booking(&self, workload: &Workload, age: Duration) -> Result<Booking, Error> {
        let now = self.context.now();
        let name = self.request.name_any();
        let since = self.request.metadata.creation_timestamp.as_ref();
        let requested = Requested {
            name: &name,
            since: since.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            pods: self.request.pods(),
        };
        let listed = pods(self.context, &self.request.namespace().unwrap_or_default(), age).await?;
        let limit = booking_limit(self.context, workload);
        let pods = PodUse::of(requested, &listed, limit, now);
        let uid = self.mirror.metadata.uid.as_deref().unwrap_or_default();
        let used_at = self.context.gang_state.registry.note_use(uid, pods == PodUse::Running, now);
        Ok(Booking { pods, used_at, limit })
    }

    /// Writes an answer that no nodes belong to.
    async fn report_without_nodes(&self, answer: &Answer) -> Result<(), Error> {
        self.report(answer, &BookedNodes::Reported(None)).await
    }

    /// Writes an answer into the request, if it does not say so yet.
    async fn report(&self, answer: &Answer, nodes: &BookedNodes) -> Result<(), Error> {
        let next = conditions(answer, self.request.conditions(), self.context.now());
        if are_equivalent(&next, self.request.conditions()) {
            return Ok(());
        }
        let kept = self.request.status.as_ref().map(|status| status.provisioning_class_details.clone());
        let details = match (answer, nodes) {
            (Answer::Provisioned, BookedNodes::Unreported(details)) => details.in_status(),
            _ => kept.unwrap_or_default(),
        };
        let of = self.mirror.full_name();
        tracing::info!(provisioningrequest = of, ?answer, "answering a standalone ProvisioningRequest");
        let mut mirror = self.mirror.clone();
        if !matches!(answer, Answer::Pending(_) | Answer::Provisioned) {
            // An end does not depend on the rest of the request. Its client could put it off by changes, and hold the quota.
            mirror.metadata.resource_version = None;
        }
        let written = request::apply_status(self.client, &mirror, next, &details).await?;
        self.context.gang_state.registry.wrote(&written);
        Ok(())
    }

    async fn delete(&self, workload: Option<&Workload>) -> Result<(), Error> {
        match workload {
            Some(workload) => delete(self.client, workload).await,
            None => Ok(()),
        }
    }
}

async fn delete(client: &Client, workload: &Workload) -> Result<(), Error> {
    if workload.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    tracing::info!(
        workload = workload.full_name(),
        "deleting the Workload of a ProvisioningRequest that has ended"
    );
    standalone::delete(client, workload).await
}

/// The pods of a namespace that name a request, listed at most this long ago.
async fn pods(context: &Context, namespace: &str, age: Duration) -> Result<Arc<[Pod]>, Error> {
    context.pod_lists.read(&context.client, namespace, (age, context.now())).await
}

/// How long the nodes of an admitted Workload are kept without a pod. While its policy cannot be read, they are kept.
fn booking_limit(context: &Context, workload: &Workload) -> Duration {
    let checks = workload.checks_of_gangs();
    let of = |check: &str| plans::policy(context, workload, check);
    if let Some(check) = checks.iter().find(|check| context.is_ours(check)) {
        let current = of(check);
        return if current.fault.is_none() { current.policy.deadlines.admit.0 } else { Duration::MAX };
    }
    // Kueue's check has no parameters of Setu's. For a check that was deleted, the defaults of the policy apply.
    let of_kueue = checks.iter().find(|check| context.is_answered_by_requests(check));
    let policy =
        of_kueue.map_or_else(|| context.policies.settings().policy("", None), |check| of(check).policy);
    policy.deadlines.admit.0
}

/// An error with its causes.
fn text(error: &Error) -> String {
    error.in_full().to_string()
}

impl Context {
    /// The standalone request that is mirrored as this Workload.
    fn standalone_request(&self, mirror: &Workload) -> Option<Arc<ProvisioningRequest>> {
        let namespace = mirror.metadata.namespace.as_deref().unwrap_or_default();
        let object = ObjectRef::new(mirror.request_name()?).within(namespace);
        let found = self.stores.requests.objects.get(&object)?;
        let is_meant = found.is_standalone() && found.metadata.deletion_timestamp.is_none();
        (is_meant && found.metadata.resource_version == mirror.metadata.resource_version).then_some(found)
    }

    /// The Workload that was created for a standalone request.
    fn workload_of(&self, request: &ProvisioningRequest) -> Option<Arc<Workload>> {
        let (name, namespace) = (request.name_any(), request.namespace().unwrap_or_default());
        let object = ObjectRef::new(&name_of_standalone(&name)).within(&namespace);
        let found = self.stores.workloads.get(&object)?;
        found.is_for(request).then_some(found)
    }

    /// Details about the nodes of a request's Workload. If the cache shows none, they are read past it.
    async fn details_of(&self, workload: &Workload) -> Result<Details, Error> {
        let uid = workload.metadata.uid.as_deref().unwrap_or_default();
        let of = |index| self.stores.claims.those_of(index, uid);
        // If Kueue made another request for the Workload, they are that one's.
        let claims = of(BY_WORKLOAD).into_iter().chain(of(BY_OWNER));
        let claims: Vec<_> = claims.filter_map(|claim| self.stores.claims.get(&claim)).collect();
        let details = Details::of(claims.iter().map(|claim| &**claim));
        if details.nodes > 0 {
            return Ok(details);
        }
        let all = claims::of_setu(&self.client).await?;
        let is_own = |claim: &&NodeClaim| {
            claim.label(names::WORKLOAD_UID) == uid
                || owner_of(claim).is_some_and(|(_, _, owner)| owner == uid)
        };
        Ok(Details::of(all.iter().filter(is_own)))
    }

    /// The kind of a check: whether nodes come with it for a standalone request.
    fn kind_of(&self, check: &str) -> CheckKind {
        match self.stores.checks.get(&ObjectRef::new(check)) {
            None => CheckKind::Missing,
            Some(found) if self.answers(&found) || found.is_by_request() => CheckKind::OfSetu,
            Some(_) => CheckKind::Other,
        }
    }

    /// Wakes the other side of a standalone request: its mirror after its Workload, and its Workload after its mirror.
    pub(super) fn wake_standalone(&self, workload: &Workload) {
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        let name = match (workload.standalone_request(), workload.request_name()) {
            (Some((request, _)), _) => name_as_workload(request),
            (None, Some(request)) => name_of_standalone(request),
            (None, None) => return,
        };
        let object = ObjectRef::new(&name).within(namespace);
        if self.stores.workloads.entry(&object).is_some() {
            self.wake_workload(object);
        }
    }
}
