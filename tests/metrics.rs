//! `/metrics` matches its documentation: names, types, labels, meaning.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

use http::Method;
use jiff::Timestamp;
use setu::api::NodeClaim;
use setu::gang::StateName;
use setu::gang::release::custody::HeldFor;
use setu::gang::release::orphan::OrphanReason;
use setu::names;
use setu::plan::gates::{Gate, GateResult};
use setu::telemetry::metrics::catalog::{self, Metric, MetricKind};
use setu::telemetry::metrics::{self, Counted, NodeCosts, Reload, Unpublished, Unsent, WarmResult};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A NodeClaim of this NodePool that was kept for a later gang.
fn kept(pool: &str) -> NodeClaim {
    let claim = serde_json::json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": "kept", "labels": {names::NODEPOOL: pool}},
        "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}},
    });
    serde_json::from_value(claim).unwrap()
}

/// Records everything that can be recorded, for this many gangs.
fn record_all(gangs: u32) {
    let second = Duration::from_secs(1);
    for gang in 0..gangs {
        let pool = format!("pool-{}", gang % 20);
        for (from, to) in [
            (StateName::Validating, StateName::Provisioning),
            (StateName::Provisioning, StateName::WaitingReady),
            (StateName::WaitingReady, StateName::RollingBack),
            (StateName::RollingBack, StateName::BackingOff),
            (StateName::WaitingReady, StateName::Approved),
            (StateName::Approved, StateName::RollingBack),
            (StateName::RollingBack, StateName::Yielded),
        ] {
            metrics::transition(Counted { from, to, reason: "AllReady", stayed: second });
        }
        metrics::attempt_retried("in_check", gang);
        metrics::verdict("approved", second);
        metrics::verdict_delay(second / 20);
        for _ in 0..8 {
            metrics::claim_created(&pool, "spot");
            metrics::claim_ready(&pool, second * 70);
        }
        metrics::claim_failed(&pool, second * 300);
        metrics::wasted("InsufficientCapacity", 12);
        metrics::wasted_cost(["gpu", "spot", "InsufficientCapacity"], "98.32".parse().unwrap());
        metrics::kept_warm(&kept(&pool), WarmResult::Reused, Timestamp::UNIX_EPOCH);
        metrics::gate(Gate::Capacity, &pool, GateResult::Passed);
        metrics::gate(Gate::Quota, "research", GateResult::Warned);
        metrics::api_request(&Method::PATCH, "workloads", Some(200));
        metrics::api_request(&Method::POST, "nodeclaims", None);
    }
    let counts = BTreeMap::from([(("pool-1".to_owned(), "launching"), 3)]);
    metrics::claims(&counts);
    metrics::held_nodes(&counts);
    let (pool, spot) = ("pool-1".to_owned(), "spot".to_owned());
    metrics::node_costs(&NodeCosts {
        per_hour: [([pool.clone(), spot.clone(), "idle".to_owned()], "98.32".parse().unwrap())].into(),
        without_price: [([pool, spot], 1)].into(),
    });
    metrics::gangs(&BTreeMap::from([(StateName::Approved, (7, second))]));
    metrics::gangs_with_unbound_pods(1);
    metrics::karpenter_stalled(4);
    metrics::kept_warm(&kept("pool-0"), WarmResult::Unused, Timestamp::UNIX_EPOCH);
    OrphanReason::ALL.into_iter().for_each(metrics::swept);
    metrics::watch_error("nodes");
    metrics::policy_reload(Reload::Refused);
    metrics::karpenter_page(false);
    metrics::leader(Some(0), true);
    metrics::spans_unsent(Unsent::Export, 2);
    metrics::reconciled("workload", true, Duration::from_millis(3));
    metrics::event_unpublished(Unpublished::Limited);
    metrics::build_info();
}

fn rendered(gangs: u32) -> String {
    let recorder = metrics::recorder().unwrap();
    let handle = recorder.handle();
    ::metrics::with_local_recorder(&recorder, || {
        metrics::describe();
        record_all(gangs);
    });
    handle.run_upkeep();
    handle.render()
}

fn type_of(metric: &Metric) -> &'static str {
    match metric.kind {
        MetricKind::Counter => "counter",
        MetricKind::Gauge => "gauge",
        MetricKind::Histogram(_) => "histogram",
    }
}

