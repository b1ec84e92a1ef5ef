//! Percentiles, the table and the plot.

use crate::meter::{SHARES, Used};
use crate::setu::Setu;
use crate::shortage::Shortage;
use crate::usage;
use crate::watch::Times;
use anyhow::{Context as _, Result, ensure};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// The measurements of one system with gangs of this many nodes.
#[derive(Default)]
pub struct Cell {
    pub system: &'static str,
    pub nodes: usize,
    pub gangs: usize,
    /// Milliseconds from the reservation to the first create, for each gang.
    first: Vec<f64>,
    /// Milliseconds of these until the Workload listed the check.
    asking: Vec<f64>,
    /// Milliseconds from the last node's readiness to Ready.
    last: Vec<f64>,
    journal: usize,
    /// The cost of Setu until all gangs were Ready, plus one second.
    pub until_ready: Process,
    /// The cost of Setu until everything was cleaned up.
    pub in_all: Process,
    /// The usage of every program until all gangs were Ready.
    pub used: Used,
}

/// The percentile by nearest rank; `NaN` without values.
fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

fn three(values: &[f64]) -> String {
    if values.is_empty() {
        return "—".to_owned();
    }
    let [a, b, c] = [0.5, 0.9, 0.99].map(|share| percentile(values, share));
    format!("{a:.0} / {b:.0} / {c:.0}")
}

impl Cell {
    pub fn new(system: &'static str, nodes: usize, gangs: usize) -> Self {
        Self { system, nodes, gangs, ..Self::default() }
    }

    /// Adds the observations of some gangs.
    pub fn take(&mut self, times: Vec<Times>) {
        for t in times {
            let (Some(reserved), Some(asked), Some(created)) = (t.reserved, t.asked, t.created) else {
                continue;
            };
            let (Some(ready), Some(verdict)) = (t.ready, t.verdict) else { continue };
            // Two watches may deliver two changes in the wrong order.
            self.asking.push(asked.saturating_duration_since(reserved).as_secs_f64() * 1e3);
            self.first.push(created.saturating_duration_since(reserved).as_secs_f64() * 1e3);
            self.last.push(verdict.saturating_duration_since(ready).as_secs_f64() * 1e3);
            self.journal = self.journal.max(t.journal);
        }
    }

    pub fn line(&self) -> String {
        format!(
            "{} nodes × {} gangs, {}: first create {} ms ({} until Kueue lists the check), Ready {} ms, of {} gangs; journal {} bytes; in {:.0} s: {}",
            self.nodes,
            self.gangs,
            self.system,
            three(&self.first),
            three(&self.asking),
            three(&self.last),
            self.first.len(),
            self.journal,
            self.took(),
            self.shares().map(|(share, cpu)| format!("{share} {cpu:.1} s")).collect::<Vec<_>>().join(", ")
        )
    }

    /// Setu's writes per gang until it was Ready.
    pub fn written(&self) -> String {
        let gangs = self.first.len().max(1) as f64;
        let each: Vec<String> = self
            .until_ready
            .writes
            .iter()
            .map(|(what, n)| format!("{:.1} {what}", *n as f64 / gangs))
            .collect();
        let [ready, all] = [&self.until_ready, &self.in_all].map(|process| process.count() as f64 / gangs);
        let list = each.join(", ");
        format!(
            "{} × {} | {ready:.1} | {list} | {all:.1} | {:.0} | {}",
            self.nodes, self.gangs, self.until_ready.mib, self.journal
        )
    }

    /// CPU-seconds of each share per round.
    fn shares(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let rounds = f64::from(self.used.rounds.max(1));
        let of = move |share| self.used.cpu.get(share).map_or(0.0, Duration::as_secs_f64) / rounds;
        SHARES.into_iter().map(move |share| (share, of(share)))
    }

    /// Seconds per round.
    fn took(&self) -> f64 {
        self.used.took.as_secs_f64() / f64::from(self.used.rounds.max(1))
    }
}

/// All results so far.
#[derive(Default)]
pub struct Found {
    pub cells: Vec<Cell>,
    /// Seconds from submission until all pods are bound.
    pub bound: Vec<(&'static str, Vec<f64>)>,
    pub shortages: Vec<Shortage>,
    pub process: Process,
}

impl Found {
    /// Fails if Setu used more than this percentage of Karpenter's CPU time in its cell, or if nothing was measured.
    pub fn uses_at_most(&self, percent: f64) -> Result<()> {
        let cell = self.cells.iter().find(|cell| cell.system == "Setu" && !cell.first.is_empty());
        let shares: BTreeMap<_, _> = cell.context("no gang of Setu was measured")?.shares().collect();
        let of = |share| shares.get(share).copied().filter(|cpu| *cpu > 0.0);
        let (setu, karpenter) = of("Setu").zip(of("Karpenter")).context("no CPU time was measured")?;
        let share = 100.0 * setu / karpenter;
        println!("Setu used {share:.0} % of Karpenter's CPU time; {percent:.0} % are allowed");
        ensure!(share <= percent, "Setu used {share:.0} % of Karpenter's CPU time, more than {percent:.0} %");
        Ok(())
    }
}

/// The cost of the Setu process.
#[derive(Default)]
pub struct Process {
    pub cpu_seconds: f64,
    pub peak_mib: f64,
    /// Resident memory at the end.
    pub mib: f64,
    /// Writes by verb and resource, from its own metrics.
    pub writes: BTreeMap<String, u64>,
}

impl Process {
    /// Adds the usage between two moments.
    pub fn add(&mut self, before: &Self, after: &Self) {
        self.cpu_seconds += after.cpu_seconds - before.cpu_seconds;
        self.peak_mib = self.peak_mib.max(after.peak_mib);
        self.mib = after.mib;
        for (what, count) in &after.writes {
            let more = count.saturating_sub(before.writes.get(what).copied().unwrap_or_default());
            if more > 0 {
                *self.writes.entry(what.clone()).or_default() += more;
            }
        }
    }

