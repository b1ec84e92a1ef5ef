//! The slices of an elastic Job as one: their pods run together, on the nodes of all of them.

use crate::api::{NodeClaim, Workload};
use crate::controllers::Context;
use crate::names;
use crate::plan::demand::pods_of;
use std::sync::Arc;

/// Whether pods may be without a node because this slice, whose place another one has taken, lost some: no
/// other slice makes nodes instead, and the line has fewer than it has pods.
pub(super) fn is_missed(context: &Context, replaced: &Workload, pin: &str) -> bool {
    let line = replaced.line();
    let workloads = context.stores.workloads.state();
    let runs = |w: &&Arc<Workload>| {
        let ends = w.is("Finished") || w.is("Evicted") || w.metadata.deletion_timestamp.is_some();
        w.is("QuotaReserved") && !ends && w.spec.active != Some(false) && w.line() == line
    };
    let pods = workloads.iter().filter(runs).map(|slice| pods_of(slice)).max();
    let stays = |c: &&Arc<NodeClaim>| c.metadata.deletion_timestamp.is_none() && c.label(names::GANG) == pin;
    let nodes = context.stores.claims.state().iter().filter(stays).count();
    pods.is_some_and(|pods| usize::try_from(pods).is_ok_and(|pods| pods > nodes))
}
