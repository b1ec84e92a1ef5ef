//! The screen: a progress bar for each gang on a terminal, a line for each step elsewhere.

use crate::sim::show::{ShownGang, Spectator};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;
use std::collections::BTreeMap;

/// Draws the demo.
pub struct Screen {
    bars: MultiProgress,
    live: bool,
    by_gang: BTreeMap<String, ProgressBar>,
    started: Option<Timestamp>,
}

impl Screen {
    /// Creates a screen. `live` means that it is a terminal.
    pub fn new(live: bool) -> Self {
        let target = if live { ProgressDrawTarget::stdout() } else { ProgressDrawTarget::hidden() };
        Self { bars: MultiProgress::with_draw_target(target), live, by_gang: BTreeMap::new(), started: None }
    }

    /// Draws new lines and updates the bars.
    pub fn draw(&mut self, spectator: &Spectator) {
        for (at, text) in spectator.announcements() {
            let started = *self.started.get_or_insert(at);
            self.print_above(&format!("{:>7.1}s  {text}", at.duration_since(started).as_secs_f64()));
        }
        for gang in spectator.gangs() {
            let bars = &self.bars;
            let bar = self
                .by_gang
                .entry(gang.workload.clone())
                .or_insert_with(|| bars.add(ProgressBar::new(1).with_style(style())));
            bar.set_length(u64::from(gang.slots.max(1)));
            bar.set_position(gang.ready() as u64);
            bar.set_prefix(gang.job.clone());
            bar.set_message(message(&gang));
        }
    }

    /// Shows a line above the bars.
    pub fn print_above(&self, line: &str) {
        if self.live {
            // The bars notice a terminal that cannot be written to.
            let _ = self.bars.println(line);
        } else {
            super::super::print(&format!("{line}\n"));
        }
    }

    /// Leaves the bars as they are.
    pub fn close(&self) {
        for bar in self.by_gang.values() {
            bar.abandon();
        }
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{prefix:>10.bold} {bar:16.green/dim} {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("━━─")
}

fn message(gang: &ShownGang) -> String {
    let state = gang.state.map_or("waits for quota", |(state, _)| state.name());
    let running = match (gang.finished, gang.admitted) {
        (true, _) => ", finished",
        (_, true) => ", running",
        _ => "",
    };
    format!("{state}{running}  {}", gang.said)
}
