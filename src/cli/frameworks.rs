//! The kinds that Kueue makes Workloads of: where each has its pods, and what kubectl calls it besides its name.
//!
//! Rule: a kind is a row of the table. A row states what Kueue's integration of that kind reads, in the same order.

/// A kind that Kueue makes Workloads of.
pub struct Framework {
    /// Its API group.
    pub group: &'static str,
    /// Its kind.
    pub kind: &'static str,
    /// kubectl's short names.
    pub short: &'static [&'static str],
    /// Where it has its pods.
    pub pods: PodsIn,
    /// JSON pointer to the object whose fields are the roles that `pods` has, if there is one.
    pub roles: Option<&'static str>,
    /// Which of its pods share a Workload.
    pub workload: WorkloadOf,
    /// Switches that must be off: where each stands, and why.
    pub refused: &'static [(&'static str, &'static str)],
}

/// Where a kind has its pods.
#[derive(Clone, Copy)]
pub enum PodsIn {
    /// At these places of its manifest, in Kueue's order.
    Manifest(&'static [PodsAt]),
    /// In the objects of its `spec.components`.
    Components,
    /// In the training runtime that `spec.runtimeRef` names.
    Runtime,
    /// In fields of its `spec.driver` and `spec.executor`, without a template.
    Application,
}

impl PodsIn {
    /// The places of the manifest.
    pub const fn places(self) -> &'static [PodsAt] {
        match self {
            Self::Manifest(places) => places,
            Self::Components | Self::Runtime | Self::Application => &[],
        }
    }
}

/// Which pods of an object share a Workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadOf {
    /// All of them.
    Object,
    /// Those of one replica, of as many as this field says.
    Replica(&'static str),
}

