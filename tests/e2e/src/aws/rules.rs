//! Faults of the cloud, and the calls they apply to. The one rule: the provider sees a fault exactly as EC2 shows it.

use std::time::Duration;

/// The market that an instance is bought on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ec2Market {
    /// At the list price.
    OnDemand,
    /// At the current spot price, until EC2 reclaims it.
    Spot,
    /// In a capacity reservation, which may be a Capacity Block.
    Reserved,
}

impl Ec2Market {
    /// The name in Karpenter's capacity type label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::Spot => "spot",
            Self::Reserved => "reserved",
        }
    }

    /// The name in CreateFleet. Launches into a reservation are on demand there.
    pub(super) const fn in_fleet(self) -> &'static str {
        match self {
            Self::OnDemand | Self::Reserved => "on-demand",
            Self::Spot => "spot",
        }
    }
}

/// A set of offerings: everything, unless a field restricts it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offerings {
    /// Only this instance type.
    pub instance_type: Option<String>,
    /// Only in this zone.
    pub zone: Option<String>,
    /// Only on this market.
    pub market: Option<Ec2Market>,
}

impl Offerings {
    /// All offerings of one instance type.
    pub fn of(instance_type: &str) -> Self {
        Self { instance_type: Some(instance_type.to_owned()), ..Self::default() }
    }

    /// Restricts them to one zone.
    #[must_use]
    pub fn in_zone(mut self, zone: &str) -> Self {
        self.zone = Some(zone.to_owned());
        self
    }

    /// Restricts them to one market.
    #[must_use]
    pub fn on(mut self, market: Ec2Market) -> Self {
        self.market = Some(market);
        self
    }

    pub(super) fn include(&self, instance_type: &str, zone: &str, market: Ec2Market) -> bool {
        self.instance_type.as_deref().is_none_or(|wanted| wanted == instance_type)
            && self.zone.as_deref().is_none_or(|wanted| wanted == zone)
            && self.market.is_none_or(|wanted| wanted == market)
    }
}

/// Why CreateFleet returns no instance of an offering. The codes are EC2's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetRefusal {
    /// EC2 has no capacity.
    InsufficientInstanceCapacity,
    /// The fleet could not be fulfilled.
    UnfulfillableCapacity,
    /// The account's quota for spot instances is used up.
    MaxSpotInstanceCountExceeded,
    /// The account's quota for vCPUs is used up.
    VcpuLimitExceeded,
    /// The launch of this offering is throttled, but not the call.
    RequestLimitExceeded,
    /// The capacity reservation has no room.
    ReservationCapacityExceeded,
    /// The launch template names an instance profile that does not exist. This does not depend on the rules.
    NoInstanceProfile,
}

impl FleetRefusal {
    /// The error code in the answer of CreateFleet.
    pub const fn code(self) -> &'static str {
        match self {
            Self::InsufficientInstanceCapacity => "InsufficientInstanceCapacity",
            Self::UnfulfillableCapacity => "UnfulfillableCapacity",
            Self::MaxSpotInstanceCountExceeded => "MaxSpotInstanceCountExceeded",
            Self::VcpuLimitExceeded => "VcpuLimitExceeded",
            Self::RequestLimitExceeded => "RequestLimitExceeded",
            Self::ReservationCapacityExceeded => "ReservationCapacityExceeded",
            Self::NoInstanceProfile => "InvalidParameterValue",
        }
    }

    /// The error message in the answer of CreateFleet, with EC2's wording where Karpenter parses it.
    pub(super) const fn message(self) -> &'static str {
        match self {
            Self::NoInstanceProfile => {
                "Value for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
            }
            _ => "refused by a rule",
        }
    }
}

