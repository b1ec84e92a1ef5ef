//! Bad input ends with exit code 2 and one clear line that says what to do.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn setu(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_setu"))
        .args(arguments)
        .env("KUBECONFIG", "/nowhere/kubeconfig")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output()
        .unwrap()
}

fn refused(arguments: &[&str], words: &str) {
    let output = setu(arguments);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains(words), "{message}");
}

#[test]
fn without_a_cluster_the_error_says_how_to_set_one() {
    refused(&["run"], "Set KUBECONFIG to a kubeconfig file");
}

#[test]
fn a_switch_does_not_consume_the_next_argument() {
    for switch in ["--enforce-quota", "--enforce-capacity", "--validate-node-class"] {
        refused(&["plan", switch, "train"], "failed to infer config");
        refused(&["plan", &format!("{switch}=false"), "train"], "failed to infer config");
    }
    for switch in ["--leader-elect", "--leader-elect=false", "--events-on-job", "--events-on-job=false"] {
        refused(&["run", switch], "Set KUBECONFIG to a kubeconfig file");
        refused(&["run", switch, "true"], "unexpected argument 'true'");
    }
}

/// A file with this text. It is deleted when dropped.
struct File(std::path::PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("setu-{name}-{}.yaml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn policy(name: &str, body: &str) -> Self {
        Self::new(name, &format!("apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n{body}"))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_missing_or_invalid_policy_file_is_reported_with_its_position() {
    refused(&["run", "--config", "/nowhere/policy.yaml"], "/nowhere/policy.yaml");
    let file = File::policy("wrong", "defaults: {deadlines: {lunch: 4m}}\ngaurds: {}\n");
    for command in [&["run", "--config", file.path()][..], &["policy", "check", file.path()]] {
        let first =
            format!("{}:3:24: defaults.deadlines.lunch: unknown key; did you mean launch?", file.path());
        refused(command, &first);
        refused(command, &format!("{}:4:1: gaurds: unknown key; did you mean guards?", file.path()));
    }
}

#[test]
fn several_policy_files_are_checked_at_once() {
    let (good, bad) = (File::policy("good", "guards: {gangNodes: 1}\n"), File::policy("bad", "guards: 1\n"));
    let output = setu(&["policy", "check", good.path(), bad.path()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stdout).unwrap().contains(&format!("{}: valid", good.path())));
    assert!(String::from_utf8(output.stderr).unwrap().contains("guards: found 1, expected a map"));
    assert_eq!(setu(&["policy", "check", good.path()]).status.code(), Some(0));
}

#[test]
fn a_manifest_of_parameters_is_checked_too() {
    let manifest = |name: &str, spec: &str| {
        let types = "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: ProvisioningParameters";
        File::new(name, &format!("{types}\nmetadata: {{name: p}}\nspec: {spec}\n"))
    };
    let good = manifest("parameters", "{deadlines: {gang: 5m}}");
    assert_eq!(setu(&["policy", "check", good.path()]).status.code(), Some(0));
    let devices = "devices: [{deviceClass: gpu.nvidia.com, driver: gpu.nvidia.com, perNode: 8}]";
    let doubtful = manifest("doubtful", &format!("{{deadlines: {{launch: 1h}}, {devices}}}"));
    let output = setu(&["policy", "check", doubtful.path()]);
    assert_eq!(output.status.code(), Some(0));
    let remarks = String::from_utf8(output.stderr).unwrap();
    for words in [
        "spec.deadlines.launch: ",
        "spec.devices[0]: has no requirements",
        "not with topology-aware scheduling (note)",
    ] {
        assert!(remarks.contains(words), "{words}: {remarks}");
    }
    let bad = manifest("bad-parameters", "{deadlines: {gang: soon}}");
    refused(&["policy", "check", bad.path()], "soon");
}

#[test]
fn a_check_of_a_policy_with_devices_says_which_of_them_kueue_admits() {
    let noted = |name: &str, body: &str| {
        let file = File::policy(name, body);
        let output = setu(&["policy", "check", file.path()]);
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stderr).unwrap()
    };
    let devices = "devices: [{deviceClass: gpu.nvidia.com, driver: gpu.nvidia.com, perNode: 8}]";
    for body in [format!("defaults: {{{devices}}}\n"), format!("checks: {{gpu: {{{devices}}}}}\n")] {
        let note = noted("devices", &body);
        let limits = [
            "only by ResourceClaimTemplates with exact counts",
            "only for the classes in its deviceClassMappings",
            "not with topology-aware scheduling (note)",
        ];
        assert!(limits.iter().all(|words| note.contains(words)), "{note}");
    }
    assert!(!noted("no-devices", "defaults: {devices: []}\n").contains("Kueue admits"));
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let file = File::policy(
        "precedence",
        "cloudProvider: azure\ndefaults: {gates: {capacity: Off, nodeClass: Off}}\n",
    );
    let show = |flags: &[&str], environment: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_setu"));
        command.args(["policy", "show", "--check", "c", "--config", file.path()]).args(flags);
        let output = command.envs(environment.iter().copied()).output().unwrap();
        let page = String::from_utf8(output.stdout).unwrap();
        page.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let has =
        |page: &[String], line: &str| assert!(page.iter().any(|l| l == line), "{line} is not in {page:#?}");
    let page = show(&[], &[]);
    has(&page, "capacity: \"Off\" # file: defaults");
    has(&page, "cloudProvider: azure # file: cloudProvider");
    has(&page, "group: karpenter.azure.com # preset: azure");
    let environment = [("SETU_ENFORCE_CAPACITY", "false"), ("SETU_CLOUD_PROVIDER", "gcp")];
    let page = show(&[], &environment);
    has(&page, "capacity: Warn # environment: SETU_ENFORCE_CAPACITY");
    has(&page, "cloudProvider: gcp # environment: SETU_CLOUD_PROVIDER");
    has(&page, "nodeClass: \"Off\" # file: defaults");
    let flags = [
        "--enforce-capacity",
        "--cloud-provider=aws",
        "--node-class-gpu",
        "big",
        "--validate-node-class=false",
    ];
    let page = show(&flags, &environment);
    has(&page, "capacity: Enforce # flag: --enforce-capacity");
    has(&page, "kind: EC2NodeClass # preset: aws");
    has(&page, "gpu: big # flag: --node-class-gpu");
    has(&page, "nodeClass: Warn # flag: --validate-node-class");
}

#[test]
fn parameters_override_everything_else() {
    let head =
        "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: ProvisioningParameters\nmetadata: {name: gpu}\n";
    let file = File::new(
        "parameters",
        &format!("{head}spec: {{gates: {{capacity: Warn}}, retry: {{compat: Setu}}}}"),
    );
    let output = setu(&["policy", "show", "--check", "c", "--enforce-capacity", "--parameters", file.path()]);
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("# ProvisioningParameters gpu") && page.contains("one-way door"), "{page}");
    let bad = File::new("bad-parameters", &format!("{head}spec: {{deadlines: {{gang: 0s}}}}"));
    refused(&["policy", "show", "--check", "c", "--parameters", bad.path()], "spec.deadlines.gang");
    let late = File::new("late-parameters", &format!("{head}spec: {{strategy: {{bufferTime: 20m}}}}"));
    refused(
        &["policy", "show", "--check", "c", "--parameters", late.path()],
        "not shorter than deadlines.gang",
    );
    let other = File::new("no-parameters", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: gpu}\n");
    refused(
        &["policy", "show", "--check", "c", "--parameters", other.path()],
        "is v1 ConfigMap, and not ProvisioningParameters of setu.kueue.x-k8s.io",
    );
}

