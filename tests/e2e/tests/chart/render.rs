//! Renders the chart without a cluster: the output is compared with committed files, and wrong values are
//! refused.

use crate::helm::{EVERYTHING, HOST, SETS, chart, command, root, said, succeed, values};
use ::setu::policy::PolicyFile;
use serde::Deserialize as _;
use serde_json::Value;
use setu_e2e::HarnessLayout;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

/// The chart rendered with a set of values, without the long CRD.
fn rendered(file: Option<&str>, more: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut helm = command(folder.path());
    helm.args(["template", "setu"]).arg(chart()).args(["--namespace", "kueue-system"]);
    succeed(helm.args(values(file)).args(["--set", "crds.enabled=false"]).args(more))
}

/// The objects in a YAML text.
pub fn documents(text: &str) -> Vec<Value> {
    let all = serde_yaml::Deserializer::from_str(text).map(|d| Value::deserialize(d).unwrap());
    all.filter(|d| !d.is_null()).collect()
}

/// Compares the output with the committed file, or rewrites the file.
pub fn compare(path: &Path, made: &str) {
    if std::env::var_os("SETU_REGENERATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, made).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == made,
        "{} is out of date: look at the change that `just generate` makes",
        path.display()
    );
}

fn golden(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chart/golden").join(name)
}

#[test]
fn helm_lint_has_no_findings() {
    let folder = tempfile::tempdir().unwrap();
    for (_, file) in SETS.into_iter().chain([HOST]) {
        succeed(command(folder.path()).args(["lint", "--strict"]).arg(chart()).args(values(file)));
    }
}

#[test]
fn the_rendered_objects_match_the_golden_files() {
    for (name, file) in SETS.into_iter().chain([HOST]) {
        compare(&golden(&format!("{name}.yaml")), &rendered(file, &[]));
    }
}

#[test]
fn the_crd_is_rendered_unchanged_and_kept_on_uninstall() {
    let folder = tempfile::tempdir().unwrap();
    let mut helm = command(folder.path());
    let text = succeed(
        helm.args(["template", "setu"])
            .arg(chart())
            .args(values(None))
            .args(["--show-only", "templates/crds.yaml"]),
    );
    let mut crd = documents(&text).remove(0);
    let annotations = crd["metadata"]["annotations"].take();
    assert_eq!(annotations["helm.sh/resource-policy"], "keep");
    let from_code = std::fs::read_to_string(root().join("examples/setup/crds.yaml")).unwrap();
    assert_eq!(crd["spec"], documents(&from_code).remove(0)["spec"]);
}

/// Every role with its rules, one line per rule.
fn rights(text: &str) -> String {
    let list = |value: &Value| -> String {
        let items: Vec<&str> = value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        items.join(",")
    };
    let mut out = String::new();
    for role in documents(text).iter().filter(|d| d["kind"] == "ClusterRole" || d["kind"] == "Role") {
        let place = role["metadata"]["namespace"].as_str().unwrap_or("the cluster");
        writeln!(out, "{} in {place}", role["metadata"]["name"].as_str().unwrap()).unwrap();
        for rule in role["rules"].as_array().unwrap() {
            let named = if rule["resourceNames"].is_null() {
                String::new()
            } else {
                format!(" named {}", list(&rule["resourceNames"]))
            };
            let group = list(&rule["apiGroups"]);
            let group = if group.is_empty() { "core".to_owned() } else { group };
            writeln!(out, "  {group}: {}{named}: {}", list(&rule["resources"]), list(&rule["verbs"]))
                .unwrap();
        }
    }
    out
}

#[test]
fn the_rights_are_those_that_were_reviewed() {
    let mut all = String::new();
    for (name, file) in SETS {
        writeln!(all, "# {name}\n{}", rights(&rendered(file, &[]))).unwrap();
    }
    compare(&golden("rights.txt"), &all);
    for word in ["*", "secrets"] {
        assert!(!all.contains(word), "the rights contain {word}");
    }
    let verbs = all.lines().filter_map(|rule| rule.rsplit_once(": ")).flat_map(|(_, verbs)| verbs.split(','));
    for verb in verbs {
        let is_strong = ["deletecollection", "escalate", "impersonate", "bind"].contains(&verb.trim());
        assert!(!is_strong, "the rights contain {verb}");
    }
    for rule in all.lines().filter(|rule| rule.contains("pods")) {
        assert_eq!(rule.trim(), "core: pods: list", "pods may be counted, nothing else");
    }
}

