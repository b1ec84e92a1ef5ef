//! Gangs on Karpenter's own AWS provider, in front of a cloud that fails as EC2 does. Each scenario ends with an audit
//! by the cloud's own list. They run one after the other, since they count calls and set the cloud's faults; those that
//! are ignored make it the long form.

#![allow(clippy::indexing_slicing, reason = "a test may panic")]
#![allow(dead_code, missing_docs, reason = "the world is shared with the scenarios, which use all of it")]

mod faults;
mod launches;
mod play;
#[path = "../scenarios/real.rs"]
mod real;
mod reservations;
#[path = "../scenarios/setu.rs"]
mod setu;
mod shortages;

use ::setu::api::ProvisioningParameters;
use anyhow::Result;
use faults::Victim;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use kube::CustomResourceExt as _;
use libtest_mimic::{Arguments, Failed, Trial};
use play::Stage;
use real::Shared;
use setu_e2e::aws::Refusal;
use setu_e2e::{KUEUE_NAMESPACE, Options, Provider, Stack, apply};
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::{Handle, Runtime};

type Act = for<'a> fn(&'a Stage) -> LocalBoxFuture<'a, Result<()>>;

/// When a scenario is played.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// At every run.
    Short,
    /// Where ignored tests are asked for.
    Long,
}

/// Each has an instance type of its own; see [`play::Play::start`].
const SCENARIOS: [(&str, Form, Act); 25] = [
    ("8 machines: one launch template, few fleets", Form::Short, |s| {
        launches::few_calls(s, 8, "g5.xlarge").boxed_local()
    }),
    ("room for 7 of 8: everything is taken back", Form::Short, |s| {
        shortages::one_short(s, 8, "g5.2xlarge").boxed_local()
    }),
    ("Karpenter killed amid a launch", Form::Short, |s| {
        faults::killed(s, Victim::Karpenter, "g5.4xlarge").boxed_local()
    }),
    ("a limit by devices on a NodePool by family", Form::Long, |s| {
        play::file(s, "limit-by-devices").boxed_local()
    }),
    ("a NodePool with machines of both kinds", Form::Long, |s| play::file(s, "mixed-pool").boxed_local()),
    ("a budget by list prices", Form::Long, |s| play::file(s, "budget-by-list-price").boxed_local()),
    ("sold out by Karpenter's metrics", Form::Long, |s| shortages::known_out(s, "g5.24xlarge").boxed_local()),
    ("32 machines: one launch template, few fleets", Form::Long, |s| {
        launches::few_calls(s, 32, "g5.8xlarge").boxed_local()
    }),
    ("64 machines: one launch template, few fleets", Form::Long, |s| {
        launches::few_calls(s, 64, "g5.16xlarge").boxed_local()
    }),
    ("room for 31 of 32: everything is taken back", Form::Long, |s| {
        shortages::one_short(s, 32, "g4dn.xlarge").boxed_local()
    }),
    ("no spot: insufficient capacity", Form::Long, |s| {
        shortages::spot_out(s, Refusal::InsufficientInstanceCapacity, "g4dn.2xlarge").boxed_local()
    }),
    ("no spot: the quota of instances", Form::Long, |s| {
        shortages::spot_out(s, Refusal::MaxSpotInstanceCountExceeded, "g4dn.4xlarge").boxed_local()
    }),
    ("no spot: the quota of vCPUs", Form::Long, |s| {
        shortages::spot_out(s, Refusal::VcpuLimitExceeded, "g4dn.8xlarge").boxed_local()
    }),
    ("no spot: the fleet's own word for it", Form::Long, |s| {
        shortages::spot_out(s, Refusal::UnfulfillableCapacity, "g6e.4xlarge").boxed_local()
    }),
    ("taken back before EC2 tells of it", Form::Long, |s| {
        shortages::taken_back_unseen(s, "g6e.8xlarge").boxed_local()
    }),
    ("room in another zone", Form::Long, |s| shortages::zone_out(s, "g4dn.16xlarge").boxed_local()),
    ("an EC2NodeClass that is not ready", Form::Long, |s| {
        shortages::node_class_not_ready(s, "g6.xlarge").boxed_local()
    }),
    ("a capacity reservation with room for half", Form::Long, |s| {
        reservations::half(s, "g6e.16xlarge").boxed_local()
    }),
    ("throttled launches", Form::Long, |s| faults::throttled(s, 32, "g6.2xlarge").boxed_local()),
    ("lost answers", Form::Long, |s| faults::answers_lost(s, "g6.4xlarge").boxed_local()),
    ("Setu killed amid a launch", Form::Long, |s| {
        faults::killed(s, Victim::Setu, "g6.8xlarge").boxed_local()
    }),
    ("machines that die", Form::Long, |s| faults::machines_die(s, "g6.16xlarge").boxed_local()),
    ("a spot interruption", Form::Long, |s| faults::interrupted(s, "g6e.xlarge").boxed_local()),
    ("a GPU that never comes", Form::Long, |s| faults::no_gpu(s, "g6e.2xlarge").boxed_local()),
    ("the launch templates in the end", Form::Long, |s| launches::templates_go(s).boxed_local()),
];

fn main() -> Result<()> {
    let mut arguments = Arguments::from_args();
    if arguments.list {
        let trials = SCENARIOS
            .into_iter()
            .map(|(title, form, _)| Trial::test(title, || Ok(())).with_ignored_flag(form == Form::Long));
        libtest_mimic::run(&arguments, trials.collect()).exit();
    }
    arguments.test_threads = Some(1);
    let runtime = Runtime::new()?;
    let stage = Arc::new(runtime.block_on(stage())?);
    let trials =
        SCENARIOS.into_iter().map(|(title, form, act)| trial(title, form, act, &stage, runtime.handle()));
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // A stack that is dropped instead of stopped keeps its logs.
    let _runtime = runtime.enter();
    if let (false, Some(stage)) = (conclusion.has_failed(), Arc::into_inner(stage))
        && let Some(stack) = Arc::into_inner(stage.stack)
    {
        stack.stop();
    }
    conclusion.exit()
}

async fn stage() -> Result<Stage> {
    let options = Options { provider: Provider::Aws, ..Options::default() };
    let stack = Arc::new(Stack::start(options).await?);
    let client = stack.client()?;
    apply::all(&client, vec![serde_json::to_value(ProvisioningParameters::crd())?]).await?;
    apply::path(&client, &Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/rbac.yaml")).await?;
    let kinds = Arc::new(apply::kinds(&client).await?);
    let kubeconfig = stack.kubeconfig_of(KUEUE_NAMESPACE, "setu").await?.into();
    Ok(Stage { stack, shared: Shared { kinds, kubeconfig } })
}

fn trial(title: &str, form: Form, act: Act, stage: &Arc<Stage>, handle: &Handle) -> Trial {
    let (stage, handle) = (Arc::clone(stage), handle.clone());
    let played = move || handle.block_on(act(&stage)).map_err(|error| Failed::from(format!("{error:#}")));
    Trial::test(title, played).with_ignored_flag(form == Form::Long)
}
