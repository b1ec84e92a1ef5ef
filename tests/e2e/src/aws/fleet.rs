//! CreateFleet as EC2 answers it. Instances are launched offering by offering, the cheapest first, up to the limits of
//! the rules. moto has no capacity limits, so each part is forwarded to it. A repeated client token gets the same
//! answer again, and launches nothing.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::{Context, Result};

use super::proxy::ProxyShared;
use super::rules::{Ec2Market, FleetRefusal};
use super::wire::Form;
use super::xml::{items, parsed};

const CONFIG: &str = "LaunchTemplateConfigs.";
const TERMS: &str = "TargetCapacitySpecification.DefaultTargetCapacityType";

/// One of the overrides in a call.
#[derive(Clone, Debug)]
struct FleetOverride {
    instance_type: String,
    zone: String,
    subnet: String,
    image: String,
    price: f64,
    template: String,
    /// The parameters of a call to moto for this offer only.
    form: Form,
}

impl FleetOverride {
    /// The capacity type in the call.
    fn terms(&self) -> &str {
        self.form.get(TERMS).map(String::as_str).unwrap_or_default()
    }
}

/// Launches instances, and returns the XML answer of CreateFleet.
pub(super) async fn create(shared: &Arc<ProxyShared>, form: &Form) -> Result<String> {
    let _buying = shared.buying.lock().await;
    let token = form.get("ClientToken").cloned().unwrap_or_default();
    if let Some(known) = shared.answered(&token) {
        return Ok(known);
    }
    let text = |key: &str| form.get(key).map(String::as_str).unwrap_or_default();
    let mut wanted: usize =
        text("TargetCapacitySpecification.TotalTargetCapacity").parse().context("reading the capacity")?;
    let (mut bought, mut errors) = (String::new(), String::new());
    for offer in offers(form) {
        if wanted == 0 {
            break;
        }
        let market = market(shared, &offer);
        let (given, refusal) = granted(shared, &offer, market, wanted).await?;
        if given > 0 {
            let ids = buy(shared, &offer, market, given).await?;
            wanted -= given;
            bought.push_str(&instances(&offer, market, &ids));
        }
        if let Some(refusal) = refusal {
            errors.push_str(&error(&offer, market, refusal));
        }
    }
    let answer = format!(
        "<CreateFleetResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><requestId>e2e</requestId>\
         <fleetId>fleet-{token}</fleetId><errorSet>{errors}</errorSet>\
         <fleetInstanceSet>{bought}</fleetInstanceSet></CreateFleetResponse>"
    );
    shared.answer(token, answer.clone());
    Ok(answer)
}

/// The market that an offer is bought on.
fn market(shared: &ProxyShared, offer: &FleetOverride) -> Ec2Market {
    if shared.reservation(&offer.template).is_some() {
        Ec2Market::Reserved
    } else if offer.terms() == Ec2Market::Spot.in_fleet() {
        Ec2Market::Spot
    } else {
        Ec2Market::OnDemand
    }
}

/// How many instances of an offer are launched, and why not all. The rules apply to as many as its reservation has room
/// for.
async fn granted(
    shared: &Arc<ProxyShared>,
    offer: &FleetOverride,
    market: Ec2Market,
    wanted: usize,
) -> Result<(usize, Option<FleetRefusal>)> {
    if !shared.has_profile(&offer.template).await? {
        return Ok((0, Some(FleetRefusal::NoInstanceProfile)));
    }
    let room = match shared.reservation(&offer.template) {
        Some(id) => wanted.min(shared.room(&id, offer.terms() == "capacity-block").await?),
        None => wanted,
    };
    let (given, refusal) = shared.grant((&offer.instance_type, &offer.zone, market), room).await?;
    let full = (room < wanted).then_some(FleetRefusal::ReservationCapacityExceeded);
    Ok((given, refusal.or(full)))
}

