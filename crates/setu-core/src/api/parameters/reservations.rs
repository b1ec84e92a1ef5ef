//! Capacity that the provider reserves for its customer, for the nodes of a tier.

use crate::words::to_the_second;
use jiff::{SignedDuration, Timestamp};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// Karpenter deletes the nodes of a Capacity Block this long before its end: ten minutes before EC2 does.
const BLOCK_ENDS_EARLY: SignedDuration = SignedDuration::from_mins(40);

/// One capacity reservation of AWS, an On-Demand Capacity Reservation or a Capacity Block.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CapacityReservation {
    /// Its id: the value of label `karpenter.k8s.aws/capacity-reservation-id`.
    #[schemars(length(min = 1, max = 63))]
    pub id: String,
    /// Its type: the value of label `karpenter.k8s.aws/capacity-reservation-type`.
    #[serde(default, rename = "type", skip_serializing_if = "ReservationType::is_default")]
    pub kind: ReservationType,
    /// Instance type that it is for. If every reservation of the tier states it, NodeClaims allow only these types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// Zone that it is in. If every reservation of the tier states it, NodeClaims allow only these zones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// How many instances it is for.
    #[schemars(range(min = 1))]
    pub nodes: u32,
    /// When it begins, such as `2026-12-01T08:00:00Z`; absent where it has begun.
    #[serde(default, deserialize_with = "time", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    pub opens: Option<Timestamp>,
    /// When it ends; absent where it does not. Karpenter takes the nodes of a `capacity-block` away 40 minutes before.
    #[serde(default, deserialize_with = "time", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time_schema")]
    pub closes: Option<Timestamp>,
}

/// What a reservation is bought as.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum ReservationType {
    /// An On-Demand Capacity Reservation.
    #[default]
    Default,
    /// A Capacity Block, bought for a time to come.
    CapacityBlock,
}

impl ReservationType {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_default(&self) -> bool {
        *self == Self::Default
    }
}

impl CapacityReservation {
    /// When its nodes are deleted, if they are.
    pub fn ends(&self) -> Option<Timestamp> {
        let early = match self.kind {
            ReservationType::Default => SignedDuration::ZERO,
            ReservationType::CapacityBlock => BLOCK_ENDS_EARLY,
        };
        self.closes.map(|closes| closes.checked_sub(early).unwrap_or(closes))
    }

    /// Text that follows its name: when it closes, and when it gives up its nodes if that is earlier.
    pub fn closing(&self) -> Option<String> {
        let closes = to_the_second(self.closes?);
        Some(match self.kind {
            ReservationType::Default => format!("closes at {closes}"),
            ReservationType::CapacityBlock => {
                format!("closes at {closes} and gives up its nodes at {}", to_the_second(self.ends()?))
            }
        })
    }
}

impl fmt::Display for CapacityReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ReservationType::Default => "reservation",
            ReservationType::CapacityBlock => "Capacity Block",
        };
        write!(f, "{kind} {}", self.id)
    }
}

/// Parses a point in time.
fn time<'de, D: Deserializer<'de>>(written: D) -> Result<Option<Timestamp>, D::Error> {
    let Some(text) = Option::<String>::deserialize(written)? else { return Ok(None) };
    let bad = |_| D::Error::custom(format!("{text:?} is not a time such as 2026-12-01T08:00:00Z"));
    text.parse().map(Some).map_err(bad)
}

fn time_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}