    /// The total number of writes.
    pub fn count(&self) -> u64 {
        self.writes.values().sum()
    }

    pub fn of(setu: &Setu) -> Result<Self> {
        let id = setu.id().context("Setu does not run")?;
        Ok(Self {
            cpu_seconds: usage::cpu(id).as_secs_f64(),
            peak_mib: usage::mib(id, "VmHWM:"),
            mib: usage::mib(id, "VmRSS:"),
            writes: writes_of(&setu.get("metrics", "/metrics")?),
        })
    }
}

/// Sums `setu_api_requests_total` over status codes.
fn writes_of(metrics: &str) -> BTreeMap<String, u64> {
    let mut all: BTreeMap<String, u64> = BTreeMap::new();
    for line in metrics.lines().filter(|l| l.starts_with("setu_api_requests_total{")) {
        let label = |name: &str| {
            let value = line.split(&format!("{name}=\"")).nth(1).unwrap_or_default();
            value.split('"').next().unwrap_or_default()
        };
        let count = line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or_default();
        if label("verb") != "get" {
            *all.entry(format!("{} {}", label("verb"), label("resource"))).or_default() += count;
        }
    }
    all
}

fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model =
        cpu.lines().find_map(|l| l.strip_prefix("model name")?.split(": ").nth(1)).unwrap_or("unknown");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = read("/proc/meminfo")
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    let load = read("/proc/loadavg").split(' ').nth(1).unwrap_or_default().to_owned();
    format!(
        "{cores} cores of {model}, {:.0} GiB; load average of the last 5 minutes {load}; Linux {}",
        memory.unwrap_or_default() / 1_048_576.0,
        read("/proc/sys/kernel/osrelease").split('-').next().unwrap_or_default().trim()
    )
}

fn version(module: &str, package: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(module).join("go.mod");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|l| l.trim_start().starts_with(&format!("{package} v")));
    line.and_then(|l| l.trim().split(' ').nth(1)).unwrap_or("?").to_owned()
}

