//! The proxy between Karpenter and moto: forwards calls, answers what moto does not implement, records every call and
//! injects the faults in the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::jiff::Timestamp;
use tokio::net::TcpListener;

use super::fleet;
use super::moto::{Instance, Moto};
use super::registrar::MachineBehaviour;
use super::reservations::{self, ACTIVE, Ec2Reservation};
use super::rules::{self, Ec2Market, Ec2Offering, Ec2Rule, FleetRefusal, Treatment};
use super::wire::{Form, action, efas, error, form, is_dry_run, list, service, xml};
use super::xml::retain;

/// The families that are sold by default. Karpenter checks each type for every NodeClaim. On a shared machine, the 900
/// types of a large region would take longer than everything else.
pub const FAMILIES: [&str; 6] = ["g4dn", "g5", "g6", "g6e", "m5", "c5"];

/// One call from the provider.
#[derive(Clone, Debug)]
pub struct ProviderCall {
    /// Service and action, named as in IAM policies: `ec2:CreateFleet`.
    pub action: String,
    /// Its parameters; empty if the service does not use the query protocol.
    pub form: Form,
    /// When it arrived.
    pub at: Instant,
    /// When its answer was ready, even if the answer was then lost.
    pub done: Option<Instant>,
    /// The fault in its answer, if it had one.
    pub fault: Option<CallFault>,
    /// Whether it was a dry run, which does nothing and has no faults.
    pub dry_run: bool,
}

/// A fault in the answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFault {
    /// It was RequestLimitExceeded.
    Throttled,
    /// It was lost.
    Lost,
    /// It refused all or a part of a fleet.
    Refused,
}

/// How an instance was launched.
#[derive(Clone, Debug)]
pub(super) struct InstanceLaunch {
    pub template: String,
    pub market: Ec2Market,
    /// The ID of its capacity reservation.
    pub reservation: Option<String>,
    /// The number of its EFA interfaces.
    pub efas: u64,
    pub at: Instant,
}

#[derive(Default)]
struct ProxyState {
    rules: Vec<Ec2Rule>,
    reservations: Vec<Ec2Reservation>,
    machines: MachineBehaviour,
    /// The families that are sold besides [`FAMILIES`].
    sold: Vec<&'static str>,
    calls: Vec<ProviderCall>,
    launches: BTreeMap<String, InstanceLaunch>,
    /// The answers of CreateFleet, by client token.
    answers: BTreeMap<String, String>,
}

/// The state that the proxy, the registrar and the tests share.
pub(super) struct ProxyShared {
    pub moto: Moto,
    /// Held for a whole CreateFleet, so that two calls do not take the same room.
    pub buying: tokio::sync::Mutex<()>,
    state: Mutex<ProxyState>,
}

