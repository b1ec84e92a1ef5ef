//! The merge that Kueue will do when it starts the pods, done before anything is bought.
//!
//! Kueue finds a clash only at the start, and then finishes the Workload as failed. So a clash must
//! never reach it.

use super::demand::flavors;
use super::{Cluster, Obstacle, ObstacleReason, Request};
use crate::api::workload::PodSetUpdate;
use std::collections::BTreeMap;

/// Checks that template, flavors, other checks' updates and ours can be merged for every pod set.
pub fn check(cluster: &Cluster<'_>, request: &Request<'_>, ours: &[PodSetUpdate]) -> Result<(), Obstacle> {
    for pod_set in &request.workload.spec.pod_sets {
        let template = &pod_set.template;
        let mut selector = Merged::new("nodeSelector", &pod_set.name);
        let mut labels = Merged::new("label", &pod_set.name);
        let mut annotations = Merged::new("annotation", &pod_set.name);
        selector.add("the pod template", &template.spec.node_selector)?;
        labels.add("the pod template", &template.metadata.labels)?;
        annotations.add("the pod template", &template.metadata.annotations)?;
        for flavor in flavors(cluster.flavors, request.workload, &pod_set.name)? {
            let who = format!("ResourceFlavor {}", flavor.metadata.name.as_deref().unwrap_or_default());
            selector.add(&who, &flavor.spec.node_labels)?;
        }
        let others = request.workload.checks().iter().filter(|c| c.name != request.check);
        let theirs =
            others.flat_map(|c| c.pod_set_updates.iter().map(move |u| (format!("check {}", c.name), u)));
        let all = theirs.chain(ours.iter().map(|u| (format!("check {}", request.check), u)));
        for (who, update) in all.filter(|(_, u)| u.name == pod_set.name) {
            selector.add(&who, &update.node_selector)?;
            labels.add(&who, &update.labels)?;
            annotations.add(&who, &update.annotations)?;
        }
    }
    Ok(())
}

/// A map in the making that remembers who set each key.
struct Merged<'a> {
    what: &'static str,
    pod_set: &'a str,
    values: BTreeMap<String, (String, String)>,
}

impl<'a> Merged<'a> {
    fn new(what: &'static str, pod_set: &'a str) -> Self {
        Self { what, pod_set, values: BTreeMap::new() }
    }

    fn add(&mut self, who: &str, more: &BTreeMap<String, String>) -> Result<(), Obstacle> {
        for (key, value) in more {
            match self.values.get(key) {
                Some((_, old)) if old == value => {}
                Some((first, old)) => {
                    return Err(Obstacle::new(
                        ObstacleReason::UpdatesClash,
                        format!(
                            "{} {key} of pod set {} is {old} in {first} and {value} in {who}; Kueue could not start the \
                             pods, so make them agree",
                            self.what, self.pod_set
                        ),
                    ));
                }
                None => {
                    self.values.insert(key.clone(), (who.to_owned(), value.clone()));
                }
            }
        }
        Ok(())
    }
}