/// The type, help and label names of every rendered metric.
fn seen(text: &str) -> BTreeMap<String, (String, String, BTreeSet<String>)> {
    let mut all: BTreeMap<String, (String, String, BTreeSet<String>)> = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            kind.clone_into(&mut all.entry(name.to_owned()).or_default().0);
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            help.clone_into(&mut all.entry(name.to_owned()).or_default().1);
        } else if let Some((head, _)) = line.rsplit_once(' ') {
            let (name, labels) = head.split_once('{').unwrap_or((head, "}"));
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let name = base.filter(|base| all.contains_key(*base)).unwrap_or(name);
            let labels = labels.trim_end_matches('}').split(',').filter_map(|l| l.split_once('='));
            let labels = labels.map(|(key, _)| key.to_owned()).filter(|key| key != "le");
            all.get_mut(name).unwrap().2.extend(labels);
        }
    }
    all
}

#[test]
fn every_metric_is_exposed_with_the_type_help_and_labels_of_the_catalog() {
    let seen = seen(&rendered(3));
    let names: Vec<&str> = seen.keys().map(String::as_str).collect();
    let mut listed: Vec<&str> = catalog::ALL.iter().map(|m| m.name).collect();
    listed.sort_unstable();
    assert_eq!(names, listed);
    for metric in catalog::ALL {
        let (kind, help, labels) = &seen[metric.name];
        assert_eq!((kind.as_str(), help.as_str()), (type_of(metric), metric.help), "{}", metric.name);
        let wanted: BTreeSet<String> = metric.labels.iter().map(ToString::to_string).collect();
        assert_eq!(*labels, wanted, "{}", metric.name);
    }
}

#[test]
fn costs_below_a_cent_add_up() {
    let recorder = metrics::recorder().unwrap();
    let handle = recorder.handle();
    ::metrics::with_local_recorder(&recorder, || {
        // A third of a cent each.
        (0..9).for_each(|_| metrics::wasted_cost(["gpu", "spot", "Cents"], "12.000001".parse().unwrap()));
    });
    assert!(
        handle.render().contains(
            "setu_wasted_cost_cents_total{nodepool=\"gpu\",capacity_type=\"spot\",reason=\"Cents\"} 2\n"
        ),
        "{}",
        handle.render()
    );
}

#[test]
fn the_documented_list_matches_the_code() {
    let mut text = "# Metrics\n\nServed on `/metrics` of the metrics address (port 8080). Label values come from closed sets, and from the names of\nNodePools and ClusterQueues; never from Workloads. Written from the code by `just generate`.\n\n| name | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for metric in catalog::ALL {
        let labels: Vec<String> = metric.labels.iter().map(|l| format!("`{l}`")).collect();
        let (kind, labels) = (type_of(metric), labels.join(" "));
        writeln!(text, "| `{}` | {kind} | {labels} | {} |", metric.name, metric.help).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    if std::env::var_os("SETU_REGENERATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(committed, text, "docs/metrics.md is out of date: run `just generate`");
}

#[test]
fn retries_beyond_ten_share_one_series() {
    let text = rendered(200);
    let series = text.lines().filter(|l| l.starts_with("setu_retry_attempts_total{")).count();
    assert_eq!(series, 12, "0 to 10, and more");
}

/// Needs `promtool` from Prometheus. Run by `just metrics`, which says how to install it.
#[test]
#[ignore = "needs promtool"]
fn promtool_has_no_complaints() {
    use std::io::Write as _;
    let mut tool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| {
            panic!("starting promtool: {e}; install it, for example with `apt install prometheus`")
        });
    tool.stdin.take().unwrap().write_all(rendered(3).as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let complaints =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{complaints}");
}

#[test]
fn a_page_for_ten_thousand_gangs_is_as_long_as_for_a_hundred() {
    let lines = |gangs| rendered(gangs).lines().count();
    let few = lines(100);
    assert_eq!(lines(10_000), few);
    // The cost of a scrape depends on the number of lines.
    assert!(few < 1_500, "{few} lines");
}

/// Prints the cost of one scrape after ten thousand gangs went through their lives since the last one.
#[test]
#[ignore = "a measurement; run it with --release and --nocapture"]
fn a_scrape_at_ten_thousand_gangs() {
    let recorder = metrics::recorder().unwrap();
    let handle = recorder.handle();
    ::metrics::with_local_recorder(&recorder, || {
        metrics::describe();
        record_all(10_000);
    });
    for scrape in ["first", "second"] {
        let started = Instant::now();
        handle.run_upkeep();
        let text = handle.render();
        println!("{scrape} scrape: {:?}, {} lines", started.elapsed(), text.lines().count());
    }
}

fn read(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// The names of Setu's metrics in a text, as in the catalog.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words =
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|w| w.starts_with("setu_"));
    let base = |word: &str| {
        let known = |name: &str| catalog::ALL.iter().any(|m| m.name == name);
        let cut = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
        cut.filter(|cut| known(cut)).unwrap_or(word).to_owned()
    };
    words.map(base).collect()
}