#[test]
fn policy_values_that_allow_no_gang_any_node_are_refused() {
    for (body, words) in [
        ("guards: {perLocalQueue: {nodes: 0}}", "guards.perLocalQueue.nodes: lets no gang have a node"),
        ("defaults: {gates: {budget: {maxNodes: 0}}}", "budget.maxNodes: lets no gang have a node"),
        ("defaults: {gates: {placement: {namespaces: {matchLabels: {a b: c}}}}}", "is not a label key"),
        (
            "defaults: {packing: {shapes: [{instanceType: '', allocatable: {cpu: 1}}]}}",
            "instanceType: is empty",
        ),
        (
            "defaults: {retry: {compat: Setu}, strategy: {bufferTime: 12m}}",
            "not shorter than deadlines.gang, 10m",
        ),
        ("defaults: {deadlines: {gang: 1M}}", "M is not a unit: write ms, s, m, h, d or w"),
    ] {
        let file = File::policy("bounds", body);
        refused(&["policy", "check", file.path()], words);
    }
}

#[test]
fn an_invalid_address_level_or_flag_is_named() {
    refused(&["run", "--metrics-bind-address", "8080"], "write :port or host:port");
    refused(&["run", "--log-level", "setu=loud"], "--log-level");
    refused(&["run", "--enforce-everything"], "--enforce-everything");
}

