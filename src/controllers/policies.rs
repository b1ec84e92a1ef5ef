//! Which policy applies: to a check now, and to an attempt since its start.
//!
//! Rule: a change affects only new attempts. [`Attempts`] keeps the policy that an attempt began with until it is over. A
//! replica that takes over a gang in flight keeps the policy of its own first reconcile.

use super::memory::lock;
use crate::api::parameters::ProvisioningParametersSpec;
use crate::policy::{Policy, PolicyFile, Settings};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

/// The result of reading a check's parameters.
pub type Parameters = Result<Option<ProvisioningParametersSpec>, String>;

/// The most notices kept. Beyond that, some may be repeated.
const MOST_NOTICES: usize = 100_000;

/// How many policies are searched for an equal one.
const MOST_GIVEN: usize = 32;

/// A replica's policies.
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
        let is_news = all.get(check) != Some(&now);
        self.revision.fetch_add(u64::from(is_news), Ordering::SeqCst);
        all.insert(check.to_owned(), now);
        is_news
    }

    /// The result of reading a check's parameters; `None` while they have not been read.
    pub fn parameters(&self, check: &str) -> Option<Parameters> {
        lock(&self.parameters).get(check).map(|(_, parameters)| parameters.clone())
    }
}

/// The policies of attempts, by the ids of their gangs.
#[derive(Debug, Default)]
pub struct Attempts {
    kept: Mutex<BTreeMap<String, (u32, Arc<Policy>)>>,
    /// The policies of the latest attempts. Most attempts get the same one.
    given: Mutex<VecDeque<Weak<Policy>>>,
}

impl Attempts {
    /// Keeps the policy of a gang's attempt.
    pub fn keep(&self, gang: &str, attempt: u32, policy: &Arc<Policy>) {
        let policy = self.one_of_its_like(policy);
        lock(&self.kept).insert(gang.to_owned(), (attempt, policy));
    }

    /// An equal policy that another attempt already has, or this one.
    fn one_of_its_like(&self, policy: &Arc<Policy>) -> Arc<Policy> {
        let mut given = lock(&self.given);
        given.retain(|known| known.strong_count() > 0);
        if let Some(known) = given.iter().filter_map(Weak::upgrade).find(|known| known == policy) {
            return known;
        }
        if given.len() >= MOST_GIVEN {
            given.pop_front();
        }
        given.push_back(Arc::downgrade(policy));
        Arc::clone(policy)
    }

    /// The policy of a gang's attempt, if it is known here.
    pub fn of(&self, gang: &str, attempt: u32) -> Option<Arc<Policy>> {
        let kept = lock(&self.kept);
        kept.get(gang).filter(|(of, _)| *of == attempt).map(|(_, policy)| Arc::clone(policy))
    }

    /// Forgets a gang that has no attempt in flight.
    pub fn forget(&self, gang: &str) {
        lock(&self.kept).remove(gang);
    }

    /// How many gangs a policy is kept for.
    pub fn count(&self) -> usize {
        lock(&self.kept).len()
    }
}

/// The notices that Workloads got about their policies, by UID.
#[derive(Debug, Default)]
pub struct Notices(Mutex<BTreeSet<(String, String)>>);

impl Notices {
    /// Whether a Workload with this UID gets this notice for the first time.
    pub fn is_news(&self, uid: &str, notice: &str) -> bool {
        let mut reported = lock(&self.0);
        if reported.len() >= MOST_NOTICES {
            reported.pop_first();
        }
        reported.insert((uid.to_owned(), notice.to_owned()))
    }

    /// How many notices are kept.
    pub fn count(&self) -> usize {
        lock(&self.0).len()
    }

    /// Forgets the notices of a Workload that is gone.
    pub fn forget(&self, uid: &str) {
        lock(&self.0).retain(|(of, _)| of != uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_keeps_its_policy_and_the_next_one_takes_the_new_one() {
        let (policies, attempts) = (Policies::default(), Attempts::default());
        let old = Arc::new(policies.settings().policy("c", None));
        attempts.keep("g", 1, &old);
        let text =
            "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\ndefaults: {deadlines: {launch: 9s}}";
        policies.replace(PolicyFile::parse(text).unwrap(), Vec::new());
        assert_ne!(policies.settings().policy("c", None), *old);
        assert_eq!(attempts.of("g", 1), Some(old));
        assert_eq!((attempts.of("g", 2), attempts.of("h", 1)), (None, None));
        attempts.forget("g");
        assert_eq!(attempts.of("g", 1), None);
    }

    #[test]
    fn attempts_of_equal_policies_share_one() {
        let (policies, attempts) = (Policies::default(), Attempts::default());
        for gang in ["g", "h"] {
            attempts.keep(gang, 1, &Arc::new(policies.settings().policy("c", None)));
        }
        let [g, h] = ["g", "h"].map(|gang| attempts.of(gang, 1).unwrap());
        assert!(Arc::ptr_eq(&g, &h));
    }

    #[test]
    fn a_notice_is_new_once_for_each_workload() {
        let notices = Notices::default();
        assert!(notices.is_news("u1", "x") && notices.is_news("u2", "x") && notices.is_news("u1", "y"));
        assert!(!notices.is_news("u1", "x"));
        notices.forget("u1");
        assert!(notices.is_news("u1", "x") && !notices.is_news("u2", "x"));
    }
}