#[test]
fn a_permission_is_granted_only_with_its_feature() {
    let bare = rights(&rendered(
        None,
        &[
            "--set",
            "replicaCount=1,leaderElection.enabled=false,karpenter.enabled=false,uninstall.enabled=false,rbac.handBack=true,rbac.strayNodes=true",
        ],
    ));
    for word in [
        "leases",
        "nodeclaims",
        "nodepools",
        "uninstall",
        "finalizers",
        "topologies",
        "nodes: patch",
        "nodes: delete",
    ] {
        assert!(!bare.contains(word), "{word} in\n{bare}");
    }
    for flag in ["--tas-compat", "--tas-compat=true"] {
        let with = rights(&rendered(None, &["--set", &format!("controller.extraArgs={{{flag}}}")]));
        assert!(with.contains("topologies: get,list,watch"), "{with}");
    }
    // There may be older NodeClaims: the hook deletes them, and the policies allow Karpenter to terminate them.
    let off = rendered(None, &["--set", "karpenter.enabled=false"]);
    assert_eq!(rights(&off).matches("nodeclaims: list,patch,delete").count(), 1, "{}", rights(&off));
    let keeps = "generic-garbage-collector\",\"system:kube-controller-manager\",\"system:serviceaccount:kube-system:karpenter\"]";
    assert!(off.contains(keeps), "Karpenter is kept from its NodeClaims in\n{off}");
    assert!(
        documents(&rendered(None, &["--set", "rbac.create=false,uninstall.enabled=false"]))
            .iter()
            .all(|d| !d["kind"].as_str().unwrap().contains("Role"))
    );
}

/// The permissions of the ClusterRoles that fit, as group, resource and verb.
fn permissions(text: &str, fits: impl Fn(&str) -> bool) -> BTreeSet<[String; 3]> {
    let all = documents(text);
    let roles =
        all.iter().filter(|d| d["kind"] == "ClusterRole" && fits(d["metadata"]["name"].as_str().unwrap()));
    let list = |rule: &Value, key: &str| -> Vec<String> {
        rule[key].as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
    };
    let mut permitted = BTreeSet::new();
    for rule in roles.flat_map(|role| role["rules"].as_array().unwrap()) {
        for group in list(rule, "apiGroups") {
            for resource in list(rule, "resources") {
                let verbs = list(rule, "verbs").into_iter();
                permitted.extend(verbs.map(|verb| [group.clone(), resource.clone(), verb]));
            }
        }
    }
    permitted
}

#[test]
fn the_examples_of_roles_permit_what_the_chart_adds_for_a_feature() {
    let of_chart = |set: &str| permissions(&rendered(None, &["--set", set]), |name| name == "setu");
    let bare = of_chart("replicaCount=2");
    for (file, set) in [
        ("setu-hand-back", "rbac.handBack=true"),
        ("setu-stray-nodes", "rbac.strayNodes=true"),
        ("setu-provisioning-requests", "provisioningRequests.enabled=true"),
        ("setu-tas-compat", "controller.extraArgs={--tas-compat}"),
    ] {
        let example = std::fs::read_to_string(root().join(format!("examples/rbac/{file}.yaml"))).unwrap();
        let added: BTreeSet<_> = of_chart(set).difference(&bare).cloned().collect();
        assert!(!added.is_empty(), "{set} adds nothing");
        assert_eq!(permissions(&example, |_| true), added, "{file}.yaml and {set}");
    }
}