#[test]
fn charts_and_crds_are_printed() {
    let printed = |arguments: &[&str]| String::from_utf8(setu(arguments).stdout).unwrap();
    assert!(printed(&["statechart"]).starts_with("stateDiagram-v2"));
    assert!(printed(&["statechart", "--format", "scxml"]).contains("<scxml"));
    assert!(printed(&["crds"]).contains("kind: CustomResourceDefinition"));
}

/// The kubeconfig of a cluster that does not respond.
fn unreachable_cluster(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("setu-{name}-{}.yaml", std::process::id()));
    let text = "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],\n\
                users: [{name: u, user: {token: t}}], clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]}";
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn without_a_cluster_the_reading_commands_say_what_to_do() {
    for command in [
        &["inspect"][..],
        &["explain", "x"],
        &["trace", "x"],
        &["top", "-o", "json"],
        &["repair", "x"],
        &["plan", "x"],
        &["uninstall"],
    ] {
        refused(command, "Set KUBECONFIG or --kubeconfig to a kubeconfig file");
        let elsewhere = [command, &["--kubeconfig", "/elsewhere/kubeconfig", "--context", "c"]].concat();
        refused(&elsewhere, "/elsewhere/kubeconfig");
    }
    refused(&["plan", "x", "-n", "team-a"], "give NodePools, queues and flavors with -f");
    refused(&["explain"], "<WORKLOAD>");
    refused(&["inspect", "-o", "xml"], "[possible values: table, wide, json, yaml]");
    refused(&["trace", "x", "--trace-url", "http://traces/"], "{traceId}");
}

#[test]
fn an_unreachable_cluster_is_a_failure_with_a_one_line_message() {
    let kubeconfig = unreachable_cluster("silent");
    let output = setu(&["inspect", "--kubeconfig", kubeconfig.to_str().unwrap()]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), message.lines().count()), (Some(1), 1), "{message}");
    assert!(message.contains("cannot read workloads: Connection refused"), "{message}");
    std::fs::remove_file(kubeconfig).unwrap();
}

#[test]
fn shells_complete_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = String::from_utf8(setu(&["completions", shell]).stdout).unwrap();
        for word in ["inspect", "explain", "trace", "top", "all-namespaces"] {
            assert!(script.contains(word), "{shell} does not complete {word}");
        }
    }
}