#[test]
fn dashboard_and_alerts_use_every_metric_and_no_others() {
    let dashboard = read("charts/setu/dashboards/setu.json");
    let parsed: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    assert_eq!(parsed["uid"], "setu");
    let used = &metrics_in(&dashboard) | &metrics_in(&read("charts/setu/rules/setu.yaml"));
    let listed: BTreeSet<String> = catalog::ALL.iter().map(|m| m.name.to_owned()).collect();
    assert_eq!(used, listed);
}

#[test]
fn the_dashboard_can_be_imported_and_published() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("charts/setu/dashboards/setu.json")).unwrap();
    assert!(dashboard["id"].is_null() && dashboard["description"].is_string());
    // Users choose the data source by a variable, so an import asks for nothing.
    assert_eq!(dashboard["__inputs"], serde_json::json!([]));
    let panels = dashboard["panels"].as_array().unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let mut used = BTreeSet::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        assert!(!text(&panel["description"]).is_empty(), "{} has no description", panel["title"]);
        for target in panel["targets"].as_array().unwrap() {
            let source =
                if target["datasource"].is_null() { &panel["datasource"] } else { &target["datasource"] };
            assert_eq!(source["uid"], "${datasource}", "{}", panel["title"]);
        }
        used.insert(text(&panel["type"]));
    }
    let required = dashboard["__requires"].as_array().unwrap();
    let of = |kind: &str| -> BTreeSet<String> {
        required.iter().filter(|of| of["type"] == kind).map(|of| text(&of["id"])).collect()
    };
    assert_eq!(of("panel"), used);
    assert_eq!((of("grafana").len(), of("datasource").len()), (1, 1), "{required:?}");
}

#[test]
fn every_alert_has_a_test_that_it_fires_and_one_that_it_does_not() {
    let read = |file| serde_yaml::from_str::<serde_json::Value>(&read(file)).unwrap();
    let (rules, tests) = (read("charts/setu/rules/setu.yaml"), read("charts/setu/rules/setu.test.yaml"));
    let all = |pointer: &str, value: &serde_json::Value| {
        value.pointer(pointer).unwrap().as_array().unwrap().clone()
    };
    let tests = all("/tests", &tests);
    for alert in all("/groups/0/rules", &rules) {
        let of = |test: &serde_json::Value| {
            let mut cases = all("/alert_rule_test", test);
            cases.retain(|case| case["alertname"] == alert["alert"]);
            cases
        };
        let quiet = of(&tests[0]).iter().any(|case| case["exp_alerts"].is_null());
        let fires = tests.iter().flat_map(of).any(|case| !case["exp_alerts"].is_null());
        assert!(quiet && fires, "{}: quiet {quiet}, fires {fires}", alert["alert"]);
    }
}

#[test]
fn the_help_of_held_nodes_lists_all_that_they_may_be_held_for() {
    let metric = catalog::ALL.iter().find(|metric| metric.name == "setu_held_nodes").unwrap();
    for held_for in HeldFor::ALL {
        assert!(metric.help.contains(held_for.name()), "{held_for:?}");
    }
}

#[test]
fn every_alert_has_a_runbook() {
    let rules: serde_json::Value = serde_yaml::from_str(&read("charts/setu/rules/setu.yaml")).unwrap();
    let runbooks = read("docs/runbooks.md");
    let alerts = rules["groups"][0]["rules"].as_array().unwrap();
    assert!(alerts.len() > 7);
    for alert in alerts {
        let name = alert["alert"].as_str().unwrap();
        assert!(runbooks.contains(&format!("\n## {name}\n")), "{name} has no section");
        let link = format!("docs/runbooks.md#{}", name.to_lowercase());
        assert_eq!(alert["annotations"]["runbook_url"], link);
    }
    for reason in OrphanReason::ALL {
        assert!(runbooks.contains(&format!("\n| `{}` |", reason.name())), "{reason:?} has no row");
    }
}
