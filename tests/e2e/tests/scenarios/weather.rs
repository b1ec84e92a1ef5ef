//! Converts a scenario's weather to faults of EC2.

use ::setu::api::duration::Span;
use anyhow::{Context as _, Result, anyhow, ensure};
use serde::Deserialize;
use serde_json::Value;
use setu_e2e::aws::{Cloud, Comes, Ec2Market, Ec2Rule, MachineBehaviour, Offerings};
use std::time::Duration;

/// A rule of the weather. Only one world runs at a time, so its NodePool is ignored.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    #[serde(rename = "nodePool")]
    _node_pool: Option<String>,
    instance_type: Option<String>,
    zone: Option<String>,
    capacity_type: Option<String>,
    capacity: Option<usize>,
    launch_delay: Option<Span>,
    registration_delay: Option<Span>,
}

/// Sets the weather of the cloud. The error names a rule that EC2 cannot have.
pub fn set(cloud: &Cloud, weather: &[Value]) -> Result<()> {
    let (rules, machines) = read(weather)?;
    cloud.rules(rules);
    cloud.machines(machines);
    Ok(())
}

/// The faults, and how machines behave.
fn read(written: &[Value]) -> Result<(Vec<Ec2Rule>, MachineBehaviour)> {
    let (mut rules, mut machines) = (Vec::new(), MachineBehaviour::default());
    for value in written {
        let rule = Written::deserialize(value)
            .with_context(|| format!("weather that EC2 does not have: {value}"))?;
        let market = match rule.capacity_type.as_deref() {
            None => None,
            Some(name) => {
                Some(market(name).ok_or_else(|| anyhow!("no weather over {name} capacity: {value}"))?)
            }
        };
        let narrowed = rule.instance_type.is_some() || rule.zone.is_some() || market.is_some();
        let delayed = rule.launch_delay.is_some() || rule.registration_delay.is_some();
        ensure!(!(narrowed && delayed), "EC2 delays all machines alike: {value}");
        let of = Offerings { instance_type: rule.instance_type, zone: rule.zone, market };
        rules.extend(rule.capacity.map(|most| Ec2Rule::AtMost(of, most)));
        rules.extend(rule.launch_delay.map(|by| Ec2Rule::Delay("CreateFleet", long(by))));
        if let Some(by) = rule.registration_delay {
            machines.node = Comes::After(long(by));
        }
    }
    Ok((rules, machines))
}

fn market(name: &str) -> Option<Ec2Market> {
    [Ec2Market::OnDemand, Ec2Market::Spot].into_iter().find(|market| market.name() == name)
}

fn long(span: Span) -> Duration {
    Duration::try_from(span.signed()).unwrap_or_default()
}