#[test]
fn wrong_values_are_refused_with_path_and_reason() {
    let folder = tempfile::tempdir().unwrap();
    for (set, words) in [
        ("replicaCount=two", "'/replicaCount': got string, want integer"),
        ("imge.tag=v1", "additional properties 'imge' not allowed"),
        ("image.repository=", "image.repository is empty"),
        ("nameOverride=Setu", "'/nameOverride'"),
        ("dnsPolicy=None", "'/dnsPolicy'"),
        ("podSecurityContext.runAsRoot=true", "additional properties 'runAsRoot' not allowed"),
        ("securityContext.privilegd=true", "additional properties 'privilegd' not allowed"),
        ("extraObjects[0]=1", "'/extraObjects/0'"),
        ("image.digest=latest", "'/image/digest'"),
        ("affinity.nodeAfinity=null", "additional properties 'nodeAfinity' not allowed"),
        ("image.pullPolicy=Sometimes", "'/image/pullPolicy'"),
        ("controller.extraArgs={run}", "'/controller/extraArgs/0'"),
        ("controller.extraVolumes[0].name=empty", "'/controller/extraVolumes/0'"),
        (
            "controller.extraVolumes[0].name=policy,controller.extraVolumes[0].emptyDir.medium=Memory",
            "/extraVolumes/0/name'",
        ),
        ("controller.extraVolumeMounts[0].name=ca", "missing property 'mountPath'"),
        ("leaderElection.leaseDuration=15", "'/leaderElection/leaseDuration'"),
        ("tracing.endpoint=collector:4317", "'/tracing/endpoint'"),
        ("replicaCount=0", "'/replicaCount': minimum: got 0, want 1"),
        ("policy.kind=Polizei", "'/policy/kind'"),
        ("policy.defaults.deadlines.lunch=4m", "'/policy/defaults/deadlines': additional properties 'lunch'"),
        ("policy.defaults.deadlines.launch=soon", "'/policy/defaults/deadlines/launch'"),
        ("policy.checks.gpu.custody.pinning=Maybe", "'/policy/checks/gpu/custody/pinning'"),
        ("policy.guards.gangNodes=-1", "'/policy/guards/gangNodes'"),
        ("policy.defaults.gates.capacity=false", "'/policy/defaults/gates/capacity'"),
        ("policy=policy.yaml", "--set-file policy=policy.yaml"),
        ("leaderElection.enabled=false", "set leaderElection.enabled=true"),
        ("leaderElection.leaseDuration=5s", "set leaderElection.leaseDuration to more than that"),
        (
            "policy.defaults.custody.release=HandBack",
            "policy.defaults.custody.release is HandBack, so set rbac.handBack=true",
        ),
        (
            "policy.checks.gpu.custody.release=Warm",
            "policy.checks.gpu.custody.release is Warm, so set rbac.handBack=true",
        ),
        ("admissionPolicies.keepers={,a}", "'/admissionPolicies/keepers/0'"),
        ("serviceMonitor.enabled=true,service.enabled=false", "needs service.enabled=true"),
        ("exampleQueues.enabled=true,admissionCheck.enabled=false", "needs admissionCheck.enabled=true"),
        (
            "controller.extraArgs={--log-level=debug}",
            "controller.extraArgs has --log-level, so set controller.logLevel",
        ),
        ("controller.extraArgs={--provisioning-requests}", "so set provisioningRequests.enabled instead"),
        ("fullnameOverride=my.setu", "my.setu cannot be the name of a Service, so set fullnameOverride"),
        ("fullnameOverride=2setu", "2setu cannot be the name of a Service"),
    ] {
        let output = command(folder.path())
            .args(["template"])
            .arg(chart())
            .args(values(None))
            .args(["--set", set])
            .output()
            .unwrap();
        let said = said(&output);
        assert!(!output.status.success() && said.contains(words), "{set}: {said}");
    }
}

/// The notes of an install with these values, without a cluster.
fn notes(set: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut helm = command(folder.path());
    helm.args(["install", "setu", "--namespace", "kueue-system"]).arg(chart()).args(values(None));
    helm.args(["--dry-run=client", "--set", set]);
    let output = succeed(&mut helm);
    output.split_once("\nNOTES:\n").unwrap().1.to_owned()
}

