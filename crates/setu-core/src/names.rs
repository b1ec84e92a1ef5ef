//! Every label, annotation, taint key, finalizer and field manager that Setu or its neighbours use.
//!
//! Rule: nowhere else in the code is such a key spelled out, so that a key has one spelling and
//! `grep` on this file answers what Setu writes into a cluster.

/// Default `spec.controllerName` of the AdmissionChecks that Setu serves.
pub const CONTROLLER_NAME: &str = "setu.kueue.x-k8s.io/provisioning";
/// `spec.controllerName` of Kueue's own provisioning check, for which alone Kueue puts off the placement of
/// pods by topology until the nodes are there.
pub const PROVISIONING_REQUEST: &str = "kueue.x-k8s.io/provisioning-request";
/// Class of the ProvisioningRequests that Setu serves.
pub const REQUEST_CLASS: &str = "atomic.setu.kueue.x-k8s.io";
/// Start of the name under which a ProvisioningRequest is seen as a Workload.
pub const REQUEST_PREFIX: &str = "provisioningrequest/";
/// Start of the parameters of a ProvisioningRequest by which a job asks for what the policy opens under `jobOverrides`. Kueue
/// copies them from [`JOB_OVERRIDE_PREFIX`].
pub const REQUEST_PARAMETER_PREFIX: &str = "setu-";
/// API group in which ProvisioningRequests are served.
pub const AUTOSCALING_GROUP: &str = "autoscaling.x-k8s.io";
/// API group of the NodeClasses of Karpenter's kwok provider.
pub const KWOK_GROUP: &str = "karpenter.kwok.sh";
/// Field manager of every write Setu makes but [`QUEUE_MANAGER`]'s.
pub const FIELD_MANAGER: &str = "setu";
/// Field manager of the condition `Requeued` of a refused gang's Workload. It is another one because whoever applies a
/// check's verdict leaves that condition out, and would have it taken away.
pub const QUEUE_MANAGER: &str = "setu-queue";
/// API group of Setu's own kinds.
pub const API_GROUP: &str = "setu.kueue.x-k8s.io";
/// Kind of the parameters an AdmissionCheck may name.
pub const PARAMETERS_KIND: &str = "ProvisioningParameters";

/// The check that is meant where nobody names one, as the chart names it.
pub const DEFAULT_CHECK: &str = "karpenter-provision";
/// Kueue: label that names the LocalQueue of a Job.
pub const QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// Kueue: label of a Job that bounds, in seconds, how long its Workload runs.
pub const MAX_EXECUTION: &str = "kueue.x-k8s.io/max-exec-time-seconds";
/// Kueue: `spec.controllerName` of the checks that send a Workload's pods to another cluster.
pub const MULTIKUEUE: &str = "kueue.x-k8s.io/multikueue";
/// Kueue: annotation of every Workload that it made for a Job which may grow and shrink while it runs.
pub const ELASTIC_JOB: &str = "kueue.x-k8s.io/elastic-job";
/// Kueue: annotation of a Workload that takes another's place when such a Job grows: `namespace/name`.
pub const SLICE_REPLACES: &str = "kueue.x-k8s.io/workload-slice-replacement-for";
/// Kueue: condition of a Workload. While it is False the Workload is in no queue.
pub const REQUEUED: &str = "Requeued";
/// Reason of that condition on a Workload that Setu keeps out of its queue.
pub const REFUSED: &str = "RefusedBySetu";
/// Reason of that condition on one that Setu has kept out before.
pub const ALLOWED: &str = "RefusalBySetuEnded";
/// Kueue: its own finalizer on Workloads, taken off once their pods are stopped.
pub const KUEUE_FINALIZER: &str = "kueue.x-k8s.io/resource-in-use";
/// Kubernetes: label of every Namespace that bears its name.
pub const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// Kubernetes: prefix of the extended resource that every DeviceClass serves; the class's name follows.
pub const DEVICE_CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// Prefix of the journal's annotation key on a Workload; the check's name follows.
pub const JOURNAL_PREFIX: &str = "gang.setu.kueue.x-k8s.io/";
/// Prefix of the annotation that states the gang's state for people; the check's name follows.
pub const STATE_PREFIX: &str = "state.setu.kueue.x-k8s.io/";

/// Finalizer on a Workload whose nodes must be gone before it is.
pub const FINALIZER: &str = "setu.kueue.x-k8s.io/nodeclaims";

/// Prefix of the annotations, copied by Kueue from Job to Workload, by which a Job asks for what the
/// policy opens under `jobOverrides`; the key follows.
pub const JOB_OVERRIDE_PREFIX: &str = "provreq.kueue.x-k8s.io/setu-";

