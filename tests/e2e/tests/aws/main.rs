//! Gangs on Karpenter's AWS provider, in front of a cloud that fails as EC2 does. Each scenario ends with an audit
//! against the cloud's list of instances. Scenarios run one after the other, because they count calls and set the
//! cloud's faults. The ignored ones make up the long form.

#![allow(clippy::indexing_slicing, reason = "a test may panic")]
#![allow(dead_code, missing_docs, reason = "the world is shared with the scenarios, which use all of it")]

mod attempts;
mod catalogue;
mod devices;
mod faults;
mod files;
mod guide;
mod kills;
mod launches;
mod node_class;
#[path = "../scenarios/own_world.rs"]
mod own_world;
mod plain;
mod play;
#[path = "../scenarios/real.rs"]
mod real;
mod reservations;
mod rights;
#[path = "../scenarios/setu.rs"]
mod setu;
mod shortages;

use anyhow::Result;
use futures::FutureExt as _;
use futures::future::{self, LocalBoxFuture};
use kills::Victim;
use libtest_mimic::{Arguments, Failed, Trial};
use node_class::Lack;
use play::{Stage, TooSlow};
use reservations::Quota;
use setu_e2e::aws::{Ec2Market, FleetRefusal};
use setu_e2e::{Stack, StackJobKinds, StackOptions, StackProvider, titles};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use tokio::runtime::{Handle, Runtime};

type Act = for<'a> fn(&'a Stage) -> LocalBoxFuture<'a, Result<()>>;

/// When a scenario runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// In every run.
    Short,
    /// Only when ignored tests are requested.
    Long,
    /// Only when part of its title is requested, because it measures.
    Measure,
}

/// The maximum number of times to run a scenario.
const PLAYS: usize = 3;

const SPOT_FIRST: [Ec2Market; 2] = [Ec2Market::Spot, Ec2Market::OnDemand];
const ON_DEMAND_FIRST: [Ec2Market; 2] = [Ec2Market::OnDemand, Ec2Market::Spot];

