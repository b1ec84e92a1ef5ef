//! Unknown amounts of an instance type, so that no bound on them is reported as kept.

use crate::plan::resources;

/// How far the accelerators of an instance type are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accelerators {
    /// Its labels and resources state them.
    #[default]
    Stated,
    /// It has some, and their number is unknown.
    Some,
    /// It is unknown whether it has any.
    Unknown,
}

/// A resource amount of an instance type that is unknown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnknownAmount {
    /// The amount of a resource that every node has.
    Resource(&'static str),
    /// The number of accelerators of any kind.
    Accelerators,
    /// The number of devices of kinds other than these, which are all that the provider's catalogue lists.
    OtherDevices(&'static [String]),
}

impl UnknownAmount {
    /// Whether the amount of a resource is unknown.
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