/// The offers of a call, the cheapest first.
fn offers(form: &Form) -> Vec<FleetOverride> {
    let common: Form = form.iter().filter(|(key, _)| !key.starts_with(CONFIG)).map(cloned).collect();
    let mut offers = Vec::new();
    for config in (1..).map(|n| below(form, &format!("{CONFIG}{n}."))).take_while(|config| !config.is_empty())
    {
        let specification = below(&config, "LaunchTemplateSpecification.");
        for over in
            (1..).map(|n| below(&config, &format!("Overrides.{n}."))).take_while(|over| !over.is_empty())
        {
            let text = |key: &str| over.get(key).cloned().unwrap_or_default();
            let mut form = common.clone();
            let prefixed = |under: &str, part: &Form| -> Form {
                part.iter().map(|(key, value)| (format!("{CONFIG}1.{under}.{key}"), value.clone())).collect()
            };
            form.extend(prefixed("LaunchTemplateSpecification", &specification));
            form.extend(prefixed("Overrides.1", &over));
            offers.push(FleetOverride {
                instance_type: text("InstanceType"),
                zone: text("AvailabilityZone"),
                subnet: text("SubnetId"),
                image: text("ImageId"),
                price: text("Priority").parse().unwrap_or(f64::MAX),
                template: specification.get("LaunchTemplateName").cloned().unwrap_or_default(),
                form,
            });
        }
    }
    offers.sort_by(|a, b| a.price.total_cmp(&b.price));
    offers
}

/// The parameters with this prefix, which is removed from their keys.
fn below(form: &Form, prefix: &str) -> Form {
    let under = form.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
    under.filter_map(|(key, value)| Some((key.strip_prefix(prefix)?.to_owned(), value.clone()))).collect()
}

fn cloned((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}

/// Launches this many instances of one offer in moto, and returns their IDs.
async fn buy(
    shared: &Arc<ProxyShared>,
    offer: &FleetOverride,
    market: Ec2Market,
    number: usize,
) -> Result<Vec<String>> {
    let mut form = offer.form.clone();
    // moto does not support Capacity Blocks.
    form.insert(TERMS.to_owned(), market.in_fleet().to_owned());
    form.insert("TargetCapacitySpecification.TotalTargetCapacity".to_owned(), number.to_string());
    let fields: Vec<(&str, &str)> = form
        .iter()
        .filter(|(key, _)| !matches!(key.as_str(), "Action" | "Version"))
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    let said = shared.moto.query("ec2", "CreateFleet", &fields).await?;
    let ids = items(&parsed(&said)?, "instanceIds", |item| item.text().unwrap_or_default().to_owned());
    shared.launched(&ids, &offer.template, market);
    Ok(ids)
}

fn place(offer: &FleetOverride) -> String {
    format!(
        "<launchTemplateAndOverrides><launchTemplateSpecification><launchTemplateName>{}</launchTemplateName>\
         </launchTemplateSpecification><overrides><instanceType>{}</instanceType><subnetId>{}</subnetId>\
         <availabilityZone>{}</availabilityZone><imageId>{}</imageId></overrides></launchTemplateAndOverrides>",
        offer.template, offer.instance_type, offer.subnet, offer.zone, offer.image
    )
}

fn instances(offer: &FleetOverride, market: Ec2Market, ids: &[String]) -> String {
    let mut members = String::new();
    for id in ids {
        // Writing to a String does not fail.
        let _ = write!(members, "<item>{id}</item>");
    }
    format!(
        "<item>{}<lifecycle>{}</lifecycle><instanceIds>{members}</instanceIds><instanceType>{}</instanceType></item>",
        place(offer),
        market.in_fleet(),
        offer.instance_type
    )
}

fn error(offer: &FleetOverride, market: Ec2Market, refusal: FleetRefusal) -> String {
    format!(
        "<item>{}<lifecycle>{}</lifecycle><errorCode>{}</errorCode><errorMessage>{}</errorMessage></item>",
        place(offer),
        market.in_fleet(),
        refusal.code(),
        refusal.message()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn offers_are_sorted_by_price_and_each_has_its_own_form() {
        let form: Form = [
            ("LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName", "one"),
            ("LaunchTemplateConfigs.1.Overrides.1.InstanceType", "dear"),
            ("LaunchTemplateConfigs.1.Overrides.1.Priority", "2.5"),
            ("LaunchTemplateConfigs.1.Overrides.2.InstanceType", "cheap"),
            ("LaunchTemplateConfigs.1.Overrides.2.Priority", "0.5"),
            ("TagSpecification.1.ResourceType", "instance"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into_iter()
        .collect();
        let offers = offers(&form);
        let types: Vec<&str> = offers.iter().map(|offer| offer.instance_type.as_str()).collect();
        assert_eq!(types, ["cheap", "dear"]);
        let asked: BTreeMap<&str, &str> =
            offers[0].form.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(asked["LaunchTemplateConfigs.1.Overrides.1.InstanceType"], "cheap");
        assert_eq!(asked["LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName"], "one");
        assert_eq!((asked["TagSpecification.1.ResourceType"], asked.len()), ("instance", 4));
    }
}