#[test]
fn the_notes_name_the_check_only_if_the_chart_creates_it() {
    let (with, without) = (notes("replicaCount=2"), notes("admissionCheck.enabled=false"));
    for words in
        ["AdmissionCheck is Active", "admissioncheck/karpenter-provision", "[{name: karpenter-provision}]"]
    {
        assert!(with.contains(words) && !without.contains(words), "{words}\n{with}\n{without}");
    }
    assert!(without.contains("the chart makes none"), "{without}");
    // Without a cluster, the NodePools are unknown.
    let queues = notes("exampleQueues.enabled=true");
    assert!(queues.contains("queue-name: setu-example") && !queues.contains("WARNING"), "{queues}");
}

#[test]
fn the_notes_list_who_may_change_nodeclaims() {
    for (set, who) in [
        ("replicaCount=2", "Only it, Setu and members of system:masters may"),
        ("admissionPolicies.keepers={a,b}", "Only it, Setu, a, b and members of system:masters may"),
        ("admissionPolicies.breakGlassGroups=null,admissionPolicies.keepers={a}", "Only it, Setu and a may"),
        ("admissionPolicies.breakGlassGroups=null", "Only it and Setu may"),
    ] {
        let notes = notes(set);
        assert!(notes.contains(who), "{set}: no {who:?} in\n{notes}");
    }
}

#[test]
fn the_notes_show_how_to_set_break_glass_groups_until_one_is_set() {
    let line = "--set 'admissionPolicies.breakGlassGroups={system:masters,GROUP}'";
    for (set, shown) in [
        ("replicaCount=2", true),
        ("admissionPolicies.breakGlassGroups=null", true),
        ("admissionPolicies.breakGlassGroups={system:masters,platform-admins}", false),
        ("admissionPolicies.enabled=false", false),
    ] {
        let notes = notes(set);
        assert_eq!(notes.contains(line), shown, "{set}:\n{notes}");
        for upgrade in notes.lines().filter(|line| line.contains("helm upgrade")) {
            assert!(upgrade.contains(" -n kueue-system "), "{upgrade}");
        }
    }
}

#[test]
fn replicas_and_hook_avoid_karpenter_nodes_by_default() {
    let pods = |set: &str| -> Vec<Value> {
        let all = documents(&rendered(None, &["--set", set]));
        let own = all.into_iter().filter(|d| d["kind"] == "Deployment" || d["kind"] == "Job");
        own.map(|d| d["spec"]["template"]["spec"].clone()).collect()
    };
    let by_default = pods("replicaCount=2");
    assert_eq!(by_default.len(), 2);
    for pod in by_default {
        assert_eq!(pod["priorityClassName"], "system-cluster-critical");
        let affinity = pod["affinity"].to_string();
        assert!(
            affinity.contains(r#"{"key":"karpenter.sh/nodepool","operator":"DoesNotExist"}"#),
            "{affinity}"
        );
    }
    for pod in pods("affinity.nodeAffinity=null,priorityClassName=") {
        assert!(pod["affinity"].is_null() && pod["priorityClassName"].is_null(), "{pod}");
    }
    let own = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]";
    for pod in pods(&format!("{own}.key=own,{own}.operator=Exists")) {
        let affinity = pod["affinity"].to_string();
        assert!(affinity.contains("own") && !affinity.contains("karpenter.sh/nodepool"), "{affinity}");
    }
}

#[test]
fn custom_name_and_host_network_apply_to_every_pod() {
    let all = documents(&rendered(HOST.1, &[]));
    let of = |kind: &str| all.iter().find(|d| d["kind"] == kind).unwrap();
    for pod in [of("Deployment"), of("Job")] {
        assert_eq!(
            pod["metadata"]["name"].as_str().unwrap().trim_end_matches("-uninstall"),
            "setu-provisioner"
        );
        let spec = &pod["spec"]["template"]["spec"];
        assert_eq!(
            (&spec["hostNetwork"], &spec["dnsPolicy"]),
            (&true.into(), &"ClusterFirstWithHostNet".into())
        );
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert!(spec["securityContext"]["runAsUser"].is_null(), "{spec}");
    }
    let labels = &of("Deployment")["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/name"], "provisioner");
    assert_eq!(of("Service")["spec"]["selector"]["app.kubernetes.io/name"], "provisioner");
    let pod = &documents(&rendered(HOST.1, &["--set", "dnsPolicy=Default,fullnameOverride=own"]))[..];
    let deployment = pod.iter().find(|d| d["kind"] == "Deployment").unwrap();
    assert_eq!(deployment["metadata"]["name"], "own");
    assert_eq!(deployment["spec"]["template"]["spec"]["dnsPolicy"], "Default");
}

