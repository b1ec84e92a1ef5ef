//! Compares the embedded catalogue with the values that Karpenter's provider uses.

use crate::play::{Play, Stage};
use crate::setu::get_whole;
use ::setu::api::pod::ResourceList;
use ::setu::api::quantity::Amount;
use ::setu::api::requirements::Requirements;
use ::setu::plan::catalogue::{self, Catalogue, ListPrice};
use ::setu::plan::resources::amount;
use anyhow::{Context as _, Result, bail, ensure};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use setu_e2e::aws::{FAMILIES, REGION};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Families to compare besides those that every scenario sells: large accelerators, Neuron, Arm and AMD.
const MORE: [&str; 13] =
    ["p3dn", "p4d", "p4de", "p5", "p5en", "p6-b200", "trn1", "trn1n", "inf2", "g5g", "m7g", "c7a", "m5a"];

/// The minimum number of types to compare.
const TYPES: usize = 90;

/// The image in the manifest, and one for Arm.
const IMAGES: [&str; 2] = ["ami-0b301ce3ce347599c", "ami-0e9271c829888680e"];

/// The largest relative difference from the provider's value, in thousandths.
const THOUSANDTHS_OFF: i128 = 1;

/// Karpenter refreshes its types once a minute.
const REFRESHED: Duration = Duration::from_mins(2);

/// Resources that only one side knows: the disk, whose size a NodeClass sets, and the network interfaces, which Karpenter
/// counts only if a NodeClaim requests them.
const NOT_COMPARED: [&str; 2] = ["ephemeral-storage", "vpc.amazonaws.com/efa"];

/// The catalogue and the provider agree on allocatable resources and prices, for one NodeClaim of each type.
pub async fn agrees(stage: &Stage) -> Result<()> {
    let cloud = stage.stack.cloud()?;
    cloud.sell(&MORE);
    let compared = compared_with(stage).await;
    cloud.sell(&[]);
    stage.restart_karpenter().await?;
    compared
}

async fn compared_with(stage: &Stage) -> Result<()> {
    // Otherwise it would use the resources of Nodes from earlier scenarios.
    stage.restart_karpenter().await?;
    let mut play = Play::start(stage, "catalogue", "g5.4xlarge", json!({})).await?;
    let images = IMAGES.map(|id| json!({"id": id}));
    play.steps(json!([{"patch": {"kind": "EC2NodeClass", "name": "${id}", "patch": {"spec": {"amiSelectorTerms": images}}}}]))
        .await?;
    play.until("the EC2NodeClass has both images", REFRESHED, async |play| {
        Ok(play.node_class("/status/amis/1").await?.is_some())
    })
    .await?;
    play.until_ready().await?;
    let catalogue = catalogue::of("karpenter.k8s.aws").context("there is no catalogue")?;
    let types = types(catalogue)?;
    ensure!(types.len() >= TYPES, "only {types:?} are sold");
    let claims: Vec<Value> = types.iter().map(|name| claim(name)).collect();
    play.steps(json!([{"apply": claims}])).await?;
    let said = launched(&play, &types).await?;
    let page = stage.stack.karpenter_metrics();
    play.until("Karpenter's metrics have all prices", REFRESHED, async |_| {
        let prices = prices(&get_whole(&page, "/metrics")?)?;
        Ok(types.iter().all(|name| prices.contains_key(*name)))
    })
    .await?;
    let prices = prices(&get_whole(&page, "/metrics")?)?;
    remove(&play).await?;
    let mut wrong = Vec::new();
    for (name, provider) in &said {
        let ours = &catalogue.get(name).context("a type is gone")?.shape.allocatable;
        wrong.extend(differences(ours, provider).into_iter().map(|what| format!("{name}: {what}")));
        let Some(ListPrice::There(price)) = catalogue.price(name, Some(REGION)) else {
            bail!("{name} has no price in {REGION}");
        };
        let ours = i128::from(price.micros) * 1000;
        let theirs = *prices.get(*name).with_context(|| format!("Karpenter tells no price of {name}"))?;
        if is_off(ours, theirs) {
            wrong.push(format!("{name}: an hour costs {ours} nano-dollars here and {theirs} there"));
        }
    }
    println!("{} types compared", said.len());
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    play.end().await
}

