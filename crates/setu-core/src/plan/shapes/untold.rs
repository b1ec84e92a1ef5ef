//! What is not known of an instance type, so that no bound is said to be kept by it.

use crate::plan::resources;

/// What is known of the accelerators of an instance type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accelerators {
    /// Its labels and resources tell what it has.
    #[default]
    Told,
    /// It has some, and nobody says how many.
    Some,
    /// Nobody says whether it has any.
    Unknown,
}

/// What is not known of the resources of an instance type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Untold {
    /// How much it has of a resource that every node has.
    Resource(&'static str),
    /// How many accelerators it has, of any kind.
    Accelerators,
    /// How many devices it has of kinds other than these, which are all that its provider's catalogue has.
    OtherDevices(&'static [String]),
}

impl Untold {
    /// Whether it is not known how much there is of a resource.
    pub fn covers(&self, resource: &str) -> bool {
        match self {
            Self::Resource(key) => *key == resource,
            Self::Accelerators => resources::is_accelerator(resource),
            Self::OtherDevices(listed) => {
                resources::is_device(resource) && !listed.iter().any(|key| key == resource)
            }
        }
    }
}