#[test]
fn extra_objects_are_rendered_from_values_and_from_text() {
    let all = documents(&rendered(EVERYTHING, &[]));
    for name in ["setu-extra", "setu-text"] {
        let map = all.iter().find(|d| d["metadata"]["name"] == name).unwrap();
        assert_eq!(
            (&map["kind"], &map["metadata"]["namespace"]),
            (&"ConfigMap".into(), &"kueue-system".into())
        );
    }
}

#[test]
fn a_version_with_a_digest_behind_it_is_a_valid_label() {
    let folder = tempfile::tempdir().unwrap();
    let copied = folder.path().join("setu");
    let copy = std::process::Command::new("cp").arg("-r").arg(chart()).arg(&copied).status().unwrap();
    assert!(copy.success());
    let file = copied.join("Chart.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let digest = "a".repeat(64);
    std::fs::write(&file, text.replace("\nversion: ", &format!("\nversion: 0.1.0+{digest} # "))).unwrap();
    let mut helm = command(folder.path());
    helm.args(["template", "setu"])
        .arg(&copied)
        .args(values(EVERYTHING))
        .args(["--set", "crds.enabled=false"]);
    let all = documents(&succeed(&mut helm));
    let labels = all.iter().filter_map(|d| d["metadata"]["labels"]["helm.sh/chart"].as_str());
    let labels: Vec<&str> = labels.collect();
    assert!(labels.len() > 10, "{labels:?}");
    for label in labels {
        assert!(label.starts_with("setu-0.1.0_a") && label.len() <= 63, "{label}");
    }
}

#[test]
fn lists_of_the_admission_policies_may_be_null() {
    let lists =
        ["breakGlassGroups", "writers", "keepers"].map(|list| format!("admissionPolicies.{list}=null"));
    let text = rendered(None, &["--set", &lists.join(",")]);
    assert!(text.contains("exists(g, g in [])") && !text.contains(" in null"), "{text}");
}

#[test]
fn without_an_election_the_old_replica_stops_before_the_new_one_starts() {
    let strategy = |set: &str| {
        let all = documents(&rendered(None, &["--set", set]));
        all.iter().find(|d| d["kind"] == "Deployment").unwrap()["spec"]["strategy"]["type"].clone()
    };
    assert_eq!(strategy("replicaCount=1,leaderElection.enabled=false"), "Recreate");
    assert_eq!(strategy("replicaCount=1"), "RollingUpdate");
}

#[test]
fn names_of_digits_are_rendered_as_text() {
    let set = "exampleQueues.enabled=true,exampleQueues.nodePool=gpu";
    let text = rendered(
        None,
        &["--set", set, "--set-string", "exampleQueues.namespace=2024,exampleQueues.nodePool=7"],
    );
    let queue = documents(&text).into_iter().find(|d| d["kind"] == "LocalQueue").unwrap();
    assert_eq!(queue["metadata"]["namespace"], "2024");
    let flavor = documents(&text).into_iter().find(|d| d["kind"] == "ResourceFlavor").unwrap();
    assert_eq!(flavor["spec"]["nodeLabels"]["karpenter.sh/nodepool"], "7");
}

#[test]
fn roles_are_aggregated_only_if_the_values_enable_it() {
    let labels = |more: &[&str]| -> String {
        let roles = documents(&rendered(None, more)).into_iter().filter(|d| d["kind"] == "ClusterRole");
        roles.map(|role| role["metadata"]["labels"].to_string()).collect()
    };
    assert!(!labels(&[]).contains("aggregate-to"));
    let labels = labels(&["--set", "rbac.aggregate=true"]);
    for role in ["view", "admin"] {
        assert_eq!(
            labels.matches(&format!(r#""rbac.authorization.k8s.io/aggregate-to-{role}":"true""#)).count(),
            1
        );
    }
}

#[test]
fn every_policy_key_can_be_a_chart_value() {
    let text = std::fs::read_to_string(root().join("examples/policy.yaml")).unwrap();
    let policy = PolicyFile::parse(&text).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("values.yaml");
    std::fs::write(&file, serde_json::json!({"policy": policy}).to_string()).unwrap();
    let rendered = rendered(None, &["--values", &file.display().to_string()]);
    let map = documents(&rendered).into_iter().find(|d| d["kind"] == "ConfigMap").unwrap();
    let text = map["data"]["policy.yaml"].as_str().unwrap();
    assert_eq!(PolicyFile::parse(text).unwrap(), policy);
    // Helm accepts missing keys just as Setu does.
    let none = self::rendered(
        None,
        &["--set", "policy.defaults.retry=null,policy.defaults.custody=null,policy.guards.gangNodes=null"],
    );
    let map = documents(&none).into_iter().find(|d| d["kind"] == "ConfigMap").unwrap();
    assert_eq!(
        PolicyFile::parse(map["data"]["policy.yaml"].as_str().unwrap()).unwrap(),
        PolicyFile::default()
    );
}

#[test]
fn helm_test_exists_only_with_the_service() {
    let pods = |more: &[&str]| {
        let all = documents(&rendered(None, more));
        all.iter().filter(|d| d["kind"] == "Pod").count()
    };
    assert_eq!((pods(&[]), pods(&["--set", "service.enabled=false"])), (1, 0));
}

#[test]
fn an_alert_links_to_its_runbook_if_the_base_url_is_set() {
    let values_of = |annotation: &str, more: &[&str]| -> Vec<Option<String>> {
        let all = documents(&rendered(None, &[&["--set", "prometheusRule.enabled=true"], more].concat()));
        let rule = all.into_iter().find(|d| d["kind"] == "PrometheusRule").unwrap();
        let alerts = rule["spec"]["groups"][0]["rules"].as_array().unwrap().clone();
        alerts.iter().map(|a| a["annotations"][annotation].as_str().map(str::to_owned)).collect()
    };
    let begins = |all: &[Option<String>], with: &str| {
        all.iter().all(|text| text.as_ref().is_some_and(|text| text.starts_with(with)))
    };
    let none = |all: &[Option<String>]| all.iter().all(Option::is_none);
    let (links, names) = (values_of("runbook_url", &[]), values_of("runbook", &[]));
    assert!(links.len() > 7 && none(&links), "{links:?}");
    assert!(begins(&names, "docs/runbooks.md#setu"), "{names:?}");
    let base = ["--set", "prometheusRule.runbookBase=https://git.example.com/"];
    let (links, names) = (values_of("runbook_url", &base), values_of("runbook", &base));
    assert!(begins(&links, "https://git.example.com/docs/"), "{links:?}");
    assert!(none(&names), "{names:?}");
}

#[test]
fn a_text_policy_needs_the_same_permissions_as_values() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    let set = format!("policy={}", file.display());
    for (place, body) in [
        ("defaults", "defaults: {custody: {release: Warm}}"),
        ("checks.gpu", "checks: {cpu: {}, gpu: {custody: {release: HandBack}}}"),
    ] {
        let text = format!("apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n{body}\n");
        std::fs::write(&file, text).unwrap();
        let mut helm = command(folder.path());
        let output =
            helm.arg("template").arg(chart()).args(values(None)).args(["--set-file", &set]).output().unwrap();
        let said = said(&output);
        let refused = !output.status.success() && said.contains("set rbac.handBack=true");
        assert!(refused && said.contains(&format!("policy.{place}.custody.release")), "{said}");
        succeed(command(folder.path()).arg("template").arg(chart()).args(values(None)).args([
            "--set-file",
            &set,
            "--set",
            "rbac.handBack=true",
        ]));
    }
    // Helm accepts other errors in the text; Setu reports them with line and column.
    for body in ["defaults: {custody: Warm}", "defaults: [1]", "checks: x"] {
        std::fs::write(&file, format!("kind: Policy\n{body}\n")).unwrap();
        succeed(
            command(folder.path()).arg("template").arg(chart()).args(values(None)).args(["--set-file", &set]),
        );
    }
}

#[test]
fn an_empty_text_policy_is_the_default_one() {
    let of = |set: &str| {
        let rendered = rendered(None, &["--set", set]);
        let map = documents(&rendered).into_iter().find(|d| d["kind"] == "ConfigMap").unwrap();
        map["data"]["policy.yaml"].as_str().unwrap().to_owned()
    };
    assert!(of("policy=").contains("kind: Policy"));
    assert_eq!(of("policy="), of("policy=null"));
}

#[test]
fn a_node_pool_that_the_policy_names_must_be_an_allowed_one() {
    let folder = tempfile::tempdir().unwrap();
    let allowed = |sets: &str| {
        let sets = format!("admissionPolicies.allowedNodePools={{gpu,cpu}},{sets}");
        let mut helm = command(folder.path());
        let output =
            helm.arg("template").arg(chart()).args(values(None)).args(["--set", &sets]).output().unwrap();
        if output.status.success() { Ok(()) } else { Err(said(&output)) }
    };
    assert_eq!(allowed("policy.defaults.nodePoolName=gpu"), Ok(()));
    assert_eq!(allowed("policy.checks.c.tiers[0].name=a,policy.checks.c.tiers[0].nodePoolName=cpu"), Ok(()));
    let refused = allowed("policy.defaults.nodePoolName=other").unwrap_err();
    assert!(refused.contains("policy.defaults names NodePool other"), "{refused}");
    let tier = "policy.checks.c.tiers[0].name=a,policy.checks.c.tiers[0].nodePoolName=big";
    let refused = allowed(tier).unwrap_err();
    assert!(refused.contains("policy.checks.c names NodePool big"), "{refused}");
}

#[test]
fn a_text_policy_is_rendered_unchanged() {
    let text = "# comments stay\napiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\ndefaults: {gates: {capacity: Off}}\n";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, text).unwrap();
    let rendered = rendered(None, &["--set-file", &format!("policy={}", file.display())]);
    let map = documents(&rendered).into_iter().find(|d| d["kind"] == "ConfigMap").unwrap();
    assert_eq!(map["data"]["policy.yaml"], text);
}

/// The contents of the fenced blocks of this kind.
pub fn fenced<'t>(text: &'t str, kind: &str) -> Vec<&'t str> {
    let fence = format!("```{kind}\n");
    text.split(fence.as_str()).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[test]
