//! Every label, annotation, taint key, finalizer and field manager that Setu or its neighbours use.
//!
//! Rule: no other file spells out such a key. So each key has one spelling, and this file shows everything that Setu writes
//! into a cluster.

/// Default `spec.controllerName` of the AdmissionChecks that Setu serves.
pub const CONTROLLER_NAME: &str = "setu.kueue.x-k8s.io/provisioning";
/// `spec.controllerName` of Kueue's own provisioning check. Only for this check does Kueue delay topology-aware placement of
/// pods until the nodes exist.
pub const PROVISIONING_REQUEST: &str = "kueue.x-k8s.io/provisioning-request";
/// Class of the ProvisioningRequests that Setu serves.
pub const REQUEST_CLASS: &str = "atomic.setu.kueue.x-k8s.io";
/// Start of the name under which a ProvisioningRequest is mirrored as a Workload.
pub const REQUEST_PREFIX: &str = "provisioningrequest/";
/// Start of the parameters of a ProvisioningRequest by which a job asks for what the policy opens under `jobOverrides`. Kueue
/// copies them from [`JOB_OVERRIDE_PREFIX`].
pub const REQUEST_PARAMETER_PREFIX: &str = "setu-";
/// Annotation of a Workload that Setu created for a standalone ProvisioningRequest: `name/UID` of the request.
pub const REQUEST: &str = "setu.kueue.x-k8s.io/provisioning-request";
/// Cluster Autoscaler: annotation of a pod with the name of the ProvisioningRequest whose capacity it uses.
pub const CONSUMES: &str = "autoscaling.x-k8s.io/consume-provisioning-request";
/// API group in which ProvisioningRequests are served.
pub const AUTOSCALING_GROUP: &str = "autoscaling.x-k8s.io";
/// API group of the NodeClasses of Karpenter's kwok provider.
pub const KWOK_GROUP: &str = "karpenter.kwok.sh";
/// Field manager of every write that Setu makes, except those of [`QUEUE_MANAGER`] and [`PODS_MANAGER`].
pub const FIELD_MANAGER: &str = "setu";
/// Field manager of the condition `Requeued` on a refused gang's Workload. It is a separate one, because applying a check's
/// verdict with the same manager would remove that condition.
pub const QUEUE_MANAGER: &str = "setu-queue";
/// Field manager of the condition `PodsReady` on the Workload of a standalone ProvisioningRequest. It is a separate one for the same
/// reason.
pub const PODS_MANAGER: &str = "setu-pods";
/// API group of Setu's own kinds.
pub const API_GROUP: &str = "setu.kueue.x-k8s.io";
/// Kind of the parameters that an AdmissionCheck may name.
pub const PARAMETERS_KIND: &str = "ProvisioningParameters";

/// The check to use if none is named; the chart uses the same name.
pub const DEFAULT_CHECK: &str = "karpenter-provision";
/// Kueue: label that names the LocalQueue of a Job.
pub const QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// Kueue: label that names the WorkloadPriorityClass of a Job.
pub const PRIORITY_CLASS: &str = "kueue.x-k8s.io/priority-class";
/// Kueue: label of a Job that limits, in seconds, how long its Workload runs.
pub const MAX_EXECUTION: &str = "kueue.x-k8s.io/max-exec-time-seconds";
/// Kueue: annotation of a Job with the least number of its pods that Kueue may admit instead of all.
pub const MIN_PARALLELISM: &str = "kueue.x-k8s.io/job-min-parallelism";
/// Kueue: annotation or label of a pod that names its group. The group's Workload has the same name.
pub const POD_GROUP: &str = "kueue.x-k8s.io/pod-group-name";
/// Kueue: annotation of such a pod with the number of pods in its group.
pub const POD_GROUP_TOTAL: &str = "kueue.x-k8s.io/pod-group-total-count";
/// Kueue: annotation of such a pod. With `"true"`, Kueue takes all pods of the group to be like the first.
pub const POD_GROUP_FAST: &str = "kueue.x-k8s.io/pod-group-fast-admission";
/// Kueue: annotation of such a pod with the name of its pod set.
pub const POD_ROLE: &str = "kueue.x-k8s.io/role-hash";
/// KubeRay: annotation of a RayCluster or RayJob. With `"true"`, Redis keeps the state of the head.
pub const RAY_FAULT_TOLERANCE: &str = "ray.io/ft-enabled";
/// Kueue: annotation of the pods of pod sets that are placed together, with a name that they share.
pub const POD_SET_GROUP: &str = "kueue.x-k8s.io/podset-group-name";
/// Kueue: `spec.controllerName` of the checks that send a Workload's pods to another cluster.
pub const MULTIKUEUE: &str = "kueue.x-k8s.io/multikueue";
/// Kueue: annotation of every Workload that it creates for a Job which may grow and shrink while it runs.
pub const ELASTIC_JOB: &str = "kueue.x-k8s.io/elastic-job";
/// Kubeflow's trainer: label of a replicated job of a training runtime that says what the job does in a TrainJob.
pub const TRAIN_JOB_STEP: &str = "trainer.kubeflow.org/trainjob-ancestor-step";
/// Kueue: annotation of a Workload that replaces another one when such a Job grows: `namespace/name`.
pub const SLICE_REPLACES: &str = "kueue.x-k8s.io/workload-slice-replacement-for";
/// Kueue: condition of a Workload. While it is False the Workload is in no queue.
pub const REQUEUED: &str = "Requeued";
/// Reason of that condition on a Workload that Setu keeps out of its queue.
pub const REFUSED: &str = "RefusedBySetu";
/// Reason of that condition on a Workload that Setu no longer keeps out.
pub const ALLOWED: &str = "RefusalBySetuEnded";
/// Kueue: its own finalizer on Workloads, removed once their pods are stopped.
pub const KUEUE_FINALIZER: &str = "kueue.x-k8s.io/resource-in-use";
/// Kubernetes: label of every Namespace with its name.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// Kubernetes: prefix of the extended resource that every DeviceClass serves; the class's name follows.
pub const DEVICE_CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// Prefix of the journal's annotation key on a Workload; the check's name follows.
pub const JOURNAL_PREFIX: &str = "gang.setu.kueue.x-k8s.io/";
/// Prefix of the annotation with the gang's state for users; the check's name follows.
pub const STATE_PREFIX: &str = "state.setu.kueue.x-k8s.io/";

