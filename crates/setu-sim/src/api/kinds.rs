//! The kinds that the embedded API server serves.

/// A served kind.
#[derive(Debug, PartialEq, Eq)]
pub struct ServedKind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version within the group.
    pub version: &'static str,
    /// Kind, as in `kind:`.
    pub kind: &'static str,
    /// Plural, as in paths.
    pub plural: &'static str,
    /// Singular name.
    pub singular: &'static str,
    /// Short names.
    pub short_names: &'static [&'static str],
    /// Whether it is namespaced.
    pub namespaced: bool,
    /// Whether it has a `/status` subresource.
    pub status: bool,
    /// Whether a real cluster serves it by a CRD.
    pub custom: bool,
}

impl ServedKind {
    /// `group/version`, or only the version for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The plural with its group, as most errors name it.
    pub fn resource(&self) -> String {
        with_group(self.plural, self.group)
    }

    /// The kind with its group, as errors about its content name it.
    pub fn qualified(&self) -> String {
        with_group(self.kind, self.group)
    }

    /// Whether `metadata.generation` is incremented when the spec changes.
    pub fn has_generation(&self) -> bool {
        self.custom
            || matches!(
                self.kind,
                "Pod"
                    | "Job"
                    | "DaemonSet"
                    | "PriorityClass"
                    | "CustomResourceDefinition"
                    | "ValidatingWebhookConfiguration"
            )
    }
}