/// One fault. Actions are named without the service, for example `CreateFleet`.
#[derive(Clone, Debug)]
pub enum Ec2Rule {
    /// CreateFleet launches none of these.
    Refuse(Offerings, FleetRefusal),
    /// There is capacity for this many more of these. Calls for more get the rest, and InsufficientInstanceCapacity.
    Room(Offerings, usize),
    /// At most this many of these run at a time. Calls for more get the rest, and InsufficientInstanceCapacity.
    AtMost(Offerings, usize),
    /// The next calls of this action, up to this many, fail with RequestLimitExceeded.
    Throttle(&'static str, usize),
    /// The next calls of this action, up to this many, are executed, but the connection closes before the answer.
    LoseAnswer(&'static str, usize),
    /// Every call of this action first waits this long.
    Delay(&'static str, Duration),
    /// DescribeInstances returns an instance only this long after its launch.
    Lag(Duration),
}

/// The faults of one call that depend only on its action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Treatment {
    pub delay: Duration,
    pub throttled: bool,
    pub lost: bool,
}

/// The faults of a call of this action. Decrements the counters of the rules.
pub(super) fn treatment(rules: &mut [Ec2Rule], action: &str) -> Treatment {
    let mut treatment = Treatment::default();
    for rule in rules {
        match rule {
            Ec2Rule::Delay(of, by) if *of == action => treatment.delay += *by,
            Ec2Rule::Throttle(of, left) if *of == action => treatment.throttled |= use_up(left),
            // A throttled call is not executed, so it has no answer to lose.
            Ec2Rule::LoseAnswer(of, left) if *of == action && !treatment.throttled => {
                treatment.lost |= use_up(left);
            }
            _ => {}
        }
    }
    treatment
}

fn use_up(left: &mut usize) -> bool {
    let some = *left > 0;
    *left = left.saturating_sub(1);
    some
}

/// Instance type, zone and market.
pub(super) type Ec2Offering<'a> = (&'a str, &'a str, Ec2Market);

/// How many of the wanted instances of an offering are granted next to the running ones, and why not all. Decrements
/// the capacity that is left.
pub(super) fn grant(
    rules: &mut [Ec2Rule],
    running: &[Ec2Offering],
    (instance_type, zone, market): Ec2Offering,
    wanted: usize,
) -> (usize, Option<FleetRefusal>) {
    let refused = rules.iter().find_map(|rule| match rule {
        Ec2Rule::Refuse(of, why) if of.include(instance_type, zone, market) => Some(*why),
        _ => None,
    });
    if refused.is_some() {
        return (0, refused);
    }
    let bounds = rules.iter().filter_map(|rule| match rule {
        Ec2Rule::AtMost(of, most) if of.include(instance_type, zone, market) => {
            Some(most.saturating_sub(running.iter().filter(|(t, z, m)| of.include(t, z, *m)).count()))
        }
        _ => None,
    });
    let bounds: Vec<usize> = bounds.collect();
    let rooms = rules.iter_mut().filter_map(|rule| match rule {
        Ec2Rule::Room(of, left) if of.include(instance_type, zone, market) => Some(left),
        _ => None,
    });
    let mut rooms: Vec<&mut usize> = rooms.collect();
    let given = rooms.iter().map(|left| **left).chain(bounds).min().map_or(wanted, |left| left.min(wanted));
    for left in &mut rooms {
        **left -= given;
    }
    (given, (given < wanted).then_some(FleetRefusal::InsufficientInstanceCapacity))
}

/// How far DescribeInstances lags behind.
pub(super) fn lag(rules: &[Ec2Rule]) -> Duration {
    let lags = rules.iter().filter_map(|rule| match rule {
        Ec2Rule::Lag(by) => Some(*by),
        _ => None,
    });
    lags.max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_decremented_and_refusals_come_first() {
        let mut rules = [
            Ec2Rule::Room(Offerings::of("g5.xlarge"), 3),
            Ec2Rule::Refuse(
                Offerings::default().in_zone("b").on(Ec2Market::Spot),
                FleetRefusal::VcpuLimitExceeded,
            ),
        ];
        let mut ask = |zone, wanted| grant(&mut rules, &[], ("g5.xlarge", zone, Ec2Market::Spot), wanted);
        assert_eq!(ask("b", 2), (0, Some(FleetRefusal::VcpuLimitExceeded)));
        assert_eq!(ask("a", 2), (2, None));
        assert_eq!(ask("a", 2), (1, Some(FleetRefusal::InsufficientInstanceCapacity)));
        assert_eq!(ask("a", 2), (0, Some(FleetRefusal::InsufficientInstanceCapacity)));
        assert_eq!(grant(&mut rules, &[], ("m5.large", "a", Ec2Market::OnDemand), 2), (2, None));
    }

    #[test]
    fn at_most_limits_the_running_instances() {
        let mut rules = [Ec2Rule::AtMost(Offerings::of("g5.xlarge").on(Ec2Market::Spot), 3)];
        let mut ask =
            |running: &[Ec2Offering], market| grant(&mut rules, running, ("g5.xlarge", "a", market), 2);
        let one = ("g5.xlarge", "b", Ec2Market::Spot);
        let others = [("g5.xlarge", "a", Ec2Market::OnDemand), ("g5.2xlarge", "a", Ec2Market::Spot)];
        assert_eq!(ask(&others, Ec2Market::Spot), (2, None));
        let short = Some(FleetRefusal::InsufficientInstanceCapacity);
        assert_eq!(ask(&[one, one], Ec2Market::Spot), (1, short));
        assert_eq!(ask(&[one; 4], Ec2Market::Spot), (0, short));
        assert_eq!(ask(&[one; 4], Ec2Market::OnDemand), (2, None));
        assert_eq!(ask(&[], Ec2Market::Spot), (2, None));
    }

    #[test]
    fn a_rule_about_on_demand_does_not_apply_to_a_reservation() {
        let mut rules = [
            Ec2Rule::Refuse(Offerings::default().on(Ec2Market::OnDemand), FleetRefusal::VcpuLimitExceeded),
            Ec2Rule::Room(Offerings::of("g5.xlarge").on(Ec2Market::Reserved), 1),
            Ec2Rule::Room(Offerings::of("m5.large"), 1),
        ];
        let mut ask = |instance_type, market| grant(&mut rules, &[], (instance_type, "a", market), 2);
        let short = Some(FleetRefusal::InsufficientInstanceCapacity);
        assert_eq!(ask("g5.xlarge", Ec2Market::OnDemand), (0, Some(FleetRefusal::VcpuLimitExceeded)));
        assert_eq!(ask("g5.xlarge", Ec2Market::Reserved), (1, short));
        assert_eq!(ask("m5.large", Ec2Market::Reserved), (1, short));
    }

    #[test]
    fn a_throttled_call_loses_no_answer() {
        let mut rules = [Ec2Rule::Throttle("CreateFleet", 1), Ec2Rule::LoseAnswer("CreateFleet", 1)];
        let mut call = |action| treatment(&mut rules, action);
        assert_eq!(call("CreateTags"), Treatment::default());
        assert_eq!(call("CreateFleet"), Treatment { throttled: true, ..Treatment::default() });
        assert_eq!(call("CreateFleet"), Treatment { lost: true, ..Treatment::default() });
        assert_eq!(call("CreateFleet"), Treatment::default());
    }
}