/// Finalizer on a Workload whose nodes must be gone before it is.
pub const FINALIZER: &str = "setu.kueue.x-k8s.io/nodeclaims";

/// Prefix of the annotations in which a Job asks for what the policy opens under `jobOverrides`; the key follows. Kueue
/// copies them from Job to Workload.
pub const JOB_OVERRIDE_PREFIX: &str = "provreq.kueue.x-k8s.io/setu-";

/// Label on NodeClaim and Node: the gang's id. Also the key of the node selector and of the taint.
pub const GANG: &str = "setu.kueue.x-k8s.io/gang";
/// Label on NodeClaim and Node: names of the pod sets that the node was planned for, joined by dots. Only where the nodes of a
/// gang's pod sets differ; then it is a key of their pods' node selector too.
pub const POD_SETS: &str = "setu.kueue.x-k8s.io/pod-sets";
/// Label on NodeClaim and Node: UID of the Workload that the claim was created for.
pub const WORKLOAD_UID: &str = "setu.kueue.x-k8s.io/workload-uid";
/// Label on NodeClaim and Node: number of the attempt that the claim belongs to.
pub const ATTEMPT: &str = "setu.kueue.x-k8s.io/attempt";
/// Annotation on NodeClaim and Node: index of the slot within the gang. Earlier versions wrote it as a label. Providers launch
/// NodeClaims together only if all their labels are equal.
pub const SLOT: &str = "setu.kueue.x-k8s.io/slot";
/// Annotation on NodeClaim and Node: generation of the claim; 0 for the start of the attempt. Earlier versions wrote it as a
/// label, and left it out at the start of the attempt.
pub const GENERATION: &str = "setu.kueue.x-k8s.io/generation";
/// Annotation on a NodeClaim: `namespace/name` of its Workload.
pub const WORKLOAD: &str = "setu.kueue.x-k8s.io/workload";
/// Annotation on a NodeClaim that was made for a ProvisioningRequest: `namespace/name/UID` of the Workload that owns the request.
pub const OWNER: &str = "setu.kueue.x-k8s.io/owner";
/// Annotation on a NodeClaim: the AdmissionCheck that it was created for.
pub const CHECK: &str = "setu.kueue.x-k8s.io/check";
/// Annotation of a shard's Lease: the replica that asks for the shard.
pub const WANTED_BY: &str = "setu.kueue.x-k8s.io/wanted-by";
/// Annotation on a NodeClaim: RFC 3339 time at which the hold on the node ends.
pub const HOLD_UNTIL: &str = "setu.kueue.x-k8s.io/hold-until";
/// Annotation on a NodeClaim: the devices of DeviceClasses that its pods ask for, a JSON list.
pub const DEVICES: &str = "setu.kueue.x-k8s.io/devices";
/// Annotation on a NodeClaim: what the pods request that the node was planned for, a JSON map of amounts. Devices of
/// DeviceClasses are left out.
pub const POD_REQUESTS: &str = "setu.kueue.x-k8s.io/pod-requests";
/// Annotation on a NodeClaim: what its pods request that Karpenter's provider does not know, a JSON map of amounts. The claim does not
/// request it, as the provider would launch nothing.
pub const UNREQUESTED: &str = "setu.kueue.x-k8s.io/unrequested";
/// Annotation on a NodeClaim: digest of the terms that judge its gang's attempt.
pub const TERMS: &str = "setu.kueue.x-k8s.io/terms";
/// Label on a NodeClaim that is kept for a next gang: a digest of the LocalQueue and the check that it is kept for.
pub const WARM: &str = "setu.kueue.x-k8s.io/warm";
/// Annotation on such a NodeClaim: `namespace/name` of that LocalQueue.
pub const WARM_QUEUE: &str = "setu.kueue.x-k8s.io/local-queue";
/// Annotation on such a NodeClaim: RFC 3339 time since which it is kept.
pub const WARM_SINCE: &str = "setu.kueue.x-k8s.io/warm-since";
/// Annotation on a NodeClaim that is being handed back to Karpenter. From then on it is not deleted, because pods of others
/// may be on its Node.
pub const HANDING_BACK: &str = "setu.kueue.x-k8s.io/handing-back";
/// Annotation on a NodeClaim that was kept for its gang: RFC 3339 time at which the gang took it over.
pub const TAKEN_OVER: &str = "setu.kueue.x-k8s.io/taken-over-at";
/// Label with the creator of an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Start of the name of every NodeClaim that Setu creates.
pub const CLAIM_PREFIX: &str = "setu-";
/// Value of [`MANAGED_BY`] on objects that Setu creates.
pub const SETU: &str = "setu";