fn the_install_commands_of_the_cloud_guides_render() {
    let bin = HarnessLayout::default().bin();
    for guide in ["eks", "gke", "aks"] {
        let text = std::fs::read_to_string(root().join(format!("docs/{guide}.md"))).unwrap();
        let install = fenced(&text, "sh").into_iter().find(|body| body.starts_with("helm install")).unwrap();
        let policy = fenced(&text, "yaml").into_iter().find(|body| body.contains("kind: Policy\n")).unwrap();
        let mut line = install.trim().replacen("helm install", "helm template", 1);
        // Appends the `--set` flags that the text mentions.
        for named in text.split("`--set ").skip(1).filter_map(|rest| rest.split('`').next()) {
            write!(line, " --set {named}").unwrap();
        }
        assert!(line.contains("breakGlassGroups"), "{guide}: {line}");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("policy.yaml"), policy).unwrap();
        std::os::unix::fs::symlink(root().join("charts"), folder.path().join("charts")).unwrap();
        // Builds helm if it is missing.
        drop(command(folder.path()));
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut bash = std::process::Command::new("bash");
        let rendered = succeed(bash.args(["-ec", &line]).current_dir(folder.path()).env("PATH", path));
        let all = documents(&rendered);
        let map = all.iter().find(|d| d["kind"] == "ConfigMap").unwrap();
        assert_eq!(map["data"]["policy.yaml"], policy, "{guide}");
        assert!(rendered.contains("[\"system:masters\",\""), "{guide}: two groups break the glass\n{line}");
    }
}

