//! The statechart that the code implements: every state handles every event, and the resulting edges are drawn.
//!
//! Used by `setu statechart` and by the test that compares `statecharts/`. Rule: drawn from `decide`, never by hand, so
//! that the diagram always matches the code.

use super::chart::{GangChart, Superstate};
use super::decide::decide;
use super::event::Event;
use super::failure::{Failure, FailureClass};
use super::journal::Journal;
use super::option_position::OptionPosition;
use super::reservation::{AdmissionId, AdmissionPhase, Ending};
use super::rules::{Eviction, Rules};
use super::state::{Nodes, State, StateName, Then};
use super::step_context::StepContext;
use crate::api::parameters::{OnExhausted, OnNodeLost, Pinning};
use crate::plan::pod_set_labels::PodSetLabels;
use crate::policy::Policy;
use crate::policy::terms::Terms;
use jiff::{SignedDuration, Timestamp};
use statig::blocking::{State as _, Superstate as _};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::LazyLock;

/// The edges, each with every reason that it is taken for.
pub type Edges = BTreeMap<(StateName, StateName), BTreeSet<String>>;

/// Every edge of the chart.
pub fn edges() -> &'static Edges {
    static EDGES: LazyLock<Edges> = LazyLock::new(walk);
    &EDGES
}

/// Tries every state with every event in every circumstance, and collects the edges.
fn walk() -> Edges {
    let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1_000);
    // Copying this journal hundreds of thousands of times is cheaper than computing its digests as often.
    let new = Journal::new("uid", AdmissionId("1-0-same".into()), now, None);
    let mut edges = Edges::new();
    for state in states(now) {
        for event in events() {
            for (tries, yields, slots, on_exhausted, on_node_lost, eviction, options) in circumstances() {
                let policy =
                    Policy { on_exhausted, on_node_lost, mixed_tiers: options > 1, ..Policy::default() };
                let rules = Rules { eviction, ..Rules::new(&policy, now, 0.5) };
                let mut journal = new.clone();
                journal.state = state.clone();
                journal.memory.tries = tries;
                journal.memory.yields = yields;
                journal.memory.slots = slots;
                journal.memory.option.count = options;
                journal.memory.not_before = (yields > 0).then_some(now + SignedDuration::from_mins(1));
                let decision = decide(&journal, &event, &rules);
                if decision.journal.seq != journal.seq {
                    let edge = (state.name(), decision.journal.state.name());
                    edges.entry(edge).or_default().insert(event.reason().to_string());
                }
            }
        }
    }
    edges
}

fn states(now: Timestamp) -> Vec<State> {
    let thens = [Then::BackingOff, Then::Yielded, Then::Rejected, Then::Released];
    let mut states = vec![State::Validating, State::Provisioning, State::WaitingReady];
    states.extend(thens.map(|then| State::RollingBack { then }));
    states.push(State::BackingOff { until: now });
    states.extend([Nodes::Unneeded, Nodes::Held, Nodes::Replacing].map(|nodes| State::Approved { nodes }));
    states.extend([State::Yielded, State::Rejected, State::Released]);
    states
}

fn events() -> Vec<Event> {
    let phases = [
        AdmissionPhase::Reserved,
        AdmissionPhase::Admitted,
        AdmissionPhase::Running,
        AdmissionPhase::AdmittedPods,
    ];
    let mut events = vec![
        Event::Planned {
            slots: 2,
            plan: "plan".into(),
            pinning: Pinning::Selector,
            pod_sets: PodSetLabels::default(),
            option: OptionPosition::default(),
        },
        Event::NothingNeeded,
        Event::AlreadyRunning,
        Event::Impossible(Failure::new(FailureClass::NotPlannable, "never")),
        Event::Refused(Failure::new(FailureClass::NotPlannable, "not now")),
        Event::ClaimsMissing(vec![0]),
        Event::ClaimsExist,
        Event::NodesReady,
        Event::Unwanted(vec!["unwanted".into()]),
        Event::ClaimsGone,
        Event::WaitOver,
        Event::CapacityBack,
    ];
    for phase in phases {
        events.push(Event::Found {
            attempt: 1,
            generation: 0,
            slots: 2,
            pod_sets: PodSetLabels::default(),
            phase,
        });
        for class in FailureClass::ALL {
            events.push(Event::Lost { failure: Failure::new(class, ""), phase });
        }
        for admission in ["2-0-same", "2-1-other"] {
            events.push(Event::Reserved { admission: AdmissionId(admission.into()), phase });
        }
    }
    for ending in Ending::ALL {
        events.extend([Event::Leaving(ending), Event::Gone(ending)]);
    }
    events.extend(FailureClass::ALL.map(|class| Event::Failed(Failure::new(class, ""))));
    events.extend(FailureClass::ALL.map(|class| Event::Superseded(Failure::new(class, ""))));
    events
}