/// Annotations of a Workload that may name the trace in which its Job was submitted. Kueue copies the second from the
/// Job.
pub const TRACEPARENT: [&str; 2] = ["traceparent", "provreq.kueue.x-k8s.io/setu-traceparent"];

/// Karpenter: prevents voluntary disruption of a node while its value is `"true"`.
pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// Karpenter, from 1.15: prevents the repair of an unhealthy node while its value is `"true"`; repair ignores
/// [`DO_NOT_DISRUPT`].
pub const DO_NOT_REPAIR: &str = "karpenter.sh/do-not-repair";
/// Karpenter: the NodePool of a NodeClaim or Node.
pub const NODEPOOL: &str = "karpenter.sh/nodepool";
/// Karpenter: hash of the NodePool's template, compared for drift.
pub const NODEPOOL_HASH: &str = "karpenter.sh/nodepool-hash";
/// Karpenter: version of the algorithm behind [`NODEPOOL_HASH`].
pub const NODEPOOL_HASH_VERSION: &str = "karpenter.sh/nodepool-hash-version";
/// Karpenter: whether `minValues` were relaxed when the claim was created.
pub const MIN_VALUES_RELAXED: &str = "karpenter.sh/nodeclaim-min-values-relaxed";
/// Karpenter, where it handles dynamic resource allocation: the drivers whose ResourceSlices a node needs to count as initialized,
/// separated by commas.
pub const DRA_DRIVERS: &str = "karpenter.sh/requested-dra-drivers";
/// Karpenter: spot, on-demand or reserved.
pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";
/// Karpenter: the capacity type of reservations.
pub const RESERVED: &str = "reserved";
/// Karpenter on AWS: label that names the capacity reservation a node is launched into.
pub const RESERVATION_ID: &str = "karpenter.k8s.aws/capacity-reservation-id";
/// Karpenter on AWS: label that shows whether that is a Capacity Block.
pub const RESERVATION_TYPE: &str = "karpenter.k8s.aws/capacity-reservation-type";
/// Karpenter: label set on a Node once it is registered.
pub const REGISTERED: &str = "karpenter.sh/registered";
/// Karpenter: label set on a Node once it is initialized.
pub const INITIALIZED: &str = "karpenter.sh/initialized";
/// Domain whose keys Karpenter reserves for itself.
pub const KARPENTER_DOMAIN: &str = "karpenter.sh";

/// Kubernetes: the host name label, which a NodeClaim may not require.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// Kubernetes: zone of a node.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// AWS: the zone by its id, which is the same in every account.
pub const ZONE_ID: &str = "topology.k8s.aws/zone-id";
/// Kubernetes: region of a node.
pub const REGION: &str = "topology.kubernetes.io/region";
/// Kubernetes: instance type of a node.
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
/// Kubernetes: CPU architecture of a node.
pub const ARCH: &str = "kubernetes.io/arch";
/// Kubernetes: operating system of a node.
pub const OS: &str = "kubernetes.io/os";
/// Kubernetes: Windows build of a node.
pub const WINDOWS_BUILD: &str = "node.kubernetes.io/windows-build";

/// Labels of providers with the number of GPUs of a machine.
pub const DEVICE_COUNTS: [&str; 3] = [
    "karpenter.k8s.aws/instance-gpu-count",
    "karpenter.azure.com/sku-gpu-count",
    "karpenter.k8s.gcp/instance-gpu-count",
];

/// Key of the journal's annotation for a check.
pub fn journal_key(check: &str) -> String {
    format!("{JOURNAL_PREFIX}{check}")
}

/// Key of the annotation with the gang's state for users.
pub fn state_key(check: &str) -> String {
    format!("{STATE_PREFIX}{check}")
}
