//! Which policy applies: to a check now, and to an attempt since its start.
//!
//! Rule: a change affects only new attempts. `registry` keeps the policy that an attempt began with until it is over. A
//! replica that takes over a gang in flight keeps the policy of its own first reconcile.

use crate::api::parameters::ProvisioningParametersSpec;
use crate::cluster::lock;
use crate::policy::{Policy, PolicyFile, Settings};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

/// The result of reading a check's parameters.
pub type Parameters = Result<Option<ProvisioningParametersSpec>, String>;

/// The most notices kept. Beyond that, some may be repeated.
const MOST_NOTICES: usize = 100_000;

/// How many policies are compared with a new one.
const MOST_SHARED: usize = 32;

/// A replica's policies. Kept apart from the registry, because they are of checks and not of gangs: `app/reload` and the
/// AdmissionCheck controller write them, and every reconcile reads them.
#[derive(Default)]
pub struct Policies {
    settings: RwLock<Arc<Settings>>,
    /// By check name, with the check's UID.
    parameters: Mutex<BTreeMap<String, (String, Parameters)>>,
    /// How often settings or parameters have changed.
    revision: AtomicU64,
}

impl Policies {
    /// Starts with these settings.
    pub fn new(settings: Settings) -> Self {
        Self { settings: RwLock::new(Arc::new(settings)), ..Self::default() }
    }

    /// The current settings.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How often settings or parameters have changed.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::SeqCst)
    }

    /// Puts another policy file in force, in a cluster that serves these API groups.
    pub fn replace(&self, file: PolicyFile, served_groups: Vec<String>) {
        let mut settings = self.settings.write().unwrap_or_else(PoisonError::into_inner);
        let command_line = settings.command_line.clone();
        *settings = Arc::new(Settings { file, command_line, served_groups });
        self.revision.fetch_add(1, Ordering::SeqCst);
    }

    /// Records the parameters of the check of this name and UID. Returns whether they changed.
    pub fn set_parameters(&self, check: &str, uid: &str, parameters: Parameters) -> bool {
        let now = (uid.to_owned(), parameters);
        let mut all = lock(&self.parameters);
        let has_changed = all.get(check) != Some(&now);
        self.revision.fetch_add(u64::from(has_changed), Ordering::SeqCst);
        all.insert(check.to_owned(), now);
        has_changed
    }

    /// The result of reading a check's parameters; `None` while they have not been read.
    pub fn parameters(&self, check: &str) -> Option<Parameters> {
        lock(&self.parameters).get(check).map(|(_, parameters)| parameters.clone())
    }
}

/// The policies of the latest attempts. Most attempts get the same one.
#[derive(Debug, Default)]
pub struct SharedPolicies(VecDeque<Weak<Policy>>);

impl SharedPolicies {
    /// Returns an equal policy already in use, or this one.
    pub fn one_like(&mut self, policy: &Arc<Policy>) -> Arc<Policy> {
        self.0.retain(|known| known.strong_count() > 0);
        if let Some(known) = self.0.iter().filter_map(Weak::upgrade).find(|known| known == policy) {
            return known;
        }
        if self.0.len() >= MOST_SHARED {
            self.0.pop_front();
        }
        self.0.push_back(Arc::downgrade(policy));
        Arc::clone(policy)
    }
}

/// The notices that Workloads got about their policies, by UID.
#[derive(Debug, Default)]
pub struct Notices(BTreeSet<(String, String)>);

impl Notices {
    /// Records that a Workload with this UID gets this notice; returns whether it is new.
    pub fn note(&mut self, uid: &str, notice: &str) -> bool {
        if self.0.len() >= MOST_NOTICES {
            self.0.pop_first();
        }
        self.0.insert((uid.to_owned(), notice.to_owned()))
    }

    /// How many notices are kept.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Forgets the notices of a Workload that is gone.
    pub fn forget(&mut self, uid: &str) {
        let from = (uid.to_owned(), String::new());
        let of_it: Vec<_> = self.0.range(from..).take_while(|(of, _)| of == uid).cloned().collect();
        for notice in of_it {
            self.0.remove(&notice);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_new_once_for_each_workload() {
        let mut notices = Notices::default();
        assert!(notices.note("u1", "x") && notices.note("u2", "x") && notices.note("u1", "y"));
        assert!(!notices.note("u1", "x"));
        notices.forget("u1");
        assert!(notices.note("u1", "x") && !notices.note("u2", "x"));
    }
}
