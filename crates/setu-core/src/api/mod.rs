//! Types of the objects that Setu reads and writes, and nothing else.
//!
//! Foreign kinds have only the fields that are read. Unread fields (whole pod specs) are dropped while decoding, and a new
//! field upstream never breaks us. No I/O happens here.

pub mod admission_check;
pub mod amount;
pub mod condition;
pub mod daemon_set;
pub mod device_class;
pub mod duration;
pub mod flavor;
pub mod front_end;
pub mod namespace;
pub mod node;
pub mod node_claim;
pub mod node_pool;
pub mod parameters;
pub mod pod;
pub mod provisioning_request;
pub mod quantity;
pub mod queue;
pub mod requirements;
pub mod resource_claim_template;
pub mod resource_slice;
pub mod workload;

pub use admission_check::AdmissionCheck;
pub use daemon_set::DaemonSet;
pub use device_class::DeviceClass;
pub use flavor::{ResourceFlavor, Topology};
pub use front_end::FrontEnd;
pub use namespace::Namespace;
pub use node::Node;
pub use node_claim::NodeClaim;
pub use node_pool::NodePool;
pub use parameters::{ProvisioningParameters, RawParameters};
pub use pod::Pod;
pub use provisioning_request::ProvisioningRequest;
pub use queue::{ClusterQueue, Cohort, LocalQueue};
pub use resource_claim_template::ResourceClaimTemplate;
pub use workload::Workload;