#[test]
fn every_command_has_help_with_an_example_and_the_name_it_was_called_by() {
    for command in
        ["run", "inspect", "explain", "trace", "top", "statechart", "crds", "completions", "repair"]
    {
        let help = String::from_utf8(setu(&[command, "--help"]).stdout).unwrap();
        assert!(help.contains("Example"), "{command}: {help}");
        assert!(help.contains(&format!("Usage: setu {command}")), "{command}: {help}");
    }
    let help = |command: &[&str]| String::from_utf8(setu(&[command, &["--help"]].concat()).stdout).unwrap();
    for (command, is_read_again) in [(&["run"][..], true), (&["plan"], false), (&["policy", "show"], false)] {
        assert_eq!(help(command).contains("Read again whenever it changes"), is_read_again, "{command:?}");
    }
    for (command, all) in [("inspect", false), ("plan", false), ("top", true)] {
        assert_eq!(help(&[command]).contains("Default: all namespaces"), all, "{command}");
        assert_eq!(help(&[command]).contains("Default: that of the context"), !all, "{command}");
    }
    let plugin = std::env::temp_dir().join(format!("setu-plugin-{}", std::process::id()));
    std::fs::create_dir_all(&plugin).unwrap();
    let plugin_binary = plugin.join("kubectl-setu");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_setu"), &plugin_binary).unwrap();
    let help = Command::new(&plugin_binary).args(["top", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("Usage: kubectl setu top"), "{help}");
    std::fs::remove_dir_all(plugin).unwrap();
}

/// The response to a path on the probes' address, from a process started with these flags.
fn answer(flags: &[&str], path: &str) -> String {
    let kubeconfig = unreachable_cluster(&format!("board-{}", flags.len()));
    let mut process = Command::new(env!("CARGO_BIN_EXE_setu"))
        .args(["run", "--metrics-bind-address", "127.0.0.1:0", "--health-probe-bind-address", "127.0.0.1:0"])
        .args(flags)
        .env("KUBECONFIG", &kubeconfig)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (transcript, stdout, stderr) =
        (std::sync::mpsc::channel(), process.stdout.take().unwrap(), process.stderr.take().unwrap());
    for output in [Box::new(stdout) as Box<dyn std::io::Read + Send>, Box::new(stderr)] {
        let transcript = transcript.0.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = transcript.send(line);
            }
        });
    }
    let mut lines = transcript.1.iter();
    let address = lines.find_map(|line| {
        Some(line.split("what=\"probes\" address=\"").nth(1)?.split('"').next()?.to_owned())
    });
    let mut stream = std::net::TcpStream::connect(address.unwrap()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    std::fs::remove_file(kubeconfig).unwrap();
    text
}

#[test]
fn the_board_is_served_only_with_its_flag() {
    assert!(answer(&[], "/board").starts_with("HTTP/1.1 404"));
    let page = answer(&["--board"], "/board");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("<title>Setu board</title>"), "{page}");
}

#[test]
fn an_election_that_could_give_two_leaders_is_refused() {
    refused(&["run", "--leader-elect", "--leader-election-renew-deadline", "20s"], "shorter than the lease");
    refused(
        &["run", "--leader-elect", "--leader-election-retry-period", "soon"],
        "--leader-election-retry-period",
    );
}

#[test]
fn a_demo_that_cannot_start_says_why_in_one_line() {
    let one_line = |arguments: &[&str], words: &str| {
        let output = setu(arguments);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(words) && message.trim_end().lines().count() == 1, "{message}");
    };
    one_line(&["demo", "--scenario", "nowhere.yaml"], "--scenario nowhere.yaml is no file");
    one_line(&["demo", "--scenario", "./shortag.yaml"], "is no file; did you mean shortage?");
    one_line(&["demo", "--scenario", "shortag"], "is not the name of a scenario; did you mean shortage?");
    one_line(&["demo", "--scenario", "zzz"], "`setu demo --scenario list` shows the names");
    let broken = File::new("broken-scenario", "title: t\nsteps:\n- submti: {name: job}\n");
    one_line(&["demo", "--scenario", broken.path()], broken.path());
    let torn = File::new("torn-scenario", "title: [\n");
    one_line(&["demo", "--scenario", torn.path()], torn.path());
    for (scenario, words) in [
        ("title: t\nweather: [{capacty: 3}]\n", "rule 1 of the weather: unknown field `capacty`"),
        ("title: t\nsteps: [{weather: [{capacity: 3}, {launchDelay: soon}]}]\n", "rule 2 of the weather: "),
        ("title: t\nmatrix: {a: {}}\n", "axis a of the matrix has no alternatives"),
        ("title: t\nsteps: [{apply: [{kind: Nix, metadata: {name: n}}]}]\n", "serves no kind Nix"),
        ("title: t\nsteps: [{apply: [{metadata: {name: n}}]}]\n", "an object without kind or name"),
        ("title: t\nsteps: [{patch: {kind: Nix, name: n, patch: {}}}]\n", "step 1 of \"t\": patch Nix n: "),
        ("title: t\nsteps: [{submit: {name: Bad_Name, pods: 1}}]\n", "\"Bad_Name\" is not a name: it must"),
        ("title: t\nsteps: [{until: {job: nobody, within: 5}}]\n", "until nobody: no step submits nobody"),
        ("title: t\nsteps: [{until: {state: Nonsense}}]\n", "unknown variant `Nonsense`"),
        ("title: t\nsteps: [{submit: {name: a, pods: 1, runFor: soon}}]\n", "expected number at 0"),
    ] {
        let wrong = File::new("wrong-scenario", scenario);
        one_line(&["demo", "--scenario", wrong.path()], words);
        one_line(&["demo", "--scenario", wrong.path()], wrong.path());
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    one_line(&["demo", "--serve", &address], "the port is taken; give another one, or 0 for any");
    one_line(&["demo", "--serve", "0.0.0.0:0"], "such as 127.0.0.1:8080");
    for speed in ["--speed=-1", "--speed=1e-300", "--speed=inf", "--speed=nan"] {
        one_line(&["demo", speed], "give 0 or a number from 0.02 on");
    }
}