/// No scenario requests what ran out in an earlier one; see [`play::Play::start`].
const SCENARIOS: [(&str, Form, Act); 55] = [
    ("8 machines: one launch template, few fleets", Form::Short, |s| {
        launches::few_calls(s, 8, "g5.xlarge").boxed_local()
    }),
    ("room for 7 of 8: everything is taken back", Form::Short, |s| {
        shortages::one_short(s, 8, "g5.2xlarge").boxed_local()
    }),
    ("Karpenter killed amid a launch", Form::Short, |s| {
        kills::killed(s, Victim::Karpenter, "g5.4xlarge").boxed_local()
    }),
    ("the first gang of the EKS guide", Form::Long, |s| guide::first_gang(s).boxed_local()),
    ("the catalogue says what the provider says", Form::Long, |s| catalogue::agrees(s).boxed_local()),
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
        shortages::terms_out(s, SPOT_FIRST, FleetRefusal::InsufficientInstanceCapacity, "g4dn.2xlarge")
            .boxed_local()
    }),
    ("no spot: the quota of instances", Form::Long, |s| {
        shortages::terms_out(s, SPOT_FIRST, FleetRefusal::MaxSpotInstanceCountExceeded, "g4dn.4xlarge")
            .boxed_local()
    }),
    ("nothing on demand: the quota of vCPUs", Form::Long, |s| {
        shortages::terms_out(s, ON_DEMAND_FIRST, FleetRefusal::VcpuLimitExceeded, "g5.16xlarge").boxed_local()
    }),
    ("no spot: the fleet's own word for it", Form::Long, |s| {
        shortages::terms_out(s, SPOT_FIRST, FleetRefusal::UnfulfillableCapacity, "g6e.4xlarge").boxed_local()
    }),
    ("taken back before EC2 tells of it", Form::Long, |s| {
        shortages::taken_back_unseen(s, "g6e.8xlarge").boxed_local()
    }),
    ("room for 63 of 64: everything is taken back", Form::Long, |s| {
        shortages::one_short(s, 64, "g4dn.2xlarge").boxed_local()
    }),
    ("room for 63 of 64 in a zone: the same few calls in another", Form::Long, |s| {
        shortages::zone_out(s, 64, "g4dn.8xlarge").boxed_local()
    }),
    ("room for 31 of 32 in a zone: the same few calls in another", Form::Long, |s| {
        shortages::zone_out(s, 32, "g5.8xlarge").boxed_local()
    }),
    ("room for 7 of 8 in a zone: the same few calls in another", Form::Short, |s| {
        shortages::zone_out(s, 8, "g4dn.16xlarge").boxed_local()
    }),
    ("an EC2NodeClass without a subnet", Form::Long, |s| {
        node_class::not_ready(s, Lack::Subnet, "g6.xlarge").boxed_local()
    }),
    ("an EC2NodeClass without an image", Form::Long, |s| {
        node_class::not_ready(s, Lack::Image, "g6.xlarge").boxed_local()
    }),
    ("an EC2NodeClass whose role is not there", Form::Long, |s| {
        node_class::not_ready(s, Lack::Role, "g6.xlarge").boxed_local()
    }),
    ("an EC2NodeClass whose instance profile is not there", Form::Long, |s| {
        node_class::not_ready(s, Lack::Profile, "g6.xlarge").boxed_local()
    }),
    ("a capacity reservation with room for half", Form::Long, |s| {
        reservations::half(s, "g6e.16xlarge").boxed_local()
    }),
    ("a capacity reservation with less room than the policy says", Form::Long, |s| {
        reservations::less_than_said(s, "g6e.16xlarge").boxed_local()
    }),
    ("a capacity reservation that EC2 refuses: the gang is bought on demand", Form::Long, |s| {
        reservations::refused(s, FleetRefusal::InsufficientInstanceCapacity, "g6e.16xlarge").boxed_local()
    }),
    ("the only capacity reservation, which EC2 refuses: the gang waits for it", Form::Long, |s| {
        let why = FleetRefusal::ReservationCapacityExceeded;
        reservations::refused_and_waited_for(s, why, "g6e.16xlarge").boxed_local()
    }),
    ("a capacity reservation that another gang gives back", Form::Long, |s| {
        reservations::given_back(s, "g6e.16xlarge").boxed_local()
    }),
    ("a Capacity Block that has not begun", Form::Long, |s| {
        reservations::block_opens(s, Quota::Held, "g6e.16xlarge").boxed_local()
    }),
    ("a Capacity Block that begins after the gang's deadline", Form::Long, |s| {
        reservations::block_opens(s, Quota::GivenBack, "g6e.16xlarge").boxed_local()
    }),
    ("a Capacity Block that ends before the gang may have", Form::Long, |s| {
        reservations::block_too_short(s, "g6e.16xlarge").boxed_local()
    }),
    ("throttled launches", Form::Long, |s| faults::throttled(s, 64, "g6.2xlarge").boxed_local()),
    ("a launch that is throttled for longer than the provider tries", Form::Long, |s| {
        faults::throttled_out(s, "g6.2xlarge").boxed_local()
    }),
    ("a fleet whose launches are throttled", Form::Long, |s| {
        faults::launches_throttled(s, "g6.2xlarge").boxed_local()
    }),
    ("throttled ends", Form::Long, |s| faults::ends_throttled(s, "g6e.4xlarge").boxed_local()),
    ("weather that EC2 does not have", Form::Short, |s| {
        future::ready(faults::no_such_weather(s)).boxed_local()
    }),
    ("lost answers", Form::Long, |s| faults::answers_lost(s, 1, "g6.4xlarge").boxed_local()),
    ("lost answers, of a gang", Form::Long, |s| faults::answers_lost(s, 4, "g6.4xlarge").boxed_local()),
    ("a lost answer about a launch template", Form::Long, |s| {
        faults::template_lost(s, "g6.4xlarge").boxed_local()
    }),
    ("instances that EC2 does not list at first", Form::Long, |s| {
        faults::listed_late(s, "g6.4xlarge").boxed_local()
    }),
    ("an answer that comes after the launch was given up", Form::Long, |s| {
        faults::answered_late(s, "g6.16xlarge").boxed_local()
    }),
    ("a machine that never registers", Form::Long, |s| faults::no_node(s, "g6e.2xlarge").boxed_local()),
    ("Setu killed amid a launch", Form::Long, |s| kills::killed(s, Victim::Setu, "g6.8xlarge").boxed_local()),
    ("the leader killed amid a launch", Form::Long, |s| kills::leader_killed(s, "g6.8xlarge").boxed_local()),
    ("Setu killed after each of its writes", Form::Long, |s| kills::setu_after_each_write(s).boxed_local()),
    ("Karpenter killed after each of its fleets", Form::Long, |s| {
        kills::karpenter_after_each_fleet(s).boxed_local()
    }),
    ("machines that die", Form::Long, |s| faults::machines_die(s, "g6.16xlarge").boxed_local()),
    ("a spot interruption", Form::Long, |s| faults::interrupted(s, "g6e.xlarge").boxed_local()),
    ("a spot interruption before the gang is ready", Form::Long, |s| {
        faults::interrupted_early(s, "g6e.2xlarge").boxed_local()
    }),
    ("a GPU that never comes", Form::Long, |s| faults::no_gpu(s, "g6e.2xlarge").boxed_local()),
    ("pods with a GPU and an EFA interface", Form::Long, |s| devices::efa(s, "g6.8xlarge").boxed_local()),
    ("pods with Neuron devices", Form::Long, |s| devices::neuron(s, "inf2", "inf2.xlarge").boxed_local()),
    ("256 machines, measured", Form::Measure, |s| launches::measured(s, 256, "g5.xlarge").boxed_local()),
    ("beside plain Karpenter, measured", Form::Measure, |s| {
        plain::compare(s, &[(8, "g5.xlarge"), (32, "g5.2xlarge"), (64, "g5.4xlarge")]).boxed_local()
    }),
    ("beside plain Karpenter in a shortage, measured", Form::Measure, |s| {
        plain::compare_short(s, &[(8, "g5.xlarge"), (32, "g5.2xlarge"), (64, "g5.4xlarge")]).boxed_local()
    }),
    ("a launch template after its last use", Form::Long, |s| {
        launches::templates_go(s, "g6.xlarge").boxed_local()
    }),
];