fn circumstances() -> Vec<(u32, u32, u32, OnExhausted, OnNodeLost, Eviction, u32)> {
    let mut all = Vec::new();
    for tries in [0, 99] {
        for yields in [0, 99] {
            for slots in [0, 2] {
                for on_exhausted in [OnExhausted::Yield, OnExhausted::Reject] {
                    for lost in [OnNodeLost::Replace, OnNodeLost::Yield, OnNodeLost::Reject] {
                        for eviction in [Eviction::Harmless, Eviction::StopsOthers] {
                            for options in [1, 2] {
                                all.push((tries, yields, slots, on_exhausted, lost, eviction, options));
                            }
                        }
                    }
                }
            }
        }
    }
    all
}

/// The reasons of an edge in few words: more than two failures become one word, and so do more than two endings.
pub fn label(reasons: &BTreeSet<String>) -> String {
    let failures: BTreeSet<String> = FailureClass::ALL.iter().map(ToString::to_string).collect();
    let endings: BTreeSet<String> = Ending::ALL.iter().map(|e| format!("{e:?}")).collect();
    let mut words: Vec<String> = Vec::new();
    let mut fold = |set: &BTreeSet<String>, word: &str| {
        let found = reasons.intersection(set).count();
        if found > 2 {
            words.push(word.to_owned());
        } else {
            words.extend(reasons.intersection(set).cloned());
        }
    };
    fold(&failures, "failure");
    fold(&endings, "reservation ended");
    words.extend(reasons.iter().filter(|r| !failures.contains(*r) && !endings.contains(*r)).cloned());
    words.join(", ")
}

/// A state, or a superstate with its parts.
enum ChartPart {
    State(StateName),
    Superstate(Superstate, Vec<Self>),
}

/// The states in their superstates, without [`Superstate::Any`].
fn parts() -> Vec<ChartPart> {
    let mut parts = Vec::new();
    let mut drawn = BTreeSet::new();
    for mut state in states(Timestamp::UNIX_EPOCH) {
        if !drawn.insert(state.name()) {
            continue;
        }
        let mut path = Vec::new();
        let mut next = state.superstate();
        while let Some(mut superstate) = next.filter(|s| *s != Superstate::Any) {
            next = superstate.superstate();
            path.push(superstate);
        }
        insert(&mut parts, &mut path, state.name());
    }
    parts
}

/// Puts a state into the innermost superstate of `path`, whose last element is the outermost.
fn insert(parts: &mut Vec<ChartPart>, path: &mut Vec<Superstate>, state: StateName) {
    let Some(outer) = path.pop() else {
        parts.push(ChartPart::State(state));
        return;
    };
    let inside = parts.iter_mut().find_map(|part| match part {
        ChartPart::Superstate(superstate, inside) if *superstate == outer => Some(inside),
        _ => None,
    });
    if let Some(inside) = inside {
        insert(inside, path, state);
    } else {
        let mut inside = Vec::new();
        insert(&mut inside, path, state);
        parts.push(ChartPart::Superstate(outer, inside));
    }
}

/// Actions of a state or a superstate whenever it is entered or left, found by running them.
#[derive(Default)]
struct ChartActions {
    entry: Option<&'static str>,
    exit: Option<&'static str>,
}

impl ChartActions {
    fn of_state(name: StateName) -> Self {
        let state = states(Timestamp::UNIX_EPOCH).into_iter().find(|state| state.name() == name);
        state.map_or_else(Self::default, |state| Self {
            entry: effect_of(|context| state.clone().call_entry_action(&mut GangChart, context)),
            exit: effect_of(|context| state.clone().call_exit_action(&mut GangChart, context)),
        })
    }

    fn of_superstate(superstate: Superstate) -> Self {
        let mut part = superstate;
        Self {
            entry: effect_of(|context| part.call_entry_action(&mut GangChart, context)),
            exit: effect_of(|context| part.call_exit_action(&mut GangChart, context)),
        }
    }

    /// The name of the part with its actions in the notation of UML; `None` without actions.
    fn label(&self, name: &str) -> Option<String> {
        let lines = [("entry", self.entry), ("exit", self.exit)];
        let actions: Vec<String> =
            lines.into_iter().filter_map(|(when, what)| Some(format!("{when} / {}", what?))).collect();
        (!actions.is_empty()).then(|| format!("{name} ({})", actions.join("; ")))
    }