pub fn write(found: &Found) -> Result<()> {
    let Found { cells, bound, shortages, process } = found;
    let mut out = String::from("<!-- Written by `just bench-compare`. -->\n\n");
    writeln!(out, "Measured {} on {}.", jiff::Timestamp::now().strftime("%F"), machine())?;
    writeln!(
        out,
        "Setu {} (the binary of the image), Kubernetes {}, Kueue {}, Karpenter {} with its kwok provider, kwok {}; all on that machine.\n",
        env!("CARGO_PKG_VERSION"),
        version("k8s", "k8s.io/kubernetes"),
        version("kueue", "sigs.k8s.io/kueue"),
        version("karpenter", "sigs.k8s.io/karpenter"),
        version("kwok", "sigs.k8s.io/kwok"),
    )?;
    writeln!(
        out,
        "| nodes × gangs at once | system | gangs seen | reservation → first create, ms | of it until Kueue lists the check, ms | last node ready → Ready, ms |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    for cell in cells {
        writeln!(
            out,
            "| {} × {} | {} | {} | {} | {} | {} |",
            cell.nodes,
            cell.gangs,
            cell.system,
            cell.first.len(),
            three(&cell.first),
            three(&cell.asking),
            three(&cell.last)
        )?;
    }
    writeln!(out, "\nEach figure is p50 / p90 / p99.\n")?;
    writeln!(
        out,
        "| Setu: nodes × gangs | writes a gang until Ready | these are | until all is cleared away | resident memory at Ready, MiB | journal, bytes |\n|---|---|---|---|---|---|"
    )?;
    for cell in cells.iter().filter(|c| c.system == "Setu") {
        writeln!(out, "| {} |", cell.written())?;
    }
    writeln!(
        out,
        "\n| nodes × gangs at once | system | submitted → all told Ready, s a round | CPU-seconds of {} |\n|---|---|---|{}",
        SHARES.join(" | "),
        "---|".repeat(SHARES.len())
    )?;
    for cell in cells {
        let shares: Vec<String> = cell.shares().map(|(_, cpu)| format!("{cpu:.2}")).collect();
        let took = cell.took();
        writeln!(
            out,
            "| {} × {} | {} | {took:.1} | {} |",
            cell.nodes,
            cell.gangs,
            cell.system,
            shares.join(" | ")
        )?;
    }
    let list: Vec<String> = process.writes.iter().map(|(what, n)| format!("{n} {what}")).collect();
    let gangs: usize = cells.iter().filter(|c| c.system == "Setu").map(|c| c.first.len()).sum();
    writeln!(
        out,
        "\nSetu's writes were, for these {gangs} gangs: {}.\n\nIt used {:.1} CPU-seconds and at most {:.0} MiB.\n",
        list.join(", "),
        process.cpu_seconds,
        process.peak_mib
    )?;
    // Each part may have failed on its own.
    if !bound.is_empty() {
        writeln!(
            out,
            "| ten Jobs of eight pods, submitted → all pods bound | p50, s | slowest, s |\n|---|---|---|"
        )?;
    }
    for (system, took) in bound {
        writeln!(out, "| {system} | {:.1} | {:.1} |", percentile(took, 0.5), percentile(took, 1.0))?;
    }
    if !shortages.is_empty() {
        writeln!(
            out,
            "\n| ten nodes for five Jobs of four pods of 20 s | until all are done, s | node-seconds | of them wasted | Jobs that ran half |\n|---|---|---|---|---|"
        )?;
    }
    for s in shortages {
        writeln!(
            out,
            "| {} | {:.0} | {:.0} | {:.0} | {} |",
            s.system, s.took, s.node_seconds, s.wasted, s.half
        )?;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::create_dir_all(root.join("docs/performance"))?;
    std::fs::write(root.join("docs/performance/comparison.md"), out)?;
    std::fs::write(root.join("docs/images/comparison.svg"), plot(cells))?;
    Ok(())
}

const COLOURS: [&str; 4] = ["#2a78d6", "#eb6834", "#008300", "#e87ba4"];

/// Median and p99 before and after the cloud's time for each cell, on a logarithmic scale.
fn plot(cells: &[Cell]) -> String {
    let systems: Vec<&str> = crate::SYSTEMS.iter().map(|(_, name)| *name).collect();
    let mut sizes: Vec<(usize, usize)> = Vec::new();
    for cell in cells {
        if !sizes.contains(&(cell.nodes, cell.gangs)) {
            sizes.push((cell.nodes, cell.gangs));
        }
    }
    let (left, top, panel, height) = (62.0, 62.0, 400.0, 250.0);
    let width = left + 2.0 * (panel + 60.0);
    let y = |ms: f64| top + height * (1.0 - (ms.max(1.0).log10() / 5.0).clamp(0.0, 1.0));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {}\" font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#52514e\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fcfcfb\"/>\n",
        top + height + 46.0
    );
    for (i, name) in systems.iter().enumerate() {
        let x = left + i as f64 * 240.0;
        let _ = writeln!(
            svg,
            "<circle cx=\"{x}\" cy=\"16\" r=\"5\" fill=\"{}\"/><text x=\"{}\" y=\"20\">{name}</text>",
            COLOURS[i],
            x + 10.0
        );
    }
    for (p, title) in ["reservation → first create", "last node ready → Ready"].iter().enumerate() {
        let x0 = left + p as f64 * (panel + 60.0);
        let _ = writeln!(
            svg,
            "<text x=\"{x0}\" y=\"46\" font-weight=\"600\" fill=\"#0b0b0b\">{title}: median, line to p99</text>"
        );
        for power in 0..=5 {
            let (at, ms) = (y(10_f64.powi(power)), 10_u64.pow(power as u32));
            let label = if ms < 1000 { format!("{ms} ms") } else { format!("{} s", ms / 1000) };
            let _ = writeln!(
                svg,
                "<line x1=\"{x0}\" x2=\"{}\" y1=\"{at}\" y2=\"{at}\" stroke=\"#e4e3df\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{label}</text>",
                x0 + panel,
                x0 - 6.0,
                at + 4.0
            );
        }
        let step = panel / sizes.len().max(1) as f64;
        for (s, size) in sizes.iter().enumerate() {
            let middle = x0 + step * (s as f64 + 0.5);
            let _ = writeln!(
                svg,
                "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}×{}</text>",
                top + height + 18.0,
                size.0,
                size.1
            );
            for (i, name) in systems.iter().enumerate() {
                let found = cells.iter().find(|c| (c.nodes, c.gangs) == *size && c.system == *name);
                let Some(values) =
                    found.map(|c| if p == 0 { &c.first } else { &c.last }).filter(|v| !v.is_empty())
                else {
                    continue;
                };
                let (x, mid, high) = (
                    middle + (i as f64 - 1.5) * 11.0,
                    y(percentile(values, 0.5)),
                    y(percentile(values, 0.99)),
                );
                let _ = writeln!(
                    svg,
                    "<line x1=\"{x}\" x2=\"{x}\" y1=\"{mid}\" y2=\"{high}\" stroke=\"{0}\" stroke-width=\"2\"/><circle cx=\"{x}\" cy=\"{mid}\" r=\"4.5\" fill=\"{0}\"/>",
                    COLOURS[i]
                );
            }
        }
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">nodes × gangs at once</text>",
            x0 + panel / 2.0,
            top + height + 38.0
        );
    }
    svg + "</svg>\n"
}