fn main() -> Result<()> {
    let mut arguments = Arguments::from_args();
    if arguments.list {
        let titles = SCENARIOS.into_iter().map(|(title, form, _)| (title.to_owned(), form));
        let titles = titles.chain(files::PLAYED.iter().map(|name| (title_of(name), Form::Long)));
        let trials =
            titles.map(|(title, form)| Trial::test(title, || Ok(())).with_ignored_flag(form != Form::Short));
        libtest_mimic::run(&arguments, trials.collect()).exit();
    }
    files::all_are_named()?;
    arguments.test_threads = Some(1);
    let runtime = Runtime::new()?;
    let is_long = arguments.include_ignored || arguments.ignored;
    let job_kinds = if is_long { StackJobKinds::Sets } else { StackJobKinds::Kubernetes };
    let stage = Arc::new(runtime.block_on(stage(job_kinds))?);
    let asked_for = |title: &str| titles::asks_for(arguments.filter.as_deref(), title);
    let played = SCENARIOS.into_iter().filter(|(title, form, _)| *form != Form::Measure || asked_for(title));
    let trials =
        played.map(|(title, form, act)| trial(title.to_owned(), form, act, &stage, runtime.handle()));
    let files = files::PLAYED.iter().map(|name| file(name, &stage, runtime.handle()));
    let conclusion = libtest_mimic::run(&arguments, trials.chain(files).collect());
    if !conclusion.has_failed() {
        let cloud = stage.stack.cloud()?;
        let left = runtime.block_on(cloud.instances())?;
        anyhow::ensure!(left.is_empty(), "instances are left: {left:?}");
        runtime.block_on(launches::no_template_is_left(cloud))?;
    }
    // A stack that is dropped instead of stopped keeps its logs.
    let _runtime = runtime.enter();
    if let (false, Some(stage)) = (conclusion.has_failed(), Arc::into_inner(stage))
        && let Some(stack) = Arc::into_inner(stage.stack)
    {
        stack.stop();
    }
    conclusion.exit()
}

async fn stage(job_kinds: StackJobKinds) -> Result<Stage> {
    let options = StackOptions { provider: StackProvider::Aws, job_kinds, ..StackOptions::default() };
    let stack = Arc::new(Stack::start(options).await?);
    // The second file is for gangs whose nodes are kept or handed back.
    let rights = ["manifests/rbac.yaml", "examples/rbac/setu-hand-back.yaml"];
    let shared = own_world::prepare(&stack, &rights).await?;
    Ok(Stage { stack, shared, played: AtomicUsize::new(0) })
}

fn trial(
    title: String,
    form: Form,
    act: impl AsyncFn(&Stage) -> Result<()> + Send + 'static,
    stage: &Arc<Stage>,
    handle: &Handle,
) -> Trial {
    let (stage, handle) = (Arc::clone(stage), handle.clone());
    let played = move || {
        let outcome = handle.block_on(until_in_time(&stage, act));
        outcome.map_err(|error| Failed::from(format!("{error:#}")))
    };
    Trial::test(title, played).with_ignored_flag(form != Form::Short)
}

/// Repeats a scenario if only its time limits failed, up to [`PLAYS`] times. A shared machine can be slow at times.
async fn until_in_time(stage: &Stage, act: impl AsyncFn(&Stage) -> Result<()>) -> Result<()> {
    let mut before = 0;
    loop {
        stage.played.store(before, Relaxed);
        before += 1;
        match stage.stack.unless_broken(act(stage)).await {
            Err(error) if error.is::<TooSlow>() && before < PLAYS => {
                println!("played again: {error:#}");
                stage.restart_karpenter().await?;
            }
            outcome => return outcome,
        }
    }
}

fn file(name: &'static str, stage: &Arc<Stage>, handle: &Handle) -> Trial {
    trial(
        title_of(name),
        Form::Long,
        async move |stage: &Stage| files::file(stage, name).await,
        stage,
        handle,
    )
}

fn title_of(file: &str) -> String {
    format!("the scenario in {file}.yaml")
}
