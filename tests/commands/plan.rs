//! `setu plan` from files only: what it prints, and its errors.

use serde_json::{Value, json};
use setu::api::Workload;
use setu::cli::find::matches;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output};

fn example(name: &str) -> String {
    format!("{}/examples/packing/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Plans the example's Job with these additional arguments.
fn plan(arguments: &[&str]) -> Output {
    let files = ["nodepools.yaml", "flavors.yaml"].map(example);
    Command::new(env!("CARGO_BIN_EXE_setu"))
        .args(["plan", "-f", &files[0], "-f", &files[1]])
        .args(arguments)
        .env("KUBECONFIG", "/nowhere/kubeconfig")
        .output()
        .unwrap()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The complete output of a failed command.
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn json(policy: &str) -> Value {
    let output = plan(&["-f", &example("job.yaml"), "--config", &example(policy), "-o", "json"]);
    serde_json::from_str(&printed(&output)).unwrap()
}

/// A file with this text. It is deleted when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("setu-plan-{}-{name}.yaml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The example's Job with one passage replaced.
fn changed(name: &str, from: &str, to: &str) -> Scratch {
    let text = std::fs::read_to_string(example("job.yaml")).unwrap();
    assert!(text.contains(from));
    Scratch::new(name, &text.replace(from, to))
}

#[test]
fn an_unreadable_metrics_page_is_reported_and_the_plan_is_still_printed() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/metrics", listener.local_addr().unwrap())
    };
    let job = example("job.yaml");
    let output = plan(&["-f", &job, "--config", &example("policy.yaml"), "--karpenter-metrics", &closed]);
    assert!(printed(&output).contains("Outcome   1 node: 1 from NodePool gpu-nodepool"));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains(&format!("reading Karpenter's metrics at {closed}: ")), "{message}");
    let wrong = plan(&["-f", &job, "--karpenter-metrics", "nonsense"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", String::from_utf8_lossy(&wrong.stderr));
}

#[test]
fn a_budget_refusal_names_the_packing_that_would_fit() {
    let head = "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n";
    let cheap = "{p4d.24xlarge: {on-demand: '5', spot: '5'}, p4de.24xlarge: {on-demand: '5', spot: '5'}}";
    let policy = format!(
        "{head}defaults: {{packing: {{mode: PerPod}}, gates: {{budget: {{maxHourlyCost: '10', prices: {cheap}}}}}}}\n"
    );
    let policy = Scratch::new("dear", &policy);
    let message = refused(&plan(&["-f", &example("job.yaml"), "--config", policy.path()]));
    assert!(message.contains("packing.mode Fill would take 1 node, at most 5 USD an hour"), "{message}");
}

#[test]
fn four_gpu_pods_take_one_node_in_fill_mode_and_four_with_per_pod() {
    let filled = json("policy.yaml");
    assert_eq!((filled["slots"].as_array().unwrap().len(), &filled["slots"][0]["nodes"]), (1, &1.into()));
    assert_eq!(filled["slots"][0]["pods"][0], "4×main");
    assert_eq!(filled["costPerHour"], "27.44705");
    let of = setu::plan::catalogue::of("karpenter.k8s.aws").unwrap().date();
    assert_eq!(filled["pricesFrom"], serde_json::json!([format!("the catalogue of {of}")]));
    assert_eq!(filled["slots"][0]["unused"]["nvidia.com/gpu"], 50);
    assert_eq!(json("per-pod.yaml")["slots"][0]["nodes"], 4);
}

#[test]
fn the_table_shows_slots_gates_and_every_tier() {
    let output = plan(&["-f", &example("job.yaml"), "--config", &example("policy.yaml")]);
    let table = printed(&output);
    for words in [
        "1 node: 1 from NodePool gpu-nodepool as p4d.24xlarge or 1 other type, tier spot, at most 27.45 USD an hour",
        "p4d.24xlarge, p4de.24xlarge",
        "packing.mode PerPod would take 4 nodes, 87.84 USD an hour instead of 21.96 to 27.45: more expensive",
        "Note: prices as known from the catalogue of ",
        "4×main",
        "capacity   allow",
        "readiness  unknown  NodePool gpu-nodepool has no status here",
        "quota      unknown  Kueue has not reported yet how much of cpu",
        "*  spot",
        "tier on-demand, at most 27.45 USD an hour",
        "packed into shape p4d.24xlarge as known from the catalogue of ",
    ] {
        assert!(table.contains(words), "{words}\n{table}");
    }
}

/// The output for the example's Job under this policy. `name` is the policy's file name.
fn under(name: &str, policy: &str) -> String {
    let files = ["job.yaml", "nodepools.yaml", "flavors.yaml"].map(example);
    let arguments: Vec<&str> = files.iter().flat_map(|file| ["-f", file]).collect();
    printed(&planned(name, policy, &arguments, &[]))
}

#[test]
fn an_oversized_shape_is_reported_as_by_policy_check() {
    let shapes = "defaults: {packing: {shapes: [{instanceType: p4d.24xlarge, allocatable: {cpu: 90, memory: 2000Gi, nvidia.com/gpu: 8}}]}}";
    let table = under("oversized", shapes);
    let words = "Note: packing.shapes[0].allocatable.memory: 2000Gi is more than the ";
    assert!(table.contains(words), "{table}");
}

#[test]
fn a_multiplier_of_zero_or_for_no_type_is_reported_as_by_policy_check() {
    let multiplier = "defaults: {gates: {budget: {multiplier: {p4d: '0', p55: '0.7'}}}}";
    let table = under("multiplier", multiplier);
    for words in ["p4d: 0 makes every price nothing, so that no budget is kept", "p55: the catalogue of "] {
        assert!(table.contains(&format!("Note: gates.budget.multiplier.{words}")), "{table}");
    }
}

#[test]
fn a_node_class_file_that_gives_nodes_too_little_is_reported() {
    let spec = "amiFamily: AL2023, kubelet: {maxPods: 3}, blockDeviceMappings: [{rootVolume: true, ebs: {volumeSize: 100Gi}}]";
    let class = format!("kind: EC2NodeClass\nmetadata: {{name: gpu}}\nspec: {{{spec}}}\n");
    let class = Scratch::new("node-class", &class);
    let job = changed("scratch", "cpu: \"8\"", "cpu: \"8\", ephemeral-storage: 200Gi");
    let pools = example("nodepools.yaml");
    let with = |job: &str| {
        printed(&planned("class", "defaults: {}", &["-f", job, "-f", &pools, "-f", class.path()], &[]))
    };
    let table = with(job.path());
    let settings = "Note: EC2NodeClass gpu states kubelet.maxPods, which Setu does not read";
    let disk =
        "200Gi ephemeral-storage, and the volume of EC2NodeClass gpu is 100Gi: Karpenter may launch nothing";
    for words in
        [settings.to_owned(), format!("Note: nodes of NodePool gpu-nodepool are asked for with {disk}")]
    {
        assert!(table.contains(&words), "{words}\n{table}");
    }
    let pods =
        "are asked for with 5 pods, and maxPods of EC2NodeClass gpu is 3: Karpenter may launch nothing";
    let table = with(&example("job.yaml"));
    assert!(table.contains(pods), "{table}");
}

#[test]
fn reserved_capacity_from_a_node_class_that_selects_no_reservation_is_reported() {
    let text = std::fs::read_to_string(example("nodepools.yaml")).unwrap();
    let pools = Scratch::new("reserved-pools", &text.replace("[on-demand, spot]", "[reserved]"));
    let with = |name: &str, spec: &str| {
        let class = format!("kind: EC2NodeClass\nmetadata: {{name: gpu}}\nspec: {{{spec}}}\n");
        let class = Scratch::new(name, &class);
        let files = ["-f", &example("job.yaml"), "-f", pools.path(), "-f", class.path()];
        printed(&planned(&format!("{name}-policy"), "defaults: {}", &files, &[]))
    };
    let note = "EC2NodeClass gpu selects no reservation: Karpenter launches nothing; state spec.capacityReservationSelectorTerms";
    assert!(with("selects-none", "amiFamily: AL2023").contains(note));
    let terms = "capacityReservationSelectorTerms: [{id: cr-1}]";
    assert!(!with("selects-one", terms).contains(note));
}

#[test]
fn printed_node_claims_are_valid_manifests() {
    let arguments = ["-f", &example("job.yaml"), "--config", &example("per-pod.yaml"), "--node-claims"];
    let text = printed(&plan(&arguments));
    let claims = text.split("---\n").filter(|part| !part.is_empty());
    let claims: Vec<setu::api::NodeClaim> = claims.map(|part| serde_yaml::from_str(part).unwrap()).collect();
    assert_eq!(claims.len(), 4);
    assert_eq!(claims[3].metadata.name.as_deref(), Some("setu-plan-3"));
    assert_eq!(claims[0].spec.resources.requests["nvidia.com/gpu"].0, "1");
    // A file does not contain the owner, and an API server refuses an owner without a UID.
    assert_eq!(claims[0].metadata.owner_references, None);
}

#[test]
fn an_impossible_gang_is_refused_with_a_helpful_message() {
    let huge = changed("huge", "cpu: \"8\"", "cpu: \"800\"");
    let odd = changed("odd", "cpu: \"8\"", "cpu: \"8\", example.com/fpga: 1");
    let torn = changed(
        "torn",
        "      restartPolicy: Never",
        "      restartPolicy: Never\n      nodeSelector: {topology.kubernetes.io/zone: us-east-1a}\n      affinity: {nodeAffinity: \
         {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: topology.kubernetes.io/zone, \
         operator: In, values: [us-east-1b]}]}]}}}",
    );
    let claims = changed(
        "dra",
        "      restartPolicy: Never",
        "      restartPolicy: Never\n      resourceClaims: [{name: gpu, resourceClaimTemplateName: two}]",
    );
    for (job, words) in [
        (&huge, "gpu has a nominal quota of 800 cpu and it requests 3200. Ask for less"),
        (&odd, "requests example.com/fpga, which no resource group of the ClusterQueue covers"),
        (&torn, "pod set main contradicts itself"),
        (&claims, "uses ResourceClaimTemplate two, and the policy states no devices; add an entry"),
    ] {
        let message = refused(&plan(&["-f", job.path(), "--config", &example("policy.yaml")]));
        assert!(message.contains(words), "{message}");
    }
    let arguments = ["-f", huge.path(), "--config", &example("policy.yaml"), "--flavor", "gpu"];
    let message = refused(&plan(&arguments));
    assert!(message.contains("TooLarge") && message.contains("has too little"), "{message}");
    assert_eq!(message.matches("has too little").count(), 1, "{message}");
}

#[test]
fn a_static_node_pool_and_one_over_its_limit_are_reported() {
    let pools = std::fs::read_to_string(example("nodepools.yaml")).unwrap();
    let fixed = Scratch::new("static", &pools.replace("limits: {nvidia.com/gpu: 64}", "replicas: 2"));
    let full = Scratch::new("full", &pools.replace("nvidia.com/gpu: 64", "nvidia.com/gpu: 4"));
    for (pools, words) in [
        (&fixed, "StaticNodePool: NodePool gpu-nodepool is static (spec.replicas)"),
        (&full, "has a limit of 4 nvidia.com/gpu"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_setu"))
            .args(["plan", "-f", pools.path(), "-f", &example("flavors.yaml"), "-f", &example("job.yaml")])
            .args(["--config", &example("policy.yaml")])
            .output()
            .unwrap();
        let message = refused(&output);
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn the_existing_nodes_of_a_gang_do_not_count_against_it() {
    let workload = serde_json::json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {"name": "w", "namespace": "default", "uid": "u1"},
        "spec": {"queueName": "team-a", "podSets": [{"name": "main", "count": 2, "template": {"spec": {"containers": [
            {"name": "main", "resources": {"limits": {"cpu": "2", "nvidia.com/gpu": "1"}}},
        ]}}}]},
    });
    let read: setu::api::Workload = serde_json::from_value(workload.clone()).unwrap();
    let gang_label = setu::gang::identity::gang_label(&read, setu::names::DEFAULT_CHECK);
    let claim = |name: &str, gang_label: &str, uid: &str| {
        serde_json::json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": name, "labels": {
                (setu::names::NODEPOOL): "gpu-nodepool", (setu::names::GANG): gang_label, (setu::names::WORKLOAD_UID): uid,
            }},
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
        })
    };
    let pools = std::fs::read_to_string(example("nodepools.yaml")).unwrap();
    let pools = Scratch::new("three", &pools.replace("nvidia.com/gpu: 64", "nodes: 3"));
    for (gang_label, fits) in [(gang_label.as_str(), true), ("another", false)] {
        let claims = [claim("c0", gang_label, "u1"), claim("c1", gang_label, "u1")];
        let text = [&workload, &claims[0], &claims[1]].map(ToString::to_string).join("\n---\n");
        let scratch = Scratch::new("gang", &text);
        let output = Command::new(env!("CARGO_BIN_EXE_setu"))
            .args(["plan", "-f", pools.path(), "-f", &example("flavors.yaml"), "-f", scratch.path()])
            .args(["--config", &example("per-pod.yaml")])
            .env("KUBECONFIG", "/nowhere/kubeconfig")
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            (output.status.success(), message.contains("2 in use and 2 more")),
            (fits, !fits),
            "{message}"
        );
    }
}

