//! Measures each attempt of a gang: when Setu created its NodeClaims, and which calls the provider made to EC2.

use crate::play::Play;
use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use setu_e2e::aws::{Form, ProviderCall};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The limit from the first NodeClaim of an attempt to the last: a quarter of the provider's longest batching window, so
/// that they are within that window on the slowest machine too.
const CREATED: Duration = Duration::from_millis(250);

/// How long the provider waits for another launch before it sends a batch to EC2.
const IDLE: Duration = Duration::from_millis(35);

/// From this many machines on, even a busy Karpenter batches some launches.
const MANY: usize = 8;

/// The parameter of CreateFleet with the name of the launch template.
pub const TEMPLATE: &str = "LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName";
const CAPACITY: &str = "TargetCapacitySpecification.TotalTargetCapacity";

/// One attempt of a scenario's only gang.
pub struct Attempt {
    /// The number of machines of the gang.
    machines: usize,
    /// When Setu created each of its NodeClaims, from Setu's log.
    creates: Vec<Timestamp>,
    /// When Setu created the first one.
    begun: Instant,
    /// The calls that created its launch templates.
    pub templates: Vec<ProviderCall>,
    /// The calls that launched instances.
    pub fleets: Vec<ProviderCall>,
}

impl Attempt {
    /// The attempts that created all of their NodeClaims.
    pub fn all(play: &Play<'_>, machines: usize) -> Result<Vec<Self>> {
        let log = play.world.theatre.setu.log();
        let lines = log.lines().filter(|line| line.contains("created a NodeClaim"));
        let mut creates: Vec<Timestamp> =
            lines.filter_map(|line| line.split(' ').next()?.parse().ok()).collect();
        creates.sort();
        ensure!(
            !creates.is_empty() && creates.len().is_multiple_of(machines),
            "Setu created {} NodeClaims for {machines} machines",
            creates.len()
        );
        let (now, clock) = (Instant::now(), Timestamp::now());
        let time = |call: &ProviderCall| clock.checked_sub(now.saturating_duration_since(call.at));
        let rounds: Vec<&[Timestamp]> = creates.chunks(machines).collect();
        let mut attempts = Vec::new();
        for (index, round) in rounds.iter().enumerate() {
            let from = round.first().context("an attempt without NodeClaims")?;
            let until = rounds.get(index + 1).and_then(|next| next.first());
            let of = |action: &str| -> Result<Vec<ProviderCall>> {
                let mut found = Vec::new();
                for call in play.calls(action) {
                    let at = time(&call)?;
                    if at >= *from && until.is_none_or(|until| at < *until) {
                        found.push(call);
                    }
                }
                Ok(found)
            };
            let (templates, fleets) = (of("CreateLaunchTemplate")?, of("CreateFleet")?);
            let ago = Duration::try_from(clock.duration_since(*from)).unwrap_or_default();
            let begun = now.checked_sub(ago).context("an attempt before the machine was up")?;
            attempts.push(Self { machines, creates: round.to_vec(), begun, templates, fleets });
        }
        Ok(attempts)
    }

    /// The number of machines of each fleet.
    pub fn sizes(&self) -> Vec<usize> {
        self.fleets.iter().filter_map(|call| call.form.get(CAPACITY)?.parse().ok()).collect()
    }

    /// The time from the first NodeClaim to the last, and the longest pause between two of them.
    pub fn created(&self) -> Result<[Duration; 2]> {
        let all = self.creates.first().zip(self.creates.last()).context("no NodeClaim was created")?;
        let between = |(a, b): (&Timestamp, &Timestamp)| Duration::try_from(b.duration_since(*a));
        let next = self.creates.iter().skip(1);
        let pauses: Vec<Duration> = self.creates.iter().zip(next).map(between).collect::<Result<_, _>>()?;
        Ok([between(all)?, pauses.into_iter().max().unwrap_or_default()])
    }

    /// When EC2 answered the last call.
    pub fn launched(&self) -> Option<Instant> {
        self.fleets.iter().filter_map(|call| call.done).max()
    }

    /// The time from its first NodeClaim to EC2's answer to its last call.
    pub fn took(&self) -> Result<Duration> {
        let launched = self.launched().context("nothing was launched")?;
        Ok(launched.saturating_duration_since(self.begun))
    }

    /// Checks that Setu created all NodeClaims at once, and alike enough for the provider to launch them with one
    /// launch template and one call. Also checks that the provider batched launches.
    pub fn is_cheap(&self, play: &Play<'_>) -> Result<()> {
        let [created, _] = self.created()?;
        play.within(created, CREATED, "Setu's NodeClaims, from the first to the last,");
        let sizes = self.sizes();
        ensure!(sizes.iter().sum::<usize>() == self.machines, "fleets of {sizes:?}");
        self.has_one_template()?;
        let asked: BTreeSet<_> = self.fleets.iter().map(|call| but_for_size(&call.form)).collect();
        ensure!(asked.len() == 1, "the fleets differ: {asked:?}");
        // The provider sends a batch once no new launch arrives for a while.
        let span = self.span_of_fleets();
        let most = usize::try_from(span.as_millis() / IDLE.as_millis())?.saturating_add(2);
        let most = if self.machines < MANY { most } else { most.min(self.machines / 2) };
        if sizes.len() > most {
            play.is_late(format!("fleets of {sizes:?} within {span:?} are more than {most}"));
        }
        Ok(())
    }

    /// Checks that all instances use one launch template. Karpenter may have created it when it validated the NodeClass.
    pub fn has_one_template(&self) -> Result<()> {
        ensure!(self.templates.len() <= 1, "{} launch templates, not 1", self.templates.len());
        let named: BTreeSet<Option<&String>> =
            self.fleets.iter().map(|call| call.form.get(TEMPLATE)).collect();
        ensure!(named.len() == 1 && !named.contains(&None), "the fleets name {named:?}");
        Ok(())
    }

    /// The time from the first fleet to the last.
    fn span_of_fleets(&self) -> Duration {
        let times = || self.fleets.iter().map(|call| call.at);
        times().min().zip(times().max()).map_or(Duration::ZERO, |(first, last)| last - first)
    }
}

/// The parameters that two calls share if the provider could have merged them, regardless of list order.
fn but_for_size(form: &Form) -> Vec<(String, &String)> {
    let parts = form.iter().filter(|(key, _)| !matches!(key.as_str(), CAPACITY | "ClientToken"));
    let mut parts: Vec<(String, &String)> =
        parts.map(|(key, value)| (key.replace(|c: char| c.is_ascii_digit(), ""), value)).collect();
    parts.sort();
    parts
}
