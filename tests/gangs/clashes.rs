//! Another check directs the pods elsewhere than Setu does. Kueue finds the clash only when it starts the pods, and then
//! ends the Workload as failed, so Setu must not say Ready.

use crate::world::in_virtual_time;
use setu::policy::PolicyFile;
use setu::sim::cluster::SimCluster;
use setu::sim::embedded::EmbeddedTheatre;
use setu::sim::invariants::InvariantChecker;
use setu::sim::scenario::{self, ScenarioWorld};
use setu_clock::Clock;

/// The nodes of a gang come up, and another check has not answered yet.
const BEFORE: &str = r#"
title: Another check sends the pods of a gang elsewhere while its nodes come up
weather: [{registrationDelay: 10s}]
steps:
- apply:
  - apiVersion: kueue.x-k8s.io/v1beta2
    kind: AdmissionCheck
    metadata: {name: "${id}-other"}
    spec: {controllerName: e2e.setu/nobody}
- patch: {kind: ClusterQueue, name: "${id}", patch: {spec: {admissionChecksStrategy: {admissionChecks: [{name: "${id}"}, {name: "${id}-other"}]}}}}
- activate: "${id}-other"
- submit: {name: train, pods: 2, gpus: 1, runFor: 3s}
- until: {job: train, state: WaitingReady, claims: 2}
"#;

const ANOTHER_GANG: &str = r#"
- answer:
    name: train
    check: "${id}-other"
    verdict: Ready
    podSetUpdates: [{name: main, nodeSelector: {setu.kueue.x-k8s.io/gang: "${id}"}}]
- until: {job: train, verdict: Pending, message: "nodeSelector setu.kueue.x-k8s.io/gang of pod set main is ${id} in check ${id}-other", claims: 2}
- holds: {job: train, verdict: Pending, message: UpdatesClash, admitted: false, finished: false, claims: 2, within: 60}
# The updates of a Ready cannot change.
- answer: {name: train, check: "${id}-other", verdict: Pending}
- answer: {name: train, check: "${id}-other", verdict: Ready}
- until: {job: train, admitted: true, runningOnOwnNodes: 2}
- until: {job: train, finished: true, claims: 0}
"#;

/// The nodes come up in the cheapest zone, us-east-1a.
const ANOTHER_ZONE: &str = r#"
- answer:
    name: train
    check: "${id}-other"
    verdict: Ready
    podSetUpdates: [{name: main, nodeSelector: {topology.kubernetes.io/zone: us-east-1c}}]
- until: {job: train, admitted: true, runningOnOwnNodes: 2}
- until: {job: train, finished: true, claims: 0}
"#;

#[test]
fn a_gang_whose_pods_another_check_sends_elsewhere_is_not_reported_ready() {
    play(ANOTHER_GANG);
}

#[test]
fn nodes_are_made_anew_where_another_check_sends_the_pods() {
    play(ANOTHER_ZONE);
}

/// Plays what comes before, and then these steps.
fn play(steps: &str) {
    let text = format!("{}{}", BEFORE, steps.trim_start());
    let run = scenario::parse("clashes", &text).unwrap().remove(0);
    in_virtual_time(async {
        let clock = Clock::starting_at(crate::world::START.parse().unwrap());
        let cluster = SimCluster::start(1, &clock, &scenario::controller_name(&run), PolicyFile::default());
        let checker = InvariantChecker::default();
        cluster.server.observe(Box::new(checker.clone()));
        let mut world = ScenarioWorld::new(EmbeddedTheatre::new(cluster), &run).await.unwrap();
        scenario::play(&mut world, &run, None).await.unwrap();
        assert_eq!(checker.violations(), Vec::new());
    });
}