#[test]
fn limit_ranges_of_other_namespaces_do_not_count() {
    for (of, fits) in [("another", true), ("default", false)] {
        let range = format!(
            "apiVersion: v1\nkind: LimitRange\nmetadata: {{name: large, namespace: {of}}}\nspec:\n  \
             limits: [{{type: Container, defaultRequest: {{hugepages-2Mi: 9Ti}}}}]\n"
        );
        let range = Scratch::new("ranges", &range);
        let output = plan(&["-f", &example("job.yaml"), "-f", range.path()]);
        assert_eq!(output.status.success(), fits, "{of}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn wrong_input_is_reported_with_its_file_and_exit_code_two() {
    let broken = Scratch::new("broken", "kind: NodePool\nmetadata: {name: x}\nspec: 7\n");
    let torn = Scratch::new("yaml", "kind: [\n");
    let policy = example("policy.yaml");
    let job = example("job.yaml");
    for (arguments, words) in [
        (vec!["-f", "/nowhere.yaml"], "reading /nowhere.yaml"),
        (vec!["-f", broken.path()], "document 1: NodePool x cannot be read"),
        (vec!["-f", torn.path()], "document 1"),
        (vec!["-f", &policy], "give it with --config"),
        (vec!["-f", &job, "-f", &job], "more than one Workload"),
        (vec!["-f", &job, "--flavor", "none"], "there is no ResourceFlavor none"),
        (vec!["some-workload"], "give its manifest with -f"),
        (vec![], "nothing to plan for"),
    ] {
        let output = plan(&arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
        assert!(message.contains(words), "{message}");
    }
}

/// Plans with a policy file with this body, and with these arguments and variables.
fn planned(name: &str, policy: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let head = "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n";
    let policy = Scratch::new(name, &format!("{head}{policy}"));
    Command::new(env!("CARGO_BIN_EXE_setu"))
        .args(["plan", "--config", policy.path()])
        .args(arguments)
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

#[test]
fn flags_environment_and_annotations_have_the_same_effect_as_in_the_controller() {
    let [pools, flavors, job] = ["nodepools.yaml", "flavors.yaml", "job.yaml"].map(example);
    let text = std::fs::read_to_string(&pools).unwrap();
    let small = Scratch::new("small", &text.replace("nvidia.com/gpu: 64", "nvidia.com/gpu: 2"));
    let files = ["-f", small.path(), "-f", &flavors, "-f", &job];
    assert_eq!(planned("gates", "", &files, &[]).status.code(), Some(1), "the limit is kept");
    let loose: Vec<&str> = files.into_iter().chain(["--enforce-capacity=false"]).collect();
    printed(&planned("flags", "", &loose, &[]));
    printed(&planned("variables", "", &files, &[("SETU_ENFORCE_CAPACITY", "false")]));

    let asking = changed(
        "asking",
        "metadata:",
        "metadata:\n  annotations: {provreq.kueue.x-k8s.io/setu-zone: us-east-1b}",
    );
    let arguments = ["-f", &pools, "-f", &flavors, "-f", asking.path(), "--node-claims"];
    let open = "jobOverrides: {zone: {values: [us-east-1a, us-east-1b]}}";
    let claims = printed(&planned("open", open, &arguments, &[]));
    assert!(claims.contains("us-east-1b") && !claims.contains("us-east-1a"), "{claims}");
    let closed = planned("closed", "", &arguments, &[]);
    assert!(String::from_utf8_lossy(&closed.stderr).contains("setu-zone is ignored"), "it says so");
}

#[test]
fn whatever_makes_the_check_inactive_prevents_planning() {
    let [pools, flavors, job] = ["nodepools.yaml", "flavors.yaml", "job.yaml"].map(example);
    let check = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: AdmissionCheck\nmetadata: {name: karpenter-provision}\nspec:\n  \
                 controllerName: setu.kueue.x-k8s.io/provisioning\n  parameters: {apiGroup: setu.kueue.x-k8s.io, kind: \
                 ProvisioningParameters, name: par}\n";
    let parameters = "---\napiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: ProvisioningParameters\nmetadata: {name: par}\n";
    let missing = Scratch::new("missing", check);
    let invalid = Scratch::new("invalid", &format!("{check}{parameters}spec: {{deadlines: {{gang: 0s}}}}\n"));
    for (objects, words) in [(&missing, "which were not found"), (&invalid, "is zero")] {
        let output = plan(&["-f", objects.path(), "-f", &job]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains("ProvisioningParameters par") && message.contains(words), "{message}");
    }
    let text = std::fs::read_to_string(&pools).unwrap();
    let line = text.lines().find(|line| line.contains("nodeClassRef")).unwrap();
    let bare = Scratch::new("bare", &text.replace(line, ""));
    let files = ["-f", bare.path(), "-f", &flavors, "-f", &job];
    let message = refused(&planned("bare-policy", "", &files, &[]));
    assert!(message.contains("does not say which NodeClass its nodes have"), "{message}");
    printed(&planned("preset", "cloudProvider: aws", &files, &[]));
}

#[test]
fn the_first_of_our_checks_by_name_provides_nodes_as_in_the_controller() {
    let flavors = std::fs::read_to_string(example("flavors.yaml")).unwrap();
    let listed = "    - name: b\n    - name: a\n    - {name: '0', onFlavors: [other]}\n    - name: A";
    let listed = flavors.replace("    - name: karpenter-provision", listed);
    assert_ne!(listed, flavors);
    let checks = [
        ("'0'", "ours.example.com"),
        ("a", "ours.example.com"),
        ("b", "ours.example.com"),
        ("A", "theirs.example.com"),
    ];
    let checks = checks.map(|(name, controller)| {
        let head = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: AdmissionCheck\n";
        format!("---\n{head}metadata: {{name: {name}}}\nspec: {{controllerName: {controller}}}\n")
    });
    let queue = Scratch::new("checks", &format!("{listed}{}", checks.concat()));
    let pools = std::fs::read_to_string(example("nodepools.yaml")).unwrap();
    let second =
        pools.replace("name: gpu-nodepool", "name: pool-of-b").replace("name: node-exporter", "name: other");
    let pools = Scratch::new("pools-of-checks", &format!("{pools}---\n{second}"));
    let job = example("job.yaml");
    let policy = "checks: {a: {tiers: [{name: t, nodePoolName: gpu-nodepool}]}, b: {tiers: [{name: t, nodePoolName: pool-of-b}]}}";
    let name = "ours.example.com";
    let plan_table = |file: &str, arguments: &[&str], variables: &[(&str, &str)]| {
        let files = ["-f", pools.path(), "-f", queue.path(), "-f", &job];
        printed(&planned(file, policy, &[&files, arguments].concat(), variables))
    };
    for (file, table) in [
        ("by-name", plan_table("by-name", &["--controller-name", name], &[])),
        ("by-variable", plan_table("by-variable", &[], &[("SETU_CONTROLLER_NAME", name)])),
    ] {
        assert!(
            table.contains("check a,") && table.contains("from NodePool gpu-nodepool"),
            "{file}: {table}"
        );
    }
    let table = plan_table("second", &["--controller-name", name, "--check", "b"], &[]);
    assert!(table.contains("no node is needed: check a provides the nodes"), "{table}");

    // The AdmissionCheck of a given check may be missing: then its controller is unknown, so `--check` alone decides.
    let unknown = Scratch::new("unknown-checks", &listed);
    let arguments = ["-f", pools.path(), "-f", unknown.path(), "-f", &job, "--check", "b"];
    let table = printed(&planned("unknown", "defaults: {nodePoolName: gpu-nodepool}", &arguments, &[]));
    assert!(table.contains("check b,") && table.contains("from NodePool gpu-nodepool"), "{table}");
}

#[test]
fn a_queue_with_kueues_own_check_is_planned_for_its_provisioning_request() {
    let [pools, flavors, job] = ["nodepools.yaml", "flavors.yaml", "job.yaml"].map(example);
    let listed = std::fs::read_to_string(&flavors).unwrap().replace("karpenter-provision", "provisioning");
    let queue = Scratch::new("by-request", &listed);
    let check = format!("{}/examples/provisioning-requests/check.yaml", env!("CARGO_MANIFEST_DIR"));
    let files = |queue: &Scratch, check: &str, more: &[&str]| {
        let files = ["-f", &pools, "-f", queue.path(), "-f", check, "-f", &job].map(str::to_owned);
        let all: Vec<String> = files.into_iter().chain(more.iter().map(|word| (*word).to_owned())).collect();
        let policy = "checks: {provisioning: {gates: {budget: {maxNodes: 7}}}}";
        planned("by-request-policy", policy, &all.iter().map(String::as_str).collect::<Vec<_>>(), &[])
    };
    for named in [&[][..], &["--check", "provisioning"][..]] {
        let table = printed(&files(&queue, &check, named));
        for words in [
            "Workload  default/four-gpus, check provisioning,",
            "1 node of 7 in the budget",
            "check provisioning is Kueue's own: its ProvisioningRequestConfig must name class atomic.setu.kueue.x-k8s.io",
            "the nodes get no taint: neither the pods nor their ResourceFlavors tolerate setu.kueue.x-k8s.io/gang",
        ] {
            assert!(table.contains(words), "{words}: {table}");
        }
    }
    let toleration =
        "spec:\n  tolerations: [{key: setu.kueue.x-k8s.io/gang, operator: Exists}]\n  nodeLabels:";
    let tolerant = Scratch::new("tolerant", &listed.replace("spec:\n  nodeLabels:", toleration));
    let table = printed(&files(&tolerant, &check, &[]));
    assert!(!table.contains("get no taint"), "{table}");
    let config = std::fs::read_to_string(&check).unwrap();
    let another = "best-effort-atomic-scale-up.autoscaling.x-k8s.io";
    let other = Scratch::new("class", &config.replace("atomic.setu.kueue.x-k8s.io", another));
    let output = files(&queue, other.path(), &["--check", "provisioning"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains(&format!("of class {another}, and Setu answers only")), "{message}");
}

/// Plans an example of a framework with the queues and NodePools of all examples.
fn framework(file: &str) -> Output {
    on_setup(&format!("{}/examples/frameworks/{file}.yaml", env!("CARGO_MANIFEST_DIR")))
}

/// Plans this file on the NodePools and queues of `examples/setup`.
fn on_setup(manifest: &str) -> Output {
    let [pools, queues] = ["nodepools", "queues"]
        .map(|name| format!("{}/examples/setup/{name}.yaml", env!("CARGO_MANIFEST_DIR")));
    let files = ["plan", "-f", manifest, "-f", &pools, "-f", &queues];
    Command::new(env!("CARGO_BIN_EXE_setu")).args(files).output().unwrap()
}

#[test]
fn a_pod_group_is_planned_as_one_workload_and_what_is_wrong_with_it_is_reported() {
    let path = format!("{}/examples/pod-group.yaml", env!("CARGO_MANIFEST_DIR"));
    let plan = printed(&on_setup(&path));
    for words in [
        "default/ray,",
        "Outcome   4 nodes: 1 from NodePool cpu, 3 from NodePool gpu",
        "1×role-1",
        "1×role-2",
    ] {
        assert!(plan.contains(words), "{words}\n{plan}");
    }
    let all = std::fs::read_to_string(path).unwrap();
    let (three, _) = all.rsplit_once("---").unwrap();
    let two = format!("{all}\n---\n{}", all.replace("group-name: ray", "group-name: another"));
    for (name, text, words) in [
        (
            "missing",
            three,
            "document 1: pod group ray lacks 1 pod: the files have 3, and its total count is 4",
        ),
        ("two", two.as_str(), "more than one Workload to plan for, another and ray; plan them one by one"),
    ] {
        let output = on_setup(Scratch::new(name, text).path());
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn a_job_that_allows_it_is_planned_with_fewer_pods_where_quota_is_short() {
    let queues = std::fs::read_to_string(example("flavors.yaml")).unwrap();
    let short = Scratch::new(
        "short",
        &queues.replace("nvidia.com/gpu, nominalQuota: 64", "nvidia.com/gpu, nominalQuota: 3"),
    );
    let job = std::fs::read_to_string(example("job.yaml")).unwrap();
    let named = "  name: four-gpus\n";
    let annotation = format!("{named}  annotations: {{{}: \"2\"}}\n", setu::names::MIN_PARALLELISM);
    let job = Scratch::new("fewer", &job.replacen(named, &annotation, 1));
    let output = Command::new(env!("CARGO_BIN_EXE_setu"))
        .args(["plan", "-f", &example("nodepools.yaml"), "-f", short.path(), "-f", job.path()])
        .args(["--config", &example("per-pod.yaml")])
        .output()
        .unwrap();
    let plan = printed(&output);
    assert!(plan.contains("Outcome   3 nodes: 3 from NodePool gpu-nodepool"), "{plan}");
    assert!(plan.contains("Note: Kueue would admit 3 of the 4 pods of pod set main"), "{plan}");
}

#[test]
fn each_example_is_planned_from_its_manifest() {
    let mut left: BTreeSet<String> =
        std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/frameworks"))
            .unwrap()
            .map(|entry| format!("frameworks/{}", entry.unwrap().file_name().display()))
            .collect();
    for (file, nodes) in [
        ("frameworks/app-wrapper", "2 nodes: 2 from NodePool gpu"),
        ("frameworks/deployment", "1 node: 1 from NodePool gpu"),
        ("frameworks/jax-job", "2 nodes: 2 from NodePool gpu"),
        ("frameworks/mpi-job", "3 nodes: 1 from NodePool cpu, 2 from NodePool gpu"),
        ("frameworks/paddle-job", "2 nodes: 2 from NodePool gpu"),
        ("frameworks/pytorch-job", "3 nodes: 3 from NodePool gpu"),
        ("frameworks/ray-cluster", "3 nodes: 1 from NodePool cpu, 2 from NodePool gpu"),
        ("frameworks/ray-job", "4 nodes: 2 from NodePool cpu, 2 from NodePool gpu"),
        ("frameworks/spark-application", "3 nodes: 1 from NodePool cpu, 2 from NodePool gpu"),
        ("frameworks/stateful-set", "3 nodes: 3 from NodePool gpu"),
        ("frameworks/tf-job", "4 nodes: 3 from NodePool gpu, 1 from NodePool cpu"),
        ("frameworks/train-job", "2 nodes: 2 from NodePool gpu"),
        ("frameworks/xgboost-job", "3 nodes: 3 from NodePool cpu"),
        ("indexed-job", "2 nodes: 2 from NodePool gpu"),
        ("jobset", "5 nodes: 1 from NodePool cpu, 4 from NodePool gpu"),
        ("leader-worker-set", "4 nodes: 1 from NodePool cpu, 3 from NodePool gpu"),
        ("pod-group", "4 nodes: 1 from NodePool cpu, 3 from NodePool gpu"),
    ] {
        let plan = printed(&on_setup(&format!("{}/examples/{file}.yaml", env!("CARGO_MANIFEST_DIR"))));
        assert!(plan.lines().any(|line| line == format!("Outcome   {nodes}")), "{file}: {plan}");
        left.remove(&format!("{file}.yaml"));
    }
    assert_eq!(left, BTreeSet::new(), "examples that are not planned here");
}

#[test]
fn a_ray_job_is_planned_with_its_head_its_workers_and_its_submitter() {
    let plan = printed(&framework("ray-job"));
    for line in [
        "Workload  default/ray-job, check karpenter-provision, ClusterQueue training, flavors cpu gpu, as Kueue would likely choose",
        "Outcome   4 nodes: 2 from NodePool cpu, 2 from NodePool gpu",
        "0      cpu       as the provider picks  1×head        cpu 2, memory 8Gi                     unknown  unknown",
        "1-2    gpu       as the provider picks  1×workers     cpu 4, memory 16Gi, nvidia.com/gpu 1  unknown  unknown",
        "3      cpu       as the provider picks  1×submitter   cpu 500m, memory 1Gi                  unknown  unknown",
    ] {
        assert!(plan.lines().any(|printed| printed == line), "{line}\n{plan}");
    }
}

#[test]
fn one_pod_of_a_deployment_is_planned_and_a_remark_says_so() {
    let output = framework("deployment");
    assert!(printed(&output).contains("Outcome   1 node: 1 from NodePool gpu\n"));
    let remark =
        "Deployment deployment has 2 replicas, and each is a Workload of its own; this is the plan for one\n";
    let policy = "Planned with the default policy. Name the policy file that Setu runs with by --config.\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), format!("{policy}{remark}"));
}

#[test]
fn a_workload_is_found_by_the_kind_of_its_owner_its_plural_and_its_short_name() {
    let owned = |kind: &str| -> Workload {
        let owner = json!({"apiVersion": "v1", "kind": kind, "name": "serve", "uid": kind});
        let metadata = json!({"name": format!("{kind}-serve"), "uid": kind, "ownerReferences": [owner]});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"podSets": [], "queueName": "q"}}))
            .unwrap()
    };
    let all = ["StatefulSet", "RayJob", "LeaderWorkerSet"].map(owned);
    for (wanted, kinds) in [
        ("sts/serve", vec!["StatefulSet"]),
        ("RayJob/serve", vec!["RayJob"]),
        ("rayjobs/serve", vec!["RayJob"]),
        ("lws/serve", vec!["LeaderWorkerSet"]),
        ("deploy/serve", vec![]),
        ("serve", vec!["StatefulSet", "RayJob", "LeaderWorkerSet"]),
    ] {
        let found: Vec<String> =
            matches(&all, wanted).into_iter().filter_map(|w| w.metadata.uid.clone()).collect();
        assert_eq!(found, kinds, "{wanted}");
    }
}

#[test]
fn the_workloads_of_a_deployments_pods_are_found_by_its_name() {
    let owned = |pod: &str| -> Workload {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod});
        let metadata = json!({"name": format!("pod-{pod}"), "uid": pod, "ownerReferences": [owner]});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"podSets": [], "queueName": "q"}}))
            .unwrap()
    };
    let pods =
        ["web-6d5f9c7b8-x2k4p", "web-6d5f9c7b8-9zzqt", "web-api-6d5f9c7b8-x2k4p", "web-0", "web-api-x2k4p"];
    let all = pods.map(owned);
    for (wanted, count) in [("deploy/web", 2), ("Deployment/web-api", 1), ("web", 0), ("sts/web", 0)] {
        assert_eq!(matches(&all, wanted).len(), count, "{wanted}");
    }
}