/// Label on NodeClaim and Node: the gang's id. Also the key of the node selector and of the taint.
pub const GANG: &str = "setu.kueue.x-k8s.io/gang";
/// Label on NodeClaim and Node: UID of the Workload the claim was made for.
pub const WORKLOAD_UID: &str = "setu.kueue.x-k8s.io/workload-uid";
/// Label on NodeClaim and Node: number of the attempt the claim belongs to.
pub const ATTEMPT: &str = "setu.kueue.x-k8s.io/attempt";
/// Annotation on NodeClaim and Node: index of the slot within the gang. On objects of earlier versions a label. Providers
/// launch NodeClaims together only where all their labels are equal.
pub const SLOT: &str = "setu.kueue.x-k8s.io/slot";
/// Annotation on NodeClaim and Node: number of the replacement the claim was made in; 0 on those of the attempt's start.
/// On objects of earlier versions a label, absent on those of the attempt's start.
pub const GENERATION: &str = "setu.kueue.x-k8s.io/generation";
/// Annotation on a NodeClaim: `namespace/name` of its Workload.
pub const WORKLOAD: &str = "setu.kueue.x-k8s.io/workload";
/// Annotation on a NodeClaim that was made for a ProvisioningRequest: `namespace/name/UID` of the Workload that owns the request.
pub const OWNER: &str = "setu.kueue.x-k8s.io/owner";
/// Annotation on a NodeClaim: the AdmissionCheck it was made for.
pub const CHECK: &str = "setu.kueue.x-k8s.io/check";
/// Annotation of a shard's Lease: the replica that asks for the shard.
pub const WANTED_BY: &str = "setu.kueue.x-k8s.io/wanted-by";
/// Annotation on a NodeClaim: RFC 3339 time after which nobody needs to hold the node any more.
pub const HOLD_UNTIL: &str = "setu.kueue.x-k8s.io/hold-until";
/// Annotation on a NodeClaim: digest of the terms that its gang's attempt is judged by.
pub const TERMS: &str = "setu.kueue.x-k8s.io/terms";
/// Label on a NodeClaim that is kept for a next gang: a digest of the LocalQueue and the check it is kept for.
pub const WARM: &str = "setu.kueue.x-k8s.io/warm";
/// Annotation on such a NodeClaim: `namespace/name` of that LocalQueue.
pub const WARM_QUEUE: &str = "setu.kueue.x-k8s.io/local-queue";
/// Annotation on such a NodeClaim: RFC 3339 time since when it is kept.
pub const WARM_SINCE: &str = "setu.kueue.x-k8s.io/warm-since";
/// Annotation on a NodeClaim that is being handed back to Karpenter: from then on it is not deleted, because pods of
/// others may be on its Node.
pub const HANDING_BACK: &str = "setu.kueue.x-k8s.io/handing-back";
/// Annotation on a NodeClaim that was kept for its gang: RFC 3339 time at which the gang took it over.
pub const TAKEN_OVER: &str = "setu.kueue.x-k8s.io/taken-over-at";
/// Label that says who made an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Start of the name of every NodeClaim that Setu makes.
pub const CLAIM_PREFIX: &str = "setu-";
/// Value of [`MANAGED_BY`] on what Setu makes.
pub const SETU: &str = "setu";

/// Annotations of a Workload in which its Job may name the trace it was submitted in. Kueue copies the
/// second from the Job.
pub const TRACEPARENT: [&str; 2] = ["traceparent", "provreq.kueue.x-k8s.io/setu-traceparent"];

/// Karpenter: keeps voluntary disruption away from a node while its value is `"true"`.
pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// Karpenter, from 1.15: keeps the repair of unhealthy nodes away from a node while its value is `"true"`; repair does not
/// mind [`DO_NOT_DISRUPT`].
pub const DO_NOT_REPAIR: &str = "karpenter.sh/do-not-repair";
/// Karpenter: the NodePool of a NodeClaim or Node.
pub const NODEPOOL: &str = "karpenter.sh/nodepool";
/// Karpenter: hash of the NodePool's template, compared for drift.
pub const NODEPOOL_HASH: &str = "karpenter.sh/nodepool-hash";
/// Karpenter: version of the algorithm behind [`NODEPOOL_HASH`].
pub const NODEPOOL_HASH_VERSION: &str = "karpenter.sh/nodepool-hash-version";
/// Karpenter: says whether `minValues` were relaxed when the claim was made.
pub const MIN_VALUES_RELAXED: &str = "karpenter.sh/nodeclaim-min-values-relaxed";
/// Karpenter: spot, on-demand or reserved.
pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";
/// Karpenter on AWS: label that names the capacity reservation a node is launched into.
pub const RESERVATION_ID: &str = "karpenter.k8s.aws/capacity-reservation-id";
/// Karpenter on AWS: label that tells whether that is a Capacity Block.
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
/// The zone by the id that it has in every account of AWS.
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

/// Labels of providers that tell how many GPUs a machine has.
pub const DEVICE_COUNTS: [&str; 3] = [
    "karpenter.k8s.aws/instance-gpu-count",
    "karpenter.azure.com/sku-gpu-count",
    "karpenter.k8s.gcp/instance-gpu-count",
];

/// Key of the journal's annotation for a check.
pub fn journal_key(check: &str) -> String {
    format!("{JOURNAL_PREFIX}{check}")
}

/// Key of the annotation that states the gang's state for people.
pub fn state_key(check: &str) -> String {
    format!("{STATE_PREFIX}{check}")
}
