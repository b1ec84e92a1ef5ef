//! Checks the capacity reservations of a tier. `check` calls it for each tier that a layer states.

use super::path::{Finding, Path};
use crate::api::parameters::{CapacityReservation, CapacityType, Tier};
use crate::api::requirements::{Requirements, Values, is_label_value};
use crate::names;
use crate::words::to_the_second;

/// Their problems, by path from the tier.
pub fn faults(tier: &Tier) -> Vec<Finding> {
    let root = Path::default();
    let (at, all) = (root.key("reservations"), &tier.reservations);
    let mut found = Vec::new();
    for (index, one) in all.iter().enumerate() {
        found.extend(of_one(&at.index(index), one, tier));
        if all.iter().take(index).any(|other| other.id == one.id) {
            found.push((at.index(index).key("id"), format!("a second reservation of the id {}", one.id)));
        }
    }
    if found.is_empty() {
        found.extend(never_open(&at, all));
    }
    let mut asked = Requirements::default();
    // Unreadable requirements are reported where they are.
    let reserved = Values::one(CapacityType::Reserved.value());
    if !all.is_empty() && asked.add_all(&tier.requirements).is_ok() {
        let clash = asked.add(names::CAPACITY_TYPE, &reserved).err();
        found.extend(clash.map(|clash| {
            let message = format!(
                "asks for {} {}, and reservations give nodes of capacity type reserved alone; take one of both out",
                clash.key, clash.offered
            );
            (root.key("requirements"), message)
        }));
    }
    found
}

fn of_one(at: &Path, one: &CapacityReservation, tier: &Tier) -> Vec<Finding> {
    let mut found = Vec::new();
    for (key, value) in
        [("id", Some(&one.id)), ("instanceType", one.instance_type.as_ref()), ("zone", one.zone.as_ref())]
    {
        if let Some(value) = value.filter(|value| value.is_empty() || !is_label_value(value)) {
            found.push((at.key(key), format!("{value:?} cannot be the value of a label")));
        }
    }
    if one.nodes == 0 {
        found.push((at.key("nodes"), "has room for no node; write 1 or more".to_owned()));
    }
    if let Some(zone) = one.zone.as_ref().filter(|zone| !tier.zones.is_empty() && !tier.zones.contains(zone))
    {
        found
            .push((at.key("zone"), format!("{zone} is none of the tier's zones, {}", tier.zones.join(", "))));
    }
    if let (Some(opens), Some(closes), Some(ends)) = (one.opens, one.closes, one.ends())
        && ends <= opens
    {
        let (opens, closes) = (to_the_second(opens), to_the_second(closes));
        let early = if closes > opens { ": nodes of a Capacity Block go 40 minutes before" } else { "" };
        found.push((at.key("closes"), format!("{closes} leaves no time after opens, {opens}{early}")));
    }
    found
}

/// Reports reservations if one ends before another opens.
fn never_open(at: &Path, all: &[CapacityReservation]) -> Option<Finding> {
    let (last, opens) =
        all.iter().filter_map(|one| Some((one, one.opens?))).max_by_key(|(_, opens)| *opens)?;
    let (first, ends) =
        all.iter().filter_map(|one| Some((one, one.ends()?))).min_by_key(|(_, ends)| *ends)?;
    (ends <= opens).then(|| {
        let message = format!(
            "{} gives up its nodes before {} opens, so that the tier is never open; put them into tiers of their own",
            first.id, last.id
        );
        (at.clone(), message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_words(tier: &str) -> Vec<String> {
        let tier: Tier = serde_yaml::from_str(tier).unwrap();
        faults(&tier).into_iter().map(|(path, message)| format!("{path}: {message}")).collect()
    }

    #[test]
    fn unusable_reservations_are_reported_with_the_reason() {
        for (tier, expected) in [
            ("{id: cr-1, nodes: 0}", "reservations[0].nodes: has room for no node; write 1 or more"),
            ("{id: '', nodes: 1}", "reservations[0].id: \"\" cannot be the value of a label"),
            (
                "{id: cr-1, nodes: 1}, {id: cr-1, nodes: 1}",
                "reservations[1].id: a second reservation of the id cr-1",
            ),
            (
                "{id: cr-1, nodes: 1, opens: 2026-12-01T08:00:00Z, closes: 2026-12-01T08:00:00Z}",
                "reservations[0].closes: 2026-12-01T08:00:00Z leaves no time after opens, 2026-12-01T08:00:00Z",
            ),
            (
                "{id: cr-1, type: capacity-block, nodes: 1, opens: 2026-12-01T08:00:00Z, closes: 2026-12-01T08:30:00Z}",
                "reservations[0].closes: 2026-12-01T08:30:00Z leaves no time after opens, 2026-12-01T08:00:00Z: nodes of a \
                 Capacity Block go 40 minutes before",
            ),
            (
                "{id: cr-1, nodes: 1, closes: 2026-12-01T08:00:00Z}, {id: cr-2, nodes: 1, opens: 2026-12-02T08:00:00Z}",
                "reservations: cr-1 gives up its nodes before cr-2 opens, so that the tier is never open; put them into tiers \
                 of their own",
            ),
            ("{id: cr-1, nodes: 1, zone: b}", "reservations[0].zone: b is none of the tier's zones, a"),
        ] {
            assert_eq!(in_words(&format!("{{name: t, zones: [a], reservations: [{tier}]}}")), [expected]);
        }
        let open = "{name: t, reservations: [{id: cr-1, nodes: 1, closes: 2026-12-02T08:00:00+01:00}, {id: cr-2, nodes: 2}]}";
        assert_eq!(in_words(open), [""; 0]);
    }

    #[test]
    fn a_tier_with_another_capacity_type_is_reported() {
        let tier = |kind: &str| {
            format!(
                "{{name: t, reservations: [{{id: cr-1, nodes: 1}}], requirements: [{{key: {}, operator: In, values: [{kind}]}}]}}",
                names::CAPACITY_TYPE
            )
        };
        let expected = "requirements: asks for karpenter.sh/capacity-type [spot], and reservations give nodes of capacity type \
                        reserved alone; take one of both out";
        assert_eq!(in_words(&tier("spot")), [expected]);
        assert_eq!(in_words(&tier("reserved")), [""; 0]);
    }
}
