//! On-Demand Capacity Reservations and Capacity Blocks, which moto does not implement.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::Result;
use k8s_openapi::jiff::Timestamp;

use super::proxy::ProxyShared;
use super::wire::Form;

/// The state of a reservation that instances can be launched into.
pub(super) const ACTIVE: &str = "active";

/// A capacity reservation. Only instances that name it are launched into it.
#[derive(Clone, Debug, Default)]
pub struct Ec2Reservation {
    /// Its ID, `cr-…`.
    pub id: String,
    /// Its instance type.
    pub instance_type: String,
    /// Its zone.
    pub zone: String,
    /// The number of instances that it holds.
    pub nodes: usize,
    /// Whether it is a Capacity Block.
    pub block: bool,
    /// When it begins; without this it began long ago.
    pub begins: Option<Timestamp>,
    /// When it ends, if it does.
    pub ends: Option<Timestamp>,
}

impl Ec2Reservation {
    /// Its state at this time, as EC2 names it.
    pub(super) fn state(&self, now: Timestamp) -> &'static str {
        if self.ends.is_some_and(|ends| ends <= now) {
            "expired"
        } else if self.begins.is_some_and(|begins| begins > now) {
            "scheduled"
        } else {
            ACTIVE
        }
    }

    /// Formats it as a member of EC2's list, with this many available instances.
    fn member(&self, room: usize, now: Timestamp) -> String {
        let Self { id, instance_type, zone, nodes, .. } = self;
        let begins = self.begins.map_or_else(|| "2026-01-01T00:00:00Z".to_owned(), |time| time.to_string());
        let ends = self.ends.map_or_else(
            || "<endDateType>unlimited</endDateType>".to_owned(),
            |time| format!("<endDateType>limited</endDateType><endDate>{time}</endDate>"),
        );
        let kind = if self.block { "capacity-block" } else { "default" };
        format!(
            "<item><capacityReservationId>{id}</capacityReservationId><ownerId>123456789012</ownerId>\
             <instanceType>{instance_type}</instanceType><instancePlatform>Linux/UNIX</instancePlatform>\
             <availabilityZone>{zone}</availabilityZone><tenancy>default</tenancy>\
             <totalInstanceCount>{nodes}</totalInstanceCount><availableInstanceCount>{room}</availableInstanceCount>\
             <state>{}</state><startDate>{begins}</startDate>{ends}\
             <instanceMatchCriteria>targeted</instanceMatchCriteria><reservationType>{kind}</reservationType></item>",
            self.state(now)
        )
    }
}

/// The members of the list of capacity reservations, filtered by the IDs and states in the call, if it has any.
pub(super) async fn described(shared: &Arc<ProxyShared>, form: &Form) -> Result<String> {
    let now = Timestamp::now();
    let ids = values(form, "CapacityReservationId.");
    let states = states(form);
    let mut members = String::new();
    for one in shared.reservations() {
        let asked = |of: &[&str], value: &str| of.is_empty() || of.contains(&value);
        if asked(&ids, &one.id) && asked(&states, one.state(now)) {
            let room = shared.room(&one.id, one.block).await?;
            // Writing to a String does not fail.
            let _ = write!(members, "{}", one.member(room, now));
        }
    }
    Ok(members)
}

fn values<'f>(form: &'f Form, prefix: &str) -> Vec<&'f str> {
    let under = form.iter().filter(|(key, _)| key.starts_with(prefix));
    under.map(|(_, value)| value.as_str()).collect()
}

/// The states that a call filters by.
fn states(form: &Form) -> Vec<&str> {
    let named = form
        .iter()
        .find(|(key, name)| key.starts_with("Filter.") && key.ends_with(".Name") && name.as_str() == "state");
    let filter = named.and_then(|(key, _)| key.strip_suffix("Name"));
    filter.map(|filter| values(form, &format!("{filter}Value."))).unwrap_or_default()
}

/// Adds their reservations to the instances in an answer of DescribeInstances.
pub(super) fn with_them(mut text: String, shared: &ProxyShared) -> String {
    let all = shared.reservations();
    for (id, reservation) in shared.reserved() {
        let known = format!("<instanceId>{id}</instanceId>");
        let block = all.iter().any(|one| one.id == reservation && one.block);
        let lifecycle = if block { "<instanceLifecycle>capacity-block</instanceLifecycle>" } else { "" };
        let only =
            "<capacityReservationPreference>capacity-reservations-only</capacityReservationPreference>";
        let detailed = format!(
            "{known}{lifecycle}<capacityReservationId>{reservation}</capacityReservationId>\
             <capacityReservationSpecification>{only}</capacityReservationSpecification>"
        );
        text = text.replace(&known, &detailed);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Ec2Reservation {
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        Ec2Reservation { block: true, begins: at(10), ends: at(20), ..Default::default() }
    }

    #[test]
    fn a_reservation_is_active_between_its_times() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let states = [9, 10, 19, 20].map(|second| block().state(at(second)));
        assert_eq!(states, ["scheduled", "active", "active", "expired"]);
        assert_eq!(Ec2Reservation::default().state(at(0)), "active");
        let xml = block().member(3, at(15));
        for part in [
            "<startDate>1970-01-01T00:00:10Z</startDate>",
            "<endDateType>limited</endDateType><endDate>1970-01-01T00:00:20Z</endDate>",
            "<reservationType>capacity-block</reservationType>",
            "<availableInstanceCount>3</availableInstanceCount>",
        ] {
            assert!(xml.contains(part), "{xml}");
        }
    }

    #[test]
    fn the_state_filter_is_found_among_other_filters() {
        let form = |pairs: &[(&str, &str)]| -> Form {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let both = form(&[
            ("Filter.1.Name", "owner-id"),
            ("Filter.1.Value.1", "me"),
            ("Filter.2.Name", "state"),
            ("Filter.2.Value.1", "active"),
            ("Filter.2.Value.2", "scheduled"),
        ]);
        assert_eq!(states(&both), ["active", "scheduled"]);
        assert!(states(&form(&[("CapacityReservationId.1", "cr-1")])).is_empty());
    }
}
