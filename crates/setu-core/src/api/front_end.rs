//! The kinds of objects that gangs come from. For another front-end, add a variant here: the compiler then lists what has to be
//! decided for it, and where its journal and its verdict have to be written.

use super::Workload;

/// The kind of object that a [`Workload`] stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontEnd {
    /// A Workload of Kueue's, under a check of Setu's.
    Workload,
    /// A ProvisioningRequest, mirrored as a Workload. Kueue's own check made it, for a Workload.
    ProvisioningRequest,
    /// A Workload that Setu created for a standalone ProvisioningRequest. Kueue admits it, and has no pods of its own for it.
    StandaloneRequest,
}

impl FrontEnd {
    /// Whether Kueue queues it and reserves quota for it. For a request, the Workload that owns it has the quota.
    pub const fn holds_quota(self) -> bool {
        match self {
            Self::Workload | Self::StandaloneRequest => true,
            Self::ProvisioningRequest => false,
        }
    }

    /// Whether it may own ProvisioningRequests. A request owns none, whatever a tenant writes.
    pub const fn may_own_requests(self) -> bool {
        match self {
            Self::Workload | Self::StandaloneRequest => true,
            Self::ProvisioningRequest => false,
        }
    }

    /// Whether its checks are Setu's: they name ProvisioningParameters, and a Workload can have several. The check of a request is
    /// Kueue's, which answers it by what the request says.
    pub const fn has_own_checks(self) -> bool {
        match self {
            Self::Workload | Self::StandaloneRequest => true,
            Self::ProvisioningRequest => false,
        }
    }

    /// Whether it is a ProvisioningRequest. That lists exactly what needs nodes, and has failed for good once it is refused.
    pub const fn is_request(self) -> bool {
        match self {
            Self::Workload => false,
            Self::ProvisioningRequest | Self::StandaloneRequest => true,
        }
    }

    /// Whether Kueue adds the check's `podSetUpdates` to its pods when it admits them.
    pub const fn gets_pod_set_updates(self) -> bool {
        match self {
            Self::Workload => true,
            Self::ProvisioningRequest | Self::StandaloneRequest => false,
        }
    }

    /// Whether Kueue waits for its nodes before it assigns a topology.
    pub const fn delays_topology(self) -> bool {
        match self {
            Self::Workload | Self::StandaloneRequest => false,
            Self::ProvisioningRequest => true,
        }
    }
}

impl Workload {
    /// The kind of object that it stands for.
    pub fn front_end(&self) -> FrontEnd {
        match (self.request_name(), self.standalone_request()) {
            (Some(_), _) => FrontEnd::ProvisioningRequest,
            (None, Some(_)) => FrontEnd::StandaloneRequest,
            (None, None) => FrontEnd::Workload,
        }
    }
}