/// The output of a demo at full speed.
fn shown(arguments: &[&str]) -> String {
    let output = setu(&[&["demo", "--speed", "0"], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_scenario_is_played_by_name_and_one_of_its_runs_by_id() {
    let list = shown(&["--scenario", "list"]);
    assert!(list.lines().any(|l| l.starts_with("shortage ")), "{list}");
    assert!(list.lines().any(|l| l.starts_with("tiers ") && l.ends_with("(2 runs)")), "{list}");
    let tiers = shown(&["--scenario", "tiers"]);
    for part in ["goes there at once: spot-out\n", "goes there at once: type-out\n"] {
        assert!(tiers.contains(part), "{tiers}");
    }
    assert_eq!(tiers.matches("Look deeper").count(), 1, "{tiers}");
    let one = shown(&["--scenario", "tiers-type-out"]);
    assert!(one.contains(": type-out\n") && !one.contains(": spot-out\n"), "{one}");
}

#[test]
fn a_scenario_with_kills_is_played_once_for_each_kill() {
    let transcript = shown(&["--scenario", "killed"]);
    let kills = transcript.lines().filter(|l| l.contains("Setu is killed right after this write")).count();
    let announced = transcript.lines().filter(|l| l.starts_with("killed right after write ")).count();
    assert!(kills > 5 && kills == announced, "{kills} of {announced}\n{transcript}");
}

#[test]
fn a_served_scenario_names_its_run() {
    for (scenario, message) in [
        (
            "tiers",
            "the scenario has 2 runs, of which the first is served; name another by its id, such as --scenario tiers-type-out",
        ),
        ("killed", "served without the kills after each write"),
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_setu"))
            .args(["demo", "--scenario", scenario, "--serve", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let first = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(first, message);
    }
}

#[test]
fn the_seed_determines_the_demo() {
    let shown = |seed: &str| shown(&["--seed", seed]);
    let first = shown("3");
    for words in ["setu-2 leads", "InsufficientCapacity", "WASTED NODE-SECONDS", "Look deeper"] {
        assert!(first.contains(words), "{words} is missing in\n{first}");
    }
    assert_eq!(first, shown("3"));
    assert_ne!(first, shown("4"));
}

/// `script` provides a terminal. On other systems it takes different arguments.
#[cfg(target_os = "linux")]
#[test]
fn in_a_terminal_each_gang_of_the_demo_has_a_progress_bar() {
    let demo = format!("stty cols 120 rows 40; '{}' demo --speed 0 --seed 3", env!("CARGO_BIN_EXE_setu"));
    let mut script = Command::new("script");
    let output = script.args(["-qec", &demo, "/dev/null"]).env("TERM", "xterm").stdin(Stdio::null()).output();
    let output = output.unwrap();
    let drawn = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{drawn}");
    for gang in ["steady", "resumed", "hungry", "evicted", "rival-a", "rival-b"] {
        assert!(drawn.contains(&format!("{gang}\u{1b}[0m \u{1b}[32m")), "{gang} has no bar in\n{drawn}");
    }
    let full = "━".repeat(16);
    assert!(drawn.contains(&full), "no bar is full in\n{drawn}");
    assert!(drawn.contains("InsufficientCapacity") && drawn.contains("WASTED NODE-SECONDS"), "{drawn}");
}

/// The length of the play in seconds, from the time of its last line.
fn length(transcript: &str) -> f64 {
    let time = |line: &str| line.trim_start().split_once("s  ")?.0.parse().ok();
    transcript.lines().filter_map(time).next_back().unwrap()
}

/// The path of a gang in the summary, which continues on indented lines.
fn path(transcript: &str, gang: &str) -> String {
    let row = format!("{gang}  ");
    let lines: Vec<&str> = transcript.lines().skip_while(|l| !l.starts_with(&row)).collect();
    let (first, rest) = lines.split_first().unwrap();
    let more = rest.iter().take_while(|l| l.starts_with(' ')).map(|l| l.trim());
    std::iter::once(*first).chain(more).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_demo_shows_every_gang_to_its_end_within_a_minute() {
    const SPEED: f64 = 2.0;
    for seed in ["1", "2", "5", "8", "13", "16"] {
        let transcript = shown(&["--seed", seed]);
        for gang in ["steady", "resumed", "hungry", "evicted", "rival-a", "rival-b"] {
            assert!(transcript.contains(&format!("{gang}: finished")), "{gang}, seed {seed}:\n{transcript}");
            assert!(path(&transcript, gang).ends_with(" → Released"), "{gang}, seed {seed}:\n{transcript}");
        }
        let has_line =
            |gang: &str, words: &str| transcript.lines().any(|l| l.contains(gang) && l.contains(words));
        assert!(has_line("rival-", "→ RollingBack"), "seed {seed}:\n{transcript}");
        assert!(has_line("evicted: ", "Approved → WaitingReady"), "seed {seed}:\n{transcript}");
        assert!(has_line("hungry  ", "spot → on-demand"), "seed {seed}:\n{transcript}");
        assert!(
            length(&transcript) / SPEED < 55.0,
            "seed {seed} takes {} seconds",
            length(&transcript) / SPEED
        );
    }
    let help = String::from_utf8(setu(&["demo", "--help"]).stdout).unwrap();
    assert!(help.contains(&format!("[default: {SPEED}]")), "{help}");
}

#[test]
fn a_served_demo_responds_until_ctrl_c() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_setu"))
        .args(["demo", "--serve", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut after = |words: &str| {
        let after = lines.find_map(|line| line.unwrap().split_once(words).map(|(_, after)| after.to_owned()));
        after.unwrap().split(' ').next().unwrap_or_default().to_owned()
    };
    let address = after("--server http://");
    let kubeconfig = PathBuf::from(after("export KUBECONFIG="));
    let mode = kubeconfig.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "others can read {}", kubeconfig.display());
    let get = |path: &str| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        answer
    };
    assert!(get("/apis/kueue.x-k8s.io/v1beta2/clusterqueues/demo").contains("ClusterQueue"));
    assert!(get("/board").contains("<!doctype html>"));
    // The event stream never ends; the first event shows a gang of the play.
    let mut events = std::net::TcpStream::connect(&address).unwrap();
    events.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    write!(events, "GET /board/events HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut shown = BufReader::new(events).lines().map_while(Result::ok);
    assert!(shown.any(|line| line.contains("steady")), "the board shows no gang");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(rest.iter().any(|line| line.contains("Look deeper")), "{rest:?}");
    assert!(!kubeconfig.exists(), "{} stays behind", kubeconfig.display());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