fn types(catalogue: &Catalogue) -> Result<Vec<&str>> {
    let mut requirements = Requirements::default();
    let families: Vec<&str> = FAMILIES.into_iter().chain(MORE).collect();
    let of = json!([{"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": families}]);
    let added = requirements.add_all(&serde_json::from_value::<Vec<_>>(of)?);
    ensure!(added.is_ok(), "{added:?}");
    Ok(catalogue.matching(&requirements).iter().map(|found| found.shape.instance_type.as_str()).collect())
}

fn claim(instance_type: &str) -> Value {
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": named(instance_type), "labels": {"example.com/compared": "true"}},
        "spec": {
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "${id}"},
            "requirements": [
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [instance_type]},
                {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
            ],
        },
    })
}

fn named(instance_type: &str) -> String {
    format!("compared-{}", instance_type.replace('.', "-"))
}

fn claims(play: &Play<'_>) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.sh", "v1", "NodeClaim"));
    Api::all_with(play.world.client.clone(), &kind)
}

fn compared() -> ListParams {
    ListParams::default().labels("example.com/compared=true")
}

/// The allocatable resources of each type, as Karpenter reports them.
async fn launched<'t>(play: &Play<'_>, types: &[&'t str]) -> Result<BTreeMap<&'t str, ResourceList>> {
    let said = async |play: &Play<'_>| -> Result<BTreeMap<&'t str, ResourceList>> {
        let mut said = BTreeMap::new();
        for claim in claims(play).list(&compared()).await? {
            let name = claim.metadata.name.unwrap_or_default();
            let instance_type = types.iter().find(|known| named(known) == name);
            if let (Some(known), Some(list)) = (instance_type, claim.data.pointer("/status/allocatable")) {
                said.insert(*known, serde_json::from_value(list.clone())?);
            }
        }
        Ok(said)
    };
    play.until("every type is launched", Duration::from_mins(4), async |play| {
        Ok(said(play).await?.len() == types.len())
    })
    .await?;
    said(play).await
}

async fn remove(play: &Play<'_>) -> Result<()> {
    claims(play).delete_collection(&DeleteParams::default(), &compared()).await?;
    play.until("all of them are gone", Duration::from_mins(3), async |play| {
        Ok(claims(play).list(&compared()).await?.items.is_empty() && play.cloud.instances().await?.is_empty())
    })
    .await
}

/// The on-demand price per hour of each type, in billionths, from Karpenter's metrics.
fn prices(page: &str) -> Result<BTreeMap<String, i128>> {
    let mut prices = BTreeMap::new();
    for line in page.lines().filter(|line| line.contains("instance_type_offering_price_estimate{")) {
        let label = |key: &str| line.split(&format!("{key}=\"")).nth(1)?.split('"').next().map(str::to_owned);
        if label("capacity_type").as_deref() == Some("on-demand") {
            let value = line.rsplit(' ').next().unwrap_or_default();
            let price = Amount::parse(value).with_context(|| format!("{value} is no price"))?;
            prices.insert(label("instance_type").context("a price of no type")?, price.nanos());
        }
    }
    Ok(prices)
}

fn differences(ours: &ResourceList, theirs: &ResourceList) -> Vec<String> {
    let keys: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let of = |list: &ResourceList, key: &str| amount(list, key).nanos();
    let compared = keys.into_iter().filter(|key| !NOT_COMPARED.contains(&key.as_str()));
    let pairs = compared.map(|key| (key, of(ours, key), of(theirs, key)));
    pairs
        .filter(|(_, ours, theirs)| is_off(*ours, *theirs))
        .map(|(key, ours, theirs)| format!("{key} is {ours} billionths here and {theirs} there"))
        .collect()
}

fn is_off(ours: i128, theirs: i128) -> bool {
    (ours - theirs).abs() * 1000 > theirs.abs() * THOUSANDTHS_OFF
}
