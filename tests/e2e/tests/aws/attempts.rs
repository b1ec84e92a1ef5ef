//! What each attempt of a gang costs: when Setu wrote its NodeClaims, and what the provider asked EC2 for.

use crate::play::Play;
use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use setu_e2e::aws::{Call, Form};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// From Setu's first NodeClaim of an attempt to its last: less than a third of the longest window in which the provider
/// merges calls.
const CREATED: Duration = Duration::from_millis(300);

/// How long the provider waits for another launch before it asks EC2 for those that it has.
const IDLE: Duration = Duration::from_millis(35);

/// From so many machines on some are bought together even by a Karpenter that is busy.
const MANY: usize = 8;

/// Where CreateFleet names its launch template.
pub const TEMPLATE: &str = "LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName";
const CAPACITY: &str = "TargetCapacitySpecification.TotalTargetCapacity";

/// One attempt of the only gang of a scenario.
pub struct Attempt {
    /// How many machines the gang has.
    machines: usize,
    /// When Setu had created each of its NodeClaims, by its own log.
    creates: Vec<Timestamp>,
    /// When the first of them was.
    begun: Instant,
    /// The calls that made its launch templates.
    pub templates: Vec<Call>,
    /// The calls that bought.
    pub fleets: Vec<Call>,
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
        let time = |call: &Call| clock.checked_sub(now.saturating_duration_since(call.at));
        let rounds: Vec<&[Timestamp]> = creates.chunks(machines).collect();
        let mut attempts = Vec::new();
        for (index, round) in rounds.iter().enumerate() {
            let from = round.first().context("an attempt without NodeClaims")?;
            let until = rounds.get(index + 1).and_then(|next| next.first());
            let of = |action: &str| -> Result<Vec<Call>> {
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

    /// How many machines each call bought.
    pub fn sizes(&self) -> Vec<usize> {
        self.fleets.iter().filter_map(|call| call.form.get(CAPACITY)?.parse().ok()).collect()
    }

    /// From Setu's first NodeClaim to its last, and the longest pause between two of them.
    pub fn created(&self) -> Result<[Duration; 2]> {
        let all = self.creates.first().zip(self.creates.last()).context("no NodeClaim was created")?;
        let between = |(a, b): (&Timestamp, &Timestamp)| Duration::try_from(b.duration_since(*a));
        let next = self.creates.iter().skip(1);
        let pauses: Vec<Duration> = self.creates.iter().zip(next).map(between).collect::<Result<_, _>>()?;
        Ok([between(all)?, pauses.into_iter().max().unwrap_or_default()])
    }

    /// When EC2 had answered the last call.
    pub fn launched(&self) -> Option<Instant> {
        self.fleets.iter().filter_map(|call| call.done).max()
    }

    /// From its first NodeClaim until EC2 had answered its last call.
    pub fn took(&self) -> Result<Duration> {
        let launched = self.launched().context("nothing was launched")?;
        Ok(launched.saturating_duration_since(self.begun))
    }

    /// Setu wrote all NodeClaims at once, and they are so alike that the provider could buy all
    /// of them with one launch template and one call. It did not buy each for itself.
    pub fn is_cheap(&self, play: &Play<'_>) -> Result<()> {
        let [created, _] = self.created()?;
        play.within(created, CREATED, "Setu's NodeClaims, from the first to the last,");
        let sizes = self.sizes();
        ensure!(sizes.iter().sum::<usize>() == self.machines, "fleets of {sizes:?}");
        self.has_one_template()?;
        let asked: BTreeSet<_> = self.fleets.iter().map(|call| but_for_size(&call.form)).collect();
        ensure!(asked.len() == 1, "the fleets differ: {asked:?}");
        // What the provider merges it asks for once it has heard of nothing else for a while.
        let span = self.span_of_fleets();
        let most = usize::try_from(span.as_millis() / IDLE.as_millis())?.saturating_add(2);
        let most = if self.machines < MANY { most } else { most.min(self.machines / 2) };
        if sizes.len() > most {
            play.is_late(format!("fleets of {sizes:?} within {span:?} are more than {most}"));
        }
        Ok(())
    }

    /// All of them were launched from one launch template. It may be the one that Karpenter made as it tried the NodeClass out.
    pub fn has_one_template(&self) -> Result<()> {
        ensure!(self.templates.len() <= 1, "{} launch templates, not 1", self.templates.len());
        let named: BTreeSet<Option<&String>> =
            self.fleets.iter().map(|call| call.form.get(TEMPLATE)).collect();
        ensure!(named.len() == 1, "the fleets name {named:?}");
        Ok(())
    }

    /// From the first call that bought to the last.
    fn span_of_fleets(&self) -> Duration {
        let times = || self.fleets.iter().map(|call| call.at);
        times().min().zip(times().max()).map_or(Duration::ZERO, |(first, last)| last - first)
    }
}

/// What two calls have in common that the provider would have merged, in whatever order their lists are.
fn but_for_size(form: &Form) -> Vec<(String, &String)> {
    let parts = form.iter().filter(|(key, _)| !matches!(key.as_str(), CAPACITY | "ClientToken"));
    let mut parts: Vec<(String, &String)> =
        parts.map(|(key, value)| (key.replace(|c: char| c.is_ascii_digit(), ""), value)).collect();
    parts.sort();
    parts
}