    /// The start of the part in SCXML: its tag, and its actions as elements.
    fn scxml(&self, id: &str) -> String {
        let element = |tag: &str, what: Option<&str>| {
            what.map_or_else(String::new, |what| format!("    <{tag}><log label=\"{what}\"/></{tag}>\n"))
        };
        let actions = element("onentry", self.entry) + &element("onexit", self.exit);
        format!("<state id=\"{id}\">\n{actions}")
    }
}

/// The change that an action makes to the memory of a gang with terms and a deadline that has passed; `None` without a change.
fn effect_of(act: impl FnOnce(&mut StepContext)) -> Option<&'static str> {
    let (policy, now) = (Policy::default(), Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1_000));
    let mut journal = Journal::new("uid", AdmissionId::default(), now, Some(Timestamp::UNIX_EPOCH));
    journal.memory.terms = Terms::of(&policy, 0);
    let mut context = StepContext::new(&journal, &Rules::new(&policy, now, 0.5));
    act(&mut context);
    let (before, after) = (&journal.memory, &context.memory);
    let changes = [
        (before.deadline != after.deadline, "restart the deadline"),
        (before.terms != after.terms, "drop the terms"),
        (before != after, "change the memory"),
    ];
    changes.into_iter().find_map(|(happens, what)| happens.then_some(what))
}

/// The parts in some format, each level indented by four spaces.
fn outline(
    parts: &[ChartPart],
    indent: usize,
    state: &dyn Fn(StateName) -> String,
    (open, close): (&dyn Fn(Superstate) -> String, &str),
) -> String {
    let mut text = String::new();
    let pad = " ".repeat(indent);
    for part in parts {
        match part {
            ChartPart::State(name) => {
                for line in state(*name).lines() {
                    let _ = writeln!(text, "{pad}{line}");
                }
            }
            ChartPart::Superstate(superstate, inside) => {
                for line in open(*superstate).lines() {
                    let _ = writeln!(text, "{pad}{line}");
                }
                text.push_str(&outline(inside, indent + 4, state, (open, close)));
                let _ = writeln!(text, "{pad}{close}");
            }
        }
    }
    text
}

/// The chart as Mermaid.
pub fn mermaid() -> String {
    let mut text = String::from("stateDiagram-v2\n    [*] --> Validating\n");
    let open = |superstate| {
        let name = format!("{superstate:?}");
        let label = ChartActions::of_superstate(superstate).label(&name);
        label.map_or_else(|| format!("state {name} {{"), |label| format!("state \"{label}\" as {name} {{"))
    };
    let state = |name: StateName| {
        let label = ChartActions::of_state(name).label(&name.to_string());
        label.map_or_else(|| name.to_string(), |label| format!("state \"{label}\" as {name}"))
    };
    text.push_str(&outline(&parts(), 4, &state, (&open, "}")));
    for ((from, to), reasons) in edges() {
        let _ = writeln!(text, "    {from} --> {to}: {}", label(reasons));
    }
    text
}

/// The chart as Graphviz.
pub fn dot() -> String {
    let mut text = String::from("digraph gang {\n    rankdir=LR;\n    node [shape=box, style=rounded];\n");
    let open = |superstate| {
        let name = format!("{superstate:?}");
        let label = ChartActions::of_superstate(superstate).label(&name).unwrap_or_else(|| name.clone());
        format!("subgraph cluster_{name} {{ label=\"{label}\"; style=dashed;")
    };
    let state = |name: StateName| {
        let label = ChartActions::of_state(name).label(&name.to_string());
        label.map_or_else(|| format!("{name};"), |label| format!("{name} [label=\"{label}\"];"))
    };
    text.push_str(&outline(&parts(), 4, &state, (&open, "}")));
    for ((from, to), reasons) in edges() {
        let _ = writeln!(text, "    {from} -> {to} [label=\"{}\"];", label(reasons).replace(", ", "\\n"));
    }
    text.push_str("}\n");
    text
}

/// The chart as SCXML, with one transition per reason.
pub fn scxml() -> String {
    let state = |state: StateName| {
        let mut text = ChartActions::of_state(state).scxml(&state.to_string());
        for ((from, to), reasons) in edges() {
            for reason in reasons.iter().filter(|_| *from == state) {
                let _ = writeln!(text, "    <transition event=\"{reason}\" target=\"{to}\"/>");
            }
        }
        text + "</state>"
    };
    let open = |superstate| ChartActions::of_superstate(superstate).scxml(&format!("{superstate:?}"));
    let states = outline(&parts(), 4, &state, (&open, "</state>"));
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <scxml xmlns=\"http://www.w3.org/2005/07/scxml\" version=\"1.0\" initial=\"Validating\">\n\
         {states}</scxml>\n"
    )
}
