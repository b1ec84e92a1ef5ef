//! A check's policy as the client sees it, and the prices it gives.
//!
//! Rule: ProvisioningParameters are read from the cluster. The controller's policy file and Karpenter's metrics count only
//! if the user names them. The controller's flags are not known here.

use super::CliError;
use super::cluster::ClusterObjects;
use super::karpenter_metrics::KarpenterMetrics;
use crate::api::NodeClaim;
use crate::api::amount::{Currency, Money, Price};
use crate::api::parameters::{Budget, ProvisioningParametersSpec};
use crate::plan::cost::{Cost, Prices};
use crate::plan::market::Market;
use crate::plan::source::Source;
use crate::policy::terms::unlimited;
use crate::policy::{Policy, PolicyFile, Settings};
use kube::ResourceExt;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// What the controller goes by.
#[derive(clap::Args, Debug)]
pub struct ControllersPolicy {
    /// The controller's policy file: its prices and deadlines count. Without it, those of ProvisioningParameters alone.
    #[arg(long, env = "SETU_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    karpenter: KarpenterMetrics,
}

impl ControllersPolicy {
    /// The current content of Karpenter's metrics, if their page is named and can be read.
    pub async fn market(&self) -> Result<Option<Arc<Market>>, CliError> {
        Ok(self.karpenter.market().await?.map(Arc::new))
    }

    /// Reads the policy file, if one was named.
    pub fn settings(&self) -> Result<Option<Settings>, CliError> {
        let read = |path: &PathBuf| PolicyFile::read(path).map_err(|e| CliError::Invalid(e.to_string()));
        Ok(self.config.as_ref().map(read).transpose()?.map(Settings::from))
    }
}

/// Where prices come from.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PricedBy {
    /// The catalogue, because no policy known here states prices.
    ListPrices,
    /// Karpenter's metrics, with the catalogue for offerings that they do not price.
    KarpenterMetrics,
    /// The check's ProvisioningParameters; the controller's policy file is not known.
    Parameters,
    /// The policy file and ProvisioningParameters.
    Policy,
}

impl fmt::Display for PricedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ListPrices => "list prices",
            Self::KarpenterMetrics => "Karpenter's metrics",
            Self::Parameters => "the check's ProvisioningParameters",
            Self::Policy => "the check's policy",
        })
    }
}

/// The hourly cost of nodes.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct HourlyCost {
    /// The upper bound.
    pub cost_per_hour: Price,
    /// Its currency.
    pub currency: Currency,
    /// Where the prices come from.
    pub priced_by: PricedBy,
}

impl HourlyCost {
    /// The cost with its currency, for display.
    pub fn money(&self) -> Money {
        Money { price: self.cost_per_hour, currency: self.currency }
    }
}

/// The prices by which the nodes of a check are counted.
#[derive(Clone, Debug)]
pub struct PricesOfCheck {
    budget: Budget,
    market: Option<Arc<Market>>,
    by: PricedBy,
}

impl PricesOfCheck {
    /// The cost of these nodes.
    pub fn cost<'c>(&self, claims: impl IntoIterator<Item = &'c NodeClaim>) -> Cost {
        let nodes = claims.into_iter().map(|claim| (claim, 1));
        Prices { budget: &self.budget, market: self.market.as_deref() }.of_nodes(nodes)
    }

    /// The hourly cost with the source of the prices, if there are nodes and all prices are known.
    pub fn hourly(&self, cost: &Cost) -> Option<HourlyCost> {
        let is_live = cost.sources.iter().any(|source| matches!(source, Source::Metrics { .. }));
        let by =
            if self.by == PricedBy::ListPrices && is_live { PricedBy::KarpenterMetrics } else { self.by };
        let (currency, priced_by) = (cost.currency, by);
        cost.known().map(|cost_per_hour| HourlyCost { cost_per_hour, currency, priced_by })
    }
}

impl ClusterObjects {
    /// The policy of a check. Unknown deadlines are far in the future.
    pub fn policy(&self, check: &str) -> Policy {
        let parameters = self.parameters_of(check);
        if let Some(settings) = &self.settings {
            return settings.policy(check, parameters);
        }
        let unknown = unlimited(Policy::default());
        parameters.map_or(unknown.clone(), |spec| unknown.overlaid(spec))
    }

    /// The prices by which the nodes of a check are counted.
    pub fn prices_of(&self, check: &str) -> PricesOfCheck {
        let budget = self.policy(check).budget;
        let states = budget.currency.is_some() || budget.prices.is_some() || budget.multiplier.is_some();
        let by = match &self.settings {
            _ if !states => PricedBy::ListPrices,
            None => PricedBy::Parameters,
            Some(_) => PricedBy::Policy,
        };
        PricesOfCheck { budget, market: self.market.clone(), by }
    }

    fn parameters_of(&self, check: &str) -> Option<&ProvisioningParametersSpec> {
        let name = self.check(check)?.parameters_name()?;
        self.parameters.iter().find(|p| p.name_any() == name).map(|p| &p.spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::AdmissionCheck;
    use crate::names;
    use serde_json::json;

    #[test]
    fn parameters_of_another_kind_do_not_price_a_check() {
        let priced_by = |group: &str, kind: &str| {
            let check: AdmissionCheck = serde_json::from_value(json!({
                "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "c"},
                "spec": {"parameters": {"apiGroup": group, "kind": kind, "name": "same"}},
            }))
            .unwrap();
            let parameters = serde_json::from_value(json!({
                "apiVersion": "setu.kueue.x-k8s.io/v1alpha1", "kind": names::PARAMETERS_KIND,
                "metadata": {"name": "same"}, "spec": {"gates": {"budget": {"currency": "EUR"}}},
            }))
            .unwrap();
            let (checks, parameters) = (Some(vec![check]), vec![parameters]);
            ClusterObjects { checks, parameters, ..ClusterObjects::default() }.prices_of("c").by
        };
        assert_eq!(priced_by(names::API_GROUP, names::PARAMETERS_KIND), PricedBy::Parameters);
        assert_eq!(priced_by("kueue.x-k8s.io", "ProvisioningRequestConfig"), PricedBy::ListPrices);
    }
}