/// Where one pod set, or each of a list, stands in a manifest.
pub struct PodsAt {
    /// JSON pointer to the object that has template and count, or to a list of such objects.
    pub at: &'static str,
    /// The name of the pod set.
    pub name: PodSetName,
    /// Whether the manifest has this pod set.
    pub when: When,
    /// JSON pointer from there to the pod template.
    pub template: &'static str,
    /// The template if there is none, as JSON.
    pub otherwise: Option<&'static str>,
    /// A container that the operator adds to the pods, as JSON, and when.
    pub adds: Option<(When, &'static str)>,
    /// The number of pods.
    pub count: PodCount,
}

/// The name of a pod set.
#[derive(Clone, Copy)]
pub enum PodSetName {
    /// This one.
    Is(&'static str),
    /// The value of this field in each entry of a list, in lower case.
    Field(&'static str),
}

/// A condition on a manifest, by JSON pointer from its root.
#[derive(Clone, Copy)]
pub enum When {
    Always,
    Present(&'static str),
    Absent(&'static str),
    /// The text at `at` is `value`; without a text there, `default` counts as the text.
    Is {
        at: &'static str,
        value: &'static str,
        default: &'static str,
    },
}

/// The number of pods of a pod set: the product of the factors, less `less`.
pub struct PodCount {
    /// Fields with their defaults.
    pub factors: &'static [(&'static str, i64)],
    /// JSON pointer to the spec of a Job; the number of its pods that run at a time is another factor.
    pub job: Option<&'static str>,
    pub less: i64,
}

const ONE: PodCount = PodCount { factors: &[], job: None, less: 0 };
const REPLICAS: PodCount = PodCount { factors: &[("replicas", 1)], job: None, less: 0 };

const POD_SET: PodsAt = PodsAt {
    at: "/spec",
    name: PodSetName::Is("main"),
    when: When::Always,
    template: "/template",
    otherwise: None,
    adds: None,
    count: ONE,
};

const FRAMEWORK: Framework = Framework {
    group: "",
    kind: "",
    short: &[],
    pods: PodsIn::Manifest(&[]),
    roles: None,
    workload: WorkloadOf::Object,
    refused: &[],
};

/// A role of a Kubeflow job, which it may lack.
const fn role(at: &'static str, name: &'static str) -> PodsAt {
    PodsAt { at, name: PodSetName::Is(name), when: When::Present(at), count: REPLICAS, ..POD_SET }
}

/// A kind of the training operator, or of the MPI operator.
const fn kubeflow(kind: &'static str, roles: &'static str, pods: &'static [PodsAt]) -> Framework {
    Framework { group: "kubeflow.org", kind, pods: PodsIn::Manifest(pods), roles: Some(roles), ..FRAMEWORK }
}

const SUBMISSION: &str = "/spec/submissionMode";
const fn submitted_by(value: &'static str) -> When {
    When::Is { at: SUBMISSION, value, default: "K8sJobMode" }
}
/// The container that submits a RayJob, as KubeRay makes it if the RayJob has no template for it.
macro_rules! submitter {
    () => {
        r#"{"name": "ray-job-submitter", "resources":
            {"requests": {"cpu": "500m", "memory": "200Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}}"#
    };
}
const SUBMITTER_POD: &str =
    concat!(r#"{"spec": {"restartPolicy": "Never", "containers": ["#, submitter!(), "]}}");
const NOT_AUTOSCALED: &str =
    "its autoscaler changes how many pods there are, so a plan for them cannot be made; set it to false";
const NOT_DYNAMIC: &str =
    "Spark then changes how many executors there are, so a plan for them cannot be made; set it to false";

const fn ray_head(at: &'static str) -> PodsAt {
    PodsAt { at, name: PodSetName::Is("head"), ..POD_SET }
}

const fn ray_workers(at: &'static str) -> PodsAt {
    PodsAt {
        at,
        name: PodSetName::Field("groupName"),
        when: When::Present(at),
        count: PodCount { factors: &[("replicas", 0), ("numOfHosts", 1)], job: None, less: 0 },
        ..POD_SET
    }
}

/// All of them.
const FRAMEWORKS: &[Framework] = &[
    Framework {
        group: "batch",
        kind: "Job",
        pods: PodsIn::Manifest(&[PodsAt { count: PodCount { job: Some(""), ..ONE }, ..POD_SET }]),
        ..FRAMEWORK
    },
    Framework {
        group: "jobset.x-k8s.io",
        kind: "JobSet",
        pods: PodsIn::Manifest(&[PodsAt {
            at: "/spec/replicatedJobs",
            name: PodSetName::Field("name"),
            template: "/template/spec/template",
            count: PodCount { factors: &[("replicas", 1)], job: Some("/template/spec"), less: 0 },
            ..POD_SET
        }]),
        ..FRAMEWORK
    },
    Framework {
        group: "",
        kind: "Pod",
        short: &["po"],
        pods: PodsIn::Manifest(&[PodsAt { at: "", template: "", ..POD_SET }]),
        ..FRAMEWORK
    },
    Framework {
        group: "apps",
        kind: "Deployment",
        short: &["deploy"],
        pods: PodsIn::Manifest(&[POD_SET]),
        workload: WorkloadOf::Replica("/spec/replicas"),
        ..FRAMEWORK
    },
    Framework {
        group: "apps",
        kind: "StatefulSet",
        short: &["sts"],
        pods: PodsIn::Manifest(&[PodsAt { count: REPLICAS, ..POD_SET }]),
        ..FRAMEWORK
    },
    Framework {
        group: "leaderworkerset.x-k8s.io",
        kind: "LeaderWorkerSet",
        short: &["lws"],
        pods: PodsIn::Manifest(&[
            PodsAt {
                at: "/spec/leaderWorkerTemplate",
                name: PodSetName::Is("leader"),
                when: When::Present(LEADER),
                template: "/leaderTemplate",
                ..POD_SET
            },
            PodsAt {
                name: PodSetName::Is("worker"),
                when: When::Present(LEADER),
                count: PodCount { less: 1, ..SIZE },
                ..GROUP
            },
            PodsAt { when: When::Absent(LEADER), count: SIZE, ..GROUP },
        ]),
        workload: WorkloadOf::Replica("/spec/replicas"),
        ..FRAMEWORK
    },
    Framework {
        group: "ray.io",
        kind: "RayCluster",
        pods: PodsIn::Manifest(&[ray_head("/spec/headGroupSpec"), ray_workers("/spec/workerGroupSpecs")]),
        refused: &[("/spec/enableInTreeAutoscaling", NOT_AUTOSCALED)],
        ..FRAMEWORK
    },
    Framework {
        group: "ray.io",
        kind: "RayJob",
        pods: PodsIn::Manifest(&[
            PodsAt {
                adds: Some((submitted_by("SidecarMode"), submitter!())),
                ..ray_head("/spec/rayClusterSpec/headGroupSpec")
            },
            ray_workers("/spec/rayClusterSpec/workerGroupSpecs"),
            PodsAt {
                name: PodSetName::Is("submitter"),
                when: submitted_by("K8sJobMode"),
                template: "/submitterPodTemplate",
                otherwise: Some(SUBMITTER_POD),
                ..POD_SET
            },
        ]),
        refused: &[("/spec/rayClusterSpec/enableInTreeAutoscaling", NOT_AUTOSCALED)],
        ..FRAMEWORK
    },
    kubeflow(
        "MPIJob",
        "/spec/mpiReplicaSpecs",
        &[role("/spec/mpiReplicaSpecs/Launcher", "launcher"), role("/spec/mpiReplicaSpecs/Worker", "worker")],
    ),
    kubeflow(
        "PyTorchJob",
        "/spec/pytorchReplicaSpecs",
        &[
            role("/spec/pytorchReplicaSpecs/Master", "master"),
            role("/spec/pytorchReplicaSpecs/Worker", "worker"),
        ],
    ),
    kubeflow(
        "TFJob",
        "/spec/tfReplicaSpecs",
        &[
            role("/spec/tfReplicaSpecs/Chief", "chief"),
            role("/spec/tfReplicaSpecs/Master", "master"),
            role("/spec/tfReplicaSpecs/PS", "ps"),
            role("/spec/tfReplicaSpecs/Worker", "worker"),
            role("/spec/tfReplicaSpecs/Evaluator", "evaluator"),
        ],
    ),
    kubeflow(
        "XGBoostJob",
        "/spec/xgbReplicaSpecs",
        &[role("/spec/xgbReplicaSpecs/Master", "master"), role("/spec/xgbReplicaSpecs/Worker", "worker")],
    ),
    kubeflow(
        "PaddleJob",
        "/spec/paddleReplicaSpecs",
        &[
            role("/spec/paddleReplicaSpecs/Master", "master"),
            role("/spec/paddleReplicaSpecs/Worker", "worker"),
        ],
    ),
    kubeflow("JAXJob", "/spec/jaxReplicaSpecs", &[role("/spec/jaxReplicaSpecs/Worker", "worker")]),
    Framework { group: "trainer.kubeflow.org", kind: "TrainJob", pods: PodsIn::Runtime, ..FRAMEWORK },
    Framework { group: "workload.codeflare.dev", kind: "AppWrapper", pods: PodsIn::Components, ..FRAMEWORK },
    Framework {
        group: "sparkoperator.k8s.io",
        kind: "SparkApplication",
        short: &["sparkapp"],
        pods: PodsIn::Application,
        refused: &[("/spec/dynamicAllocation/enabled", NOT_DYNAMIC)],
        ..FRAMEWORK
    },
];

const LEADER: &str = "/spec/leaderWorkerTemplate/leaderTemplate";
const SIZE: PodCount = PodCount { factors: &[("size", 1)], ..ONE };
const GROUP: PodsAt = PodsAt { at: "/spec/leaderWorkerTemplate", template: "/workerTemplate", ..POD_SET };

impl Framework {
    /// The kind of an object, by its group and kind. Where the group is not known, the kind alone counts.
    pub fn of(api_version: Option<&str>, kind: &str) -> Option<&'static Self> {
        let group = api_version.map(|text| text.rsplit_once('/').map_or("", |(group, _)| group));
        FRAMEWORKS.iter().find(|f| f.kind == kind && group.is_none_or(|group| group == f.group))
    }
}

/// Whether a user means this kind by a word: its name, its plural, or a short name that kubectl has for it.
pub fn is_meant(kind: &str, word: &str) -> bool {
    let (name, word) = (kind.to_lowercase(), word.to_lowercase());
    let is_short = || FRAMEWORKS.iter().any(|f| f.kind == kind && f.short.contains(&word.as_str()));
    word == name || word == format!("{name}s") || is_short()
}