impl ProxyShared {
    pub(super) fn new(moto: Moto) -> Self {
        Self { moto, buying: tokio::sync::Mutex::default(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_rules(&self, rules: Vec<Ec2Rule>) {
        self.state().rules = rules;
    }

    pub(super) fn set_reservations(&self, reservations: Vec<Ec2Reservation>) {
        self.state().reservations = reservations;
    }

    pub(super) fn reservations(&self) -> Vec<Ec2Reservation> {
        self.state().reservations.clone()
    }

    /// How many more instances a reservation accepts now. `of_block` is whether the launch is for a Capacity Block.
    pub(super) async fn room(&self, id: &str, of_block: bool) -> Result<usize> {
        let all = self.reservations();
        let now = Timestamp::now();
        let open = |one: &&Ec2Reservation| one.block == of_block && one.state(now) == ACTIVE;
        let running = self.moto.instances().await?;
        let is_in = |instance: &&Instance| {
            self.launch_of(&instance.id).is_some_and(|launch| launch.reservation.as_deref() == Some(id))
        };
        let found = all.iter().find(|reservation| reservation.id == id);
        let nodes = found.filter(open).map_or(0, |found| found.nodes);
        Ok(nodes.saturating_sub(running.iter().filter(is_in).count()))
    }

    pub(super) fn set_machines(&self, machines: MachineBehaviour) {
        self.state().machines = machines;
    }

    pub(super) fn machines(&self) -> MachineBehaviour {
        self.state().machines
    }

    pub(super) fn sell(&self, families: &[&'static str]) {
        self.state().sold = families.to_vec();
    }

    fn is_sold(&self, instance_type: &str) -> bool {
        let family = instance_type.split('.').next().unwrap_or_default();
        FAMILIES.contains(&family) || self.state().sold.contains(&family)
    }

    pub(super) fn calls(&self) -> Vec<ProviderCall> {
        self.state().calls.clone()
    }

    pub(super) async fn grant(
        &self,
        offering: Ec2Offering<'_>,
        wanted: usize,
    ) -> Result<(usize, Option<FleetRefusal>)> {
        let running = self.moto.instances().await?;
        let running = running.iter().filter_map(|instance| {
            Some((
                instance.instance_type.as_str(),
                instance.zone.as_str(),
                self.launch_of(&instance.id)?.market,
            ))
        });
        let running: Vec<Ec2Offering> = running.collect();
        Ok(rules::grant(&mut self.state().rules, &running, offering, wanted))
    }

    pub(super) fn launched(&self, ids: &[String], template: &str, market: Ec2Market) {
        let reservation = self.reservation(template);
        let efas = self.made(template, efas).unwrap_or_default();
        let (template, at) = (template.to_owned(), Instant::now());
        let launch = InstanceLaunch { template, market, reservation, efas, at };
        self.state().launches.extend(ids.iter().map(|id| (id.clone(), launch.clone())));
    }

    pub(super) fn launch_of(&self, id: &str) -> Option<InstanceLaunch> {
        self.state().launches.get(id).cloned()
    }

    pub(super) fn answered(&self, token: &str) -> Option<String> {
        self.state().answers.get(token).cloned()
    }

    pub(super) fn answer(&self, token: String, answer: String) {
        self.state().answers.insert(token, answer);
    }

    /// The user data of a launch template.
    pub(super) fn user_data(&self, template: &str) -> Option<String> {
        self.template_data(template, "UserData")
    }

    /// The ID of the capacity reservation that a launch template names.
    pub(super) fn reservation(&self, template: &str) -> Option<String> {
        self.template_data(
            template,
            "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId",
        )
    }

    /// Whether the instance profile that a launch template names exists.
    pub(super) async fn has_profile(&self, template: &str) -> Result<bool> {
        match self.template_data(template, "IamInstanceProfile.Name") {
            Some(name) => Ok(self.moto.instance_profiles().await?.contains(&name)),
            None => Ok(true),
        }
    }

    /// A parameter of a launch template, from the call that created it.
    fn template_data(&self, template: &str, key: &str) -> Option<String> {
        self.made(template, |form| form.get(&format!("LaunchTemplateData.{key}")).cloned())?
    }

    /// The value that `read` takes from the parameters of the call that created a launch template.
    fn made<T>(&self, template: &str, read: impl FnOnce(&Form) -> T) -> Option<T> {
        let state = self.state();
        let made = state.calls.iter().rev().find(|call| {
            call.action == "ec2:CreateLaunchTemplate"
                && call.form.get("LaunchTemplateName").is_some_and(|name| name == template)
        });
        made.map(|call| read(&call.form))
    }

    /// Records a call, and returns its index and its faults.
    fn arrived(&self, action: &str, form: &Form) -> (usize, Treatment) {
        let mut state = self.state();
        let (_, name) = action.split_once(':').unwrap_or_default();
        let dry_run = is_dry_run(form);
        let treatment = if dry_run { Treatment::default() } else { rules::treatment(&mut state.rules, name) };
        let fault = match treatment {
            Treatment { throttled: true, .. } => Some(CallFault::Throttled),
            Treatment { lost: true, .. } => Some(CallFault::Lost),
            Treatment { .. } => None,
        };
        let (action, form, at) = (action.to_owned(), form.clone(), Instant::now());
        state.calls.push(ProviderCall { action, form, at, done: None, fault, dry_run });
        (state.calls.len() - 1, treatment)
    }

    /// Changes what is recorded of a call.
    fn record(&self, call: usize, change: impl FnOnce(&mut ProviderCall)) {
        if let Some(call) = self.state().calls.get_mut(call) {
            change(call);
        }
    }

    /// All spot instances ever launched.
    fn spot(&self) -> Vec<String> {
        let state = self.state();
        let spot = state.launches.iter().filter(|(_, launch)| launch.market == Ec2Market::Spot);
        spot.map(|(id, _)| id.clone()).collect()
    }

    /// All instances ever launched into capacity reservations, each with the ID of its reservation.
    pub(super) fn reserved(&self) -> Vec<(String, String)> {
        let state = self.state();
        let reserved =
            state.launches.iter().filter_map(|(id, launch)| Some((id, launch.reservation.as_ref()?)));
        reserved.map(|(id, reservation)| (id.clone(), reservation.clone())).collect()
    }

    /// The instances that DescribeInstances does not return yet.
    fn hidden(&self) -> BTreeSet<String> {
        let state = self.state();
        let lag = rules::lag(&state.rules);
        let young = state.launches.iter().filter(|(_, launch)| launch.at.elapsed() < lag);
        young.map(|(id, _)| id.clone()).collect()
    }
}

/// Serves until it is aborted.
pub(super) async fn serve(listener: TcpListener, shared: Arc<ProxyShared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // For example out of file descriptors, which is transient.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            // EC2 executes a call even if the caller no longer waits for the answer.
            let service = service_fn(|request| {
                let answer = tokio::spawn(answer(Arc::clone(&shared), request));
                async { answer.await.context("a call was given up")? }
            });
            // If the answer fails, the provider sees a closed connection.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(shared: Arc<ProxyShared>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let shared = &shared;
    let body = body.collect().await.context("reading a call")?.to_bytes();
    let form = form(&head.headers, &body);
    let action = format!("{}:{}", service(&head.headers), action(&head, &form));
    let (call, treatment) = shared.arrived(&action, &form);
    tokio::time::sleep(treatment.delay).await;
    if treatment.throttled {
        return error(StatusCode::SERVICE_UNAVAILABLE, "RequestLimitExceeded", "Request limit exceeded.");
    }
    let answer = match action.as_str() {
        _ if is_dry_run(&form) => tried(shared, &form).await?,
        "ec2:CreateFleet" => {
            let answer = fleet::create(shared, &form).await?;
            if answer.contains("<errorCode>") {
                shared.record(call, |call| _ = call.fault.get_or_insert(CallFault::Refused));
            }
            xml(StatusCode::OK, answer)?
        }
        "ec2:DescribeCapacityReservations" => {
            let members = reservations::described(shared, &form).await?;
            list("DescribeCapacityReservations", "capacityReservationSet", &members)?
        }
        "ec2:DescribePlacementGroups" => list("DescribePlacementGroups", "placementGroupSet", "")?,
        "ec2:DescribeInstances" => {
            described(shared, Request::from_parts(head, Full::from(body)), &form).await?
        }
        "ec2:DescribeInstanceTypes" => {
            sold(shared, Request::from_parts(head, Full::from(body)), "instanceTypeSet").await?
        }
        "ec2:DescribeInstanceTypeOfferings" => {
            sold(shared, Request::from_parts(head, Full::from(body)), "instanceTypeOfferingSet").await?
        }
        _ => shared.moto.pass(Request::from_parts(head, Full::from(body))).await?.map(Full::from),
    };
    shared.record(call, |call| call.done = Some(Instant::now()));
    if treatment.lost {
        bail!("the answer to {action} is lost");
    }
    Ok(answer)
}

/// EC2's answer to a dry run: that the call would succeed, or the error in its launch template.
async fn tried(shared: &Arc<ProxyShared>, form: &Form) -> Result<Response<Full<Bytes>>> {
    let template = form.get("LaunchTemplate.LaunchTemplateName");
    if let Some(template) = template
        && !shared.has_profile(template).await?
    {
        let why = FleetRefusal::NoInstanceProfile;
        return error(StatusCode::BAD_REQUEST, why.code(), why.message());
    }
    let would = "Request would have succeeded, but DryRun flag is set.";
    error(StatusCode::PRECONDITION_FAILED, "DryRunOperation", would)
}

/// DescribeInstances without the hidden instances, and with security groups.
async fn described(
    shared: &Arc<ProxyShared>,
    request: Request<Full<Bytes>>,
    form: &Form,
) -> Result<Response<Full<Bytes>>> {
    let hidden = shared.hidden();
    let asked = form.iter().filter(|(key, _)| key.starts_with("InstanceId."));
    if let Some((_, id)) = asked.into_iter().find(|(_, id)| hidden.contains(*id)) {
        let what = format!("The instance ID '{id}' does not exist");
        return error(StatusCode::BAD_REQUEST, "InvalidInstanceID.NotFound", &what);
    }
    let answer = shared.moto.pass(request).await?;
    if !answer.status().is_success() {
        return Ok(answer.map(Full::from));
    }
    let mut text = with_groups(&String::from_utf8_lossy(answer.body()));
    for id in shared.spot() {
        // moto does not report which instances are spot.
        let known = format!("<instanceId>{id}</instanceId>");
        let request = format!("<spotInstanceRequestId>sir-{id}</spotInstanceRequestId>");
        text = text.replace(&known, &format!("{known}<instanceLifecycle>spot</instanceLifecycle>{request}"));
    }
    text = reservations::with_them(text, shared);
    xml(StatusCode::OK, retain(&text, "instancesSet", "instanceId", |id| !hidden.contains(id))?)
}

/// Copies the security groups of the network interface to the instance, where moto omits them. Without them Karpenter
/// considers every instance drifted. All instances here have the same groups.
fn with_groups(text: &str) -> String {
    let groups = text.split_once("<groupSet><item>").and_then(|(_, rest)| rest.split_once("</groupSet>"));
    match groups {
        Some((groups, _)) => text.replace("<groupSet/>", &format!("<groupSet><item>{groups}</groupSet>")),
        None => text.to_owned(),
    }
}

/// Forwards a call that lists instance types, and removes the types that are not sold here.
async fn sold(
    shared: &Arc<ProxyShared>,
    request: Request<Full<Bytes>>,
    list: &str,
) -> Result<Response<Full<Bytes>>> {
    let answer = shared.moto.pass(request).await?;
    if !answer.status().is_success() {
        return Ok(answer.map(Full::from));
    }
    let text = String::from_utf8_lossy(answer.body());
    xml(StatusCode::OK, retain(&text, list, "instanceType", |name| shared.is_sold(name))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_gets_the_groups_of_its_network_interface() {
        let text = "<i><n><groupSet><item>g</item></groupSet></n><groupSet/></i>";
        let whole = "<groupSet><item>g</item></groupSet>";
        assert_eq!(with_groups(text), format!("<i><n>{whole}</n>{whole}</i>"));
        assert_eq!(with_groups("<i/>"), "<i/>");
    }
}