#[test]
fn a_collector_with_a_private_ca_renders_as_documented() {
    let text = std::fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let (_, traces) = text.split_once("\n## Traces\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("values.yaml");
    std::fs::write(&file, fenced(traces, "yaml")[0]).unwrap();
    let all = documents(&rendered(None, &["--values", &file.display().to_string()]));
    let pod = &all.iter().find(|d| d["kind"] == "Deployment").unwrap()["spec"]["template"]["spec"];
    let named = |list: &Value, name: &str| -> Value {
        list.as_array().unwrap().iter().find(|of| of["name"] == name).unwrap_or(&Value::Null).clone()
    };
    let container = &pod["containers"][0];
    let endpoint = named(&container["env"], "OTEL_EXPORTER_OTLP_ENDPOINT");
    assert!(endpoint["value"].as_str().unwrap().starts_with("https://"), "{endpoint}");
    let mount = named(&container["volumeMounts"], "collector");
    let certificate = named(&container["env"], "OTEL_EXPORTER_OTLP_CERTIFICATE");
    assert!(certificate["value"].as_str().unwrap().starts_with(mount["mountPath"].as_str().unwrap()));
    assert_eq!(named(&pod["volumes"], "collector")["configMap"]["name"], "collector-ca");
    assert_eq!(named(&container["volumeMounts"], "policy")["mountPath"], "/etc/setu");
}

/// The files in `manifests/` and the templates they come from.
const MANIFESTS: [(&str, &[&str]); 4] = [
    ("rbac.yaml", &["serviceaccount", "rbac"]),
    ("deployment.yaml", &["policy", "deployment", "service", "pdb", "networkpolicy"]),
    ("admissioncheck.yaml", &["admissioncheck"]),
    ("admission-policies.yaml", &["admission-policies"]),
];

/// Whether a line belongs to helm, which does not create these files.
fn belongs_to_helm(line: &str) -> bool {
    ["helm.sh/chart:", "app.kubernetes.io/managed-by: Helm", "# Source:"].iter().any(|w| line.contains(w))
}

#[test]
fn the_manifests_match_the_chart_without_helm_labels() {
    let folder = tempfile::tempdir().unwrap();
    for (file, templates) in MANIFESTS {
        let mut made = String::from("# Rendered from charts/setu by `just generate`.\n");
        for template in templates {
            let mut helm = command(folder.path());
            helm.args(["template", "setu"]).arg(chart()).args(values(None));
            helm.args(["--namespace", "kueue-system", "--no-hooks"]);
            helm.args([
                "--set",
                "uninstall.enabled=false",
                "--show-only",
                &format!("templates/{template}.yaml"),
            ]);
            let text = succeed(&mut helm);
            for line in text.lines().filter(|line| !line.is_empty() && !belongs_to_helm(line)) {
                writeln!(made, "{line}").unwrap();
            }
        }
        compare(&root().join("manifests").join(file), &made);
    }
}

#[test]
fn kustomize_lists_every_manifest() {
    let folder = root().join("manifests");
    let text = std::fs::read_to_string(folder.join("kustomization.yaml")).unwrap();
    let kustomization = documents(&text).remove(0);
    let mut named: Vec<&str> =
        kustomization["resources"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    named.sort_unstable();
    let mut there: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|f| f != "kustomization.yaml")
        .collect();
    there.sort();
    assert_eq!(named, there);
}

#[test]
fn the_idle_cost_alert_uses_the_threshold_in_the_values() {
    let expression = |more: &[&str]| {
        let all = documents(&rendered(None, &[&["--set", "prometheusRule.enabled=true"], more].concat()));
        let rule = all.into_iter().find(|d| d["kind"] == "PrometheusRule").unwrap();
        let alerts = rule["spec"]["groups"][0]["rules"].as_array().unwrap().clone();
        alerts.into_iter().find(|a| a["alert"] == "SetuIdleCost").unwrap()["expr"].clone()
    };
    let expected = |most: &str| format!("sum(setu_node_cost_per_hour{{state=~\"idle|warm\"}}) > {most}");
    assert_eq!(expression(&[]), expected("50"));
    assert_eq!(expression(&["--set", "prometheusRule.idleCostPerHour=75"]), expected("75"));
}