fn with_group(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

const fn built_in(
    (group, version): (&'static str, &'static str),
    (kind, plural, singular): (&'static str, &'static str, &'static str),
    short_names: &'static [&'static str],
    (namespaced, status): (bool, bool),
) -> ServedKind {
    ServedKind { group, version, kind, plural, singular, short_names, namespaced, status, custom: false }
}

const fn custom(
    (group, version): (&'static str, &'static str),
    (kind, plural, singular): (&'static str, &'static str, &'static str),
    short_names: &'static [&'static str],
    namespaced: bool,
) -> ServedKind {
    ServedKind { group, version, kind, plural, singular, short_names, namespaced, status: true, custom: true }
}

/// Removes the status subresource from a kind.
const fn without_status(mut kind: ServedKind) -> ServedKind {
    kind.status = false;
    kind
}

const KUEUE: (&str, &str) = ("kueue.x-k8s.io", "v1beta2");
const KARPENTER: (&str, &str) = ("karpenter.sh", "v1");
const CORE: (&str, &str) = ("", "v1");

/// Kueue's Workload.
pub static WORKLOAD: ServedKind =
    custom(KUEUE, ("Workload", "workloads", "workload"), &["kwl", "kueueworkload", "kueueworkloads"], true);
/// Kueue's LocalQueue.
pub static LOCAL_QUEUE: ServedKind =
    custom(KUEUE, ("LocalQueue", "localqueues", "localqueue"), &["queue", "queues", "lq"], true);
/// Kueue's ClusterQueue.
pub static CLUSTER_QUEUE: ServedKind =
    custom(KUEUE, ("ClusterQueue", "clusterqueues", "clusterqueue"), &["cq"], false);
/// Kueue's Cohort.
pub static COHORT: ServedKind = custom(KUEUE, ("Cohort", "cohorts", "cohort"), &[], false);
/// Kueue's ResourceFlavor.
pub static RESOURCE_FLAVOR: ServedKind = without_status(custom(
    KUEUE,
    ("ResourceFlavor", "resourceflavors", "resourceflavor"),
    &["flavor", "flavors", "rf"],
    false,
));
/// Kueue's Topology.
pub static TOPOLOGY: ServedKind =
    without_status(custom(KUEUE, ("Topology", "topologies", "topology"), &["topo"], false));
/// Kueue's AdmissionCheck.
pub static ADMISSION_CHECK: ServedKind =
    custom(KUEUE, ("AdmissionCheck", "admissionchecks", "admissioncheck"), &["ac"], false);
/// Kueue's ProvisioningRequestConfig.
pub static PROVISIONING_REQUEST_CONFIG: ServedKind = without_status(custom(
    KUEUE,
    ("ProvisioningRequestConfig", "provisioningrequestconfigs", "provisioningrequestconfig"),
    &["prc"],
    false,
));
/// Cluster Autoscaler's ProvisioningRequest.
pub static PROVISIONING_REQUEST: ServedKind = custom(
    (setu_core::names::AUTOSCALING_GROUP, "v1"),
    ("ProvisioningRequest", "provisioningrequests", "provisioningrequest"),
    &["provreq", "provreqs"],
    true,
);
/// Kueue's WorkloadPriorityClass.
pub static WORKLOAD_PRIORITY_CLASS: ServedKind = without_status(custom(
    KUEUE,
    ("WorkloadPriorityClass", "workloadpriorityclasses", "workloadpriorityclass"),
    &["wpc"],
    false,
));
/// Karpenter's NodePool.
pub static NODE_POOL: ServedKind = custom(KARPENTER, ("NodePool", "nodepools", "nodepool"), &[], false);
/// Karpenter's NodeClaim.
pub static NODE_CLAIM: ServedKind = custom(KARPENTER, ("NodeClaim", "nodeclaims", "nodeclaim"), &[], false);
/// The NodeClass of the embedded cloud.
pub static KWOK_NODE_CLASS: ServedKind = custom(
    ("karpenter.kwok.sh", "v1alpha1"),
    ("KWOKNodeClass", "kwoknodeclasses", "kwoknodeclass"),
    &["kwoknc", "kwokncs"],
    false,
);
/// Setu's own parameters.
pub static PROVISIONING_PARAMETERS: ServedKind = custom(
    (setu_core::names::API_GROUP, "v1alpha1"),
    ("ProvisioningParameters", "provisioningparameters", "provisioningparameters"),
    &["provparams"],
    false,
);
/// Namespace.
pub static NAMESPACE: ServedKind =
    built_in(CORE, ("Namespace", "namespaces", "namespace"), &["ns"], (false, true));
/// Node.
pub static NODE: ServedKind = built_in(CORE, ("Node", "nodes", "node"), &["no"], (false, true));
/// Pod.
pub static POD: ServedKind = built_in(CORE, ("Pod", "pods", "pod"), &["po"], (true, true));
/// ConfigMap.
pub static CONFIG_MAP: ServedKind =
    built_in(CORE, ("ConfigMap", "configmaps", "configmap"), &["cm"], (true, false));
/// LimitRange.
pub static LIMIT_RANGE: ServedKind =
    built_in(CORE, ("LimitRange", "limitranges", "limitrange"), &["limits"], (true, false));
/// ServiceAccount.
pub static SERVICE_ACCOUNT: ServedKind =
    built_in(CORE, ("ServiceAccount", "serviceaccounts", "serviceaccount"), &["sa"], (true, false));
/// Event, stored in its `events.k8s.io/v1` form and served in both.
pub static EVENT: ServedKind =
    built_in(("events.k8s.io", "v1"), ("Event", "events", "event"), &["ev"], (true, false));
/// Job.
pub static JOB: ServedKind = built_in(("batch", "v1"), ("Job", "jobs", "job"), &[], (true, true));
/// DaemonSet.
pub static DAEMON_SET: ServedKind =
    built_in(("apps", "v1"), ("DaemonSet", "daemonsets", "daemonset"), &["ds"], (true, true));
/// RuntimeClass.
pub static RUNTIME_CLASS: ServedKind =
    built_in(("node.k8s.io", "v1"), ("RuntimeClass", "runtimeclasses", "runtimeclass"), &[], (false, false));
/// DeviceClass.
pub static DEVICE_CLASS: ServedKind =
    built_in(("resource.k8s.io", "v1"), ("DeviceClass", "deviceclasses", "deviceclass"), &[], (false, false));
/// ResourceClaimTemplate.
pub static RESOURCE_CLAIM_TEMPLATE: ServedKind = built_in(
    ("resource.k8s.io", "v1"),
    ("ResourceClaimTemplate", "resourceclaimtemplates", "resourceclaimtemplate"),
    &[],
    (true, false),
);
/// ResourceSlice.
pub static RESOURCE_SLICE: ServedKind = built_in(
    ("resource.k8s.io", "v1"),
    ("ResourceSlice", "resourceslices", "resourceslice"),
    &[],
    (false, false),
);
/// PodTemplate.
pub static POD_TEMPLATE: ServedKind =
    built_in(CORE, ("PodTemplate", "podtemplates", "podtemplate"), &[], (true, false));
/// PersistentVolumeClaim.
pub static PERSISTENT_VOLUME_CLAIM: ServedKind = built_in(
    CORE,
    ("PersistentVolumeClaim", "persistentvolumeclaims", "persistentvolumeclaim"),
    &["pvc"],
    (true, true),
);
/// PersistentVolume.
pub static PERSISTENT_VOLUME: ServedKind =
    built_in(CORE, ("PersistentVolume", "persistentvolumes", "persistentvolume"), &["pv"], (false, true));
/// StorageClass.
pub static STORAGE_CLASS: ServedKind = built_in(
    ("storage.k8s.io", "v1"),
    ("StorageClass", "storageclasses", "storageclass"),
    &["sc"],
    (false, false),
);
/// PriorityClass.
pub static PRIORITY_CLASS: ServedKind = built_in(
    ("scheduling.k8s.io", "v1"),
    ("PriorityClass", "priorityclasses", "priorityclass"),
    &["pc"],
    (false, false),
);
/// Lease.
pub static LEASE: ServedKind =
    built_in(("coordination.k8s.io", "v1"), ("Lease", "leases", "lease"), &[], (true, false));
/// CustomResourceDefinition: stored, but the set of served kinds is fixed.
pub static CRD: ServedKind = built_in(
    ("apiextensions.k8s.io", "v1"),
    ("CustomResourceDefinition", "customresourcedefinitions", "customresourcedefinition"),
    &["crd", "crds"],
    (false, true),
);
/// ValidatingWebhookConfiguration: its webhooks are never reached.
pub static WEBHOOKS: ServedKind = built_in(
    ("admissionregistration.k8s.io", "v1"),
    ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations", "validatingwebhookconfiguration"),
    &[],
    (false, false),
);

/// Every served kind.
pub static ALL: &[&ServedKind] = &[
    &WORKLOAD,
    &LOCAL_QUEUE,
    &CLUSTER_QUEUE,
    &COHORT,
    &RESOURCE_FLAVOR,
    &TOPOLOGY,
    &ADMISSION_CHECK,
    &WORKLOAD_PRIORITY_CLASS,
    &PROVISIONING_REQUEST_CONFIG,
    &PROVISIONING_REQUEST,
    &NODE_POOL,
    &NODE_CLAIM,
    &KWOK_NODE_CLASS,
    &PROVISIONING_PARAMETERS,
    &NAMESPACE,
    &NODE,
    &POD,
    &CONFIG_MAP,
    &LIMIT_RANGE,
    &SERVICE_ACCOUNT,
    &EVENT,
    &JOB,
    &DAEMON_SET,
    &RUNTIME_CLASS,
    &DEVICE_CLASS,
    &RESOURCE_CLAIM_TEMPLATE,
    &RESOURCE_SLICE,
    &POD_TEMPLATE,
    &PERSISTENT_VOLUME_CLAIM,
    &PERSISTENT_VOLUME,
    &STORAGE_CLASS,
    &PRIORITY_CLASS,
    &LEASE,
    &CRD,
    &WEBHOOKS,
];
