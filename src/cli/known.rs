//! What can be known here of a check's policy, and what nodes cost by it.
//!
//! Rule: its ProvisioningParameters are in the cluster; the controller's policy file counts where the user names it. What the
//! controller was told in flags, and Karpenter's metrics, are not known here.

use super::Failure;
use super::cluster::Snapshot;
use crate::api::NodeClaim;
use crate::api::amount::{Currency, Money, Price};
use crate::api::duration::Span;
use crate::api::parameters::{Budget, ProvisioningParametersSpec};
use crate::plan::cost::Prices;
use crate::policy::{Limits, Policy, PolicyFile, Settings};
use kube::ResourceExt;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// Stands for a deadline that only the controller knows, since its policy file cannot be read here.
const NOT_KNOWN: Span = Span::minutes(100 * 365 * 24 * 60);

/// The policy file of the controller.
#[derive(clap::Args, Debug)]
pub struct ControllersPolicy {
    /// The controller's policy file: its prices and deadlines count. Without it, those of ProvisioningParameters alone.
    #[arg(long, env = "SETU_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ControllersPolicy {
    /// Reads it, if it was named.
    pub fn settings(&self) -> Result<Option<Settings>, Failure> {
        let read = |path: &PathBuf| PolicyFile::read(path).map_err(|e| Failure::Invalid(e.to_string()));
        Ok(self.config.as_ref().map(read).transpose()?.map(Settings::from))
    }
}

/// Whose prices they are.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PricedBy {
    /// The catalogue's, as no policy that is known here says otherwise.
    ListPrices,
    /// What the check's ProvisioningParameters make of them; the controller's policy file is not known.
    Parameters,
    /// What the policy file and ProvisioningParameters make of them.
    Policy,
}

impl fmt::Display for PricedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ListPrices => "list prices",
            Self::Parameters => "the check's ProvisioningParameters",
            Self::Policy => "the check's policy",
        })
    }
}

/// What nodes cost an hour.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HourlyCost {
    /// How much, at most.
    pub cost_per_hour: Price,
    /// The currency of that.
    pub currency: Currency,
    /// By whose prices.
    pub priced_by: PricedBy,
}

impl HourlyCost {
    /// For people.
    pub fn money(&self) -> Money {
        Money { price: self.cost_per_hour, currency: self.currency }
    }
}

/// What nodes that were made for a check cost by.
#[derive(Clone, Debug)]
pub struct PricesOfCheck {
    budget: Budget,
    by: PricedBy,
}

impl PricesOfCheck {
    /// What these nodes cost, if there are any and all their prices are known.
    pub fn cost<'c>(&self, claims: impl IntoIterator<Item = &'c NodeClaim>) -> Option<HourlyCost> {
        let nodes = claims.into_iter().map(|claim| (claim, 1));
        let cost = Prices { budget: &self.budget, market: None }.of_nodes(nodes);
        let (currency, priced_by) = (cost.currency, self.by);
        cost.known().map(|cost_per_hour| HourlyCost { cost_per_hour, currency, priced_by })
    }
}

impl Snapshot {
    /// The policy of a check. Deadlines that are not known are far in the future.
    pub fn policy(&self, check: &str) -> Policy {
        let parameters = self.parameters_of(check);
        if let Some(settings) = &self.settings {
            return settings.policy(check, parameters);
        }
        let deadlines = Limits {
            launch: NOT_KNOWN,
            register: NOT_KNOWN,
            initialize: NOT_KNOWN,
            gang: NOT_KNOWN,
            admit: NOT_KNOWN,
        };
        let unknown = Policy { deadlines, ..Policy::default() };
        parameters.map_or(unknown.clone(), |spec| unknown.overlaid(spec))
    }

    /// What nodes that were made for a check cost by.
    pub fn prices_of(&self, check: &str) -> PricesOfCheck {
        let budget = self.policy(check).budget;
        let states = budget.currency.is_some() || budget.prices.is_some() || budget.multiplier.is_some();
        let by = match &self.settings {
            _ if !states => PricedBy::ListPrices,
            None => PricedBy::Parameters,
            Some(_) => PricedBy::Policy,
        };
        PricesOfCheck { budget, by }
    }

    fn parameters_of(&self, check: &str) -> Option<&ProvisioningParametersSpec> {
        let named = self.checks.iter().flatten().find(|c| c.name_any() == check)?.spec.parameters.as_ref()?;
        self.parameters.iter().find(|p| p.name_any() == named.name).map(|p| &p.spec)
    }
}
