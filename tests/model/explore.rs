//! The search. stateright visits every state. The graph it walks is kept, to check that every state can
//! still settle once faults end.
//!
//! stateright's own `eventually` does not see cycles, so this is computed here: a state is stuck if no
//! path without faults leads to a settled state.

use crate::replica::{Caches, Fate, ModelReplica};
use crate::world::{Broken, ModelMove, ModelWorld, MoveBudget};
use setu_core::planted::{Planted, plant};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// One step of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Other(ModelMove),
    Start { replica: usize, old_work: bool, old_claims: bool, old_plan: bool, late: bool, unread: bool },
    Step { replica: usize, fate: Fate },
    Crash { replica: usize },
}

impl Action {
    fn is_calm(self) -> bool {
        match self {
            Self::Other(action) => action.is_calm(),
            Self::Start { old_work, old_claims, old_plan, unread, .. } => {
                !old_work && !old_claims && !old_plan && !unread
            }
            Self::Step { fate, .. } => fate == Fate::Answered,
            Self::Crash { .. } => false,
        }
    }
}

/// The result of an exploration.
pub struct Exploration {
    /// Properties that do not hold, each with the path that breaks it.
    pub violations: Vec<String>,
    /// A state from which no settled state can be reached.
    pub stuck: Option<String>,
}

#[derive(Default)]
struct Graph {
    calm: Vec<(u64, u64)>,
    settled: HashMap<u64, bool>,
    steps: u64,
}

struct Gangs {
    budget: MoveBudget,
    bug: Option<Planted>,
    graph: Arc<Mutex<Graph>>,
}

fn fingerprint(world: &ModelWorld) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// The same world with its replicas in a canonical order: swapping them makes no difference.
fn ordered(mut world: ModelWorld) -> ModelWorld {
    let key = |replica: &ModelReplica| {
        let mut hasher = DefaultHasher::new();
        replica.hash(&mut hasher);
        hasher.finish()
    };
    let [one, other] = &world.replicas;
    if one != other && key(one) > key(other) {
        world.replicas.swap(0, 1);
    }
    if world.past.is_some() && world.budget.stale == 0 {
        world.past = None;
    }
    if world.past.is_none() {
        for replica in &mut world.replicas {
            replica.has_written = false;
        }
    }
    world
}

impl Gangs {
    fn replica_actions(&self, world: &ModelWorld, replica: usize, actions: &mut Vec<Action>) {
        let it = &world.replicas[replica];
        if let Some(ongoing) = &it.ongoing {
            actions.push(Action::Step { replica, fate: Fate::Answered });
            if world.budget.lost > 0 {
                actions.push(Action::Step { replica, fate: Fate::RequestLost });
                actions.push(Action::Step { replica, fate: Fate::ReplyLost });
            }
            if world.budget.crashes > 0 {
                actions.push(Action::Crash { replica });
                if ongoing.runs_many() {
                    actions.push(Action::Step { replica, fate: Fate::DiesAfterOne });
                }
            }
            return;
        }
        let may_be_old = [false, world.past.is_some() && world.budget.stale > 0];
        let may_be_unread = [false, true];
        let may_be_unread = &may_be_unread[..1 + usize::from(world.budget.unread > 0)];
        let times = [false, true].into_iter().flat_map(|late| may_be_unread.iter().map(move |u| (late, *u)));
        let is_old_plan = world.past.as_ref().is_some_and(|past| past.planned != world.planned);
        for (late, unread) in times {
            for old_work in &may_be_old[..1 + usize::from(may_be_old[1] && !it.has_written)] {
                for old_claims in &may_be_old[..1 + usize::from(may_be_old[1])] {
                    for old_plan in &may_be_old[..1 + usize::from(may_be_old[1] && is_old_plan)] {
                        let (old_work, old_claims, old_plan) = (*old_work, *old_claims, *old_plan);
                        actions.push(Action::Start { replica, old_work, old_claims, old_plan, late, unread });
                    }
                }
            }
        }
    }

    fn apply(world: &mut ModelWorld, action: Action) -> Option<()> {
        match action {
            Action::Other(action) => world.make(action),
            Action::Start { replica, old_work, old_claims, old_plan, late, unread } => {
                let past = |is_old: bool| world.past.as_ref().filter(|_| is_old);
                let old = Caches { work: past(old_work), claims: past(old_claims), plan: past(old_plan) };
                let ongoing = ModelReplica::start(world, old, (late, unread))?;
                world.replicas[replica].ongoing = Some(Box::new(ongoing));
                world.budget.stale -= u8::from(old_work || old_claims || old_plan);
                world.budget.unread -= u8::from(unread);
            }
            Action::Step { replica, fate } => {
                match fate {
                    Fate::Answered => {}
                    Fate::RequestLost | Fate::ReplyLost => world.budget.lost -= 1,
                    Fate::DiesAfterOne => world.budget.crashes -= 1,
                }
                let ongoing = world.replicas[replica].ongoing.take()?;
                let before = world.work.clone();
                let ongoing = ongoing.step(world, fate);
                world.replicas[replica].ongoing = ongoing.map(Box::new);
                world.replicas[replica].has_written |= fate == Fate::Answered && world.work != before;
            }
            Action::Crash { replica } => {
                world.budget.crashes -= 1;
                world.replicas[replica] = ModelReplica::default();
            }
        }
        Some(())
    }
}

impl Model for Gangs {
    type State = ModelWorld;
    type Action = Action;

    fn init_states(&self) -> Vec<ModelWorld> {
        vec![ModelWorld::new(self.budget)]
    }

    fn actions(&self, world: &ModelWorld, actions: &mut Vec<Action>) {
        plant(self.bug);
        let settled = world.is_settled();
        self.graph.lock().unwrap().settled.insert(fingerprint(world), settled);
        if world.broken.is_some() {
            return;
        }
        actions.extend(world.moves().into_iter().map(Action::Other));
        self.replica_actions(world, 0, actions);
        if world.replicas[0] != world.replicas[1] {
            self.replica_actions(world, 1, actions);
        }
    }

    fn next_state(&self, last: &ModelWorld, action: Action) -> Option<ModelWorld> {
        plant(self.bug);
        let mut world = last.clone();
        Self::apply(&mut world, action)?;
        if world.is_still()
            && !world.claims.iter().all(|c| world.work.journal.is_some_and(|j| j.wants(c, &world.claims)))
        {
            world.breaks(Broken::Orphan);
        }
        let world = ordered(world);
        let mut graph = self.graph.lock().unwrap();
        graph.steps += 1;
        if action.is_calm() {
            graph.calm.push((fingerprint(last), fingerprint(&world)));
        }
        drop(graph);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! properties {
            ($($n:literal)*) => {
                vec![$(Property::always(Broken::ALL[$n].1, |_, w: &ModelWorld| w.broken != Some(Broken::ALL[$n].0))),*]
            };
        }
        properties!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16)
    }
}

/// Explores the states that this mix of faults leads to, breadth first: all of them, or the first `limit`
/// steps.
pub fn explore(title: &str, budget: MoveBudget, bug: Option<Planted>, limit: Option<usize>) -> Exploration {
    let began = Instant::now();
    let graph = Arc::new(Mutex::new(Graph::default()));
    let model = Gangs { budget, bug, graph: Arc::clone(&graph) };
    let builder = model.checker().threads(1).finish_when(HasDiscoveries::AnyFailures);
    let builder = if let Some(limit) = limit { builder.target_state_count(limit) } else { builder };
    let checker = builder.spawn_bfs().join();
    let violations: Vec<String> = checker
        .discoveries()
        .into_iter()
        .map(|(name, path)| format!("not so: {name}\n{}", story(&path.into_vec())))
        .collect();
    let graph = graph.lock().unwrap();
    let stuck = if violations.is_empty() { graph.stuck() } else { Vec::new() };
    println!(
        "{title}: {} states{}, {} steps, {} settled, {} stuck, {:.1?}",
        checker.unique_state_count(),
        if limit.is_some_and(|l| graph.steps >= l as u64) { " (cut)" } else { "" },
        graph.steps,
        graph.settled.values().filter(|s| **s).count(),
        stuck.len(),
        began.elapsed()
    );
    Exploration { violations, stuck: stuck.first().map(|state| describe_stuck(budget, bug, *state)) }
}

fn story(option: &[(ModelWorld, Option<Action>)]) -> String {
    let line = |(n, (world, action)): (usize, &(ModelWorld, Option<Action>))| match action {
        Some(Action::Step { replica, .. } | Action::Crash { replica }) => {
            let ongoing =
                world.replicas[*replica].ongoing.as_ref().map(ToString::to_string).unwrap_or_default();
            format!("  {:>2} {action:?}: {ongoing}", n + 1)
        }
        Some(other) => format!("  {:>2} {other:?}", n + 1),
        None => format!("  at last {:?} {:?}", world.work, world.claims),
    };
    option.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

impl Graph {
    /// States from which calm steps reach no settled state, nearest first.
    fn stuck(&self) -> Vec<u64> {
        let mut before: HashMap<u64, Vec<u64>> = HashMap::new();
        for (from, to) in &self.calm {
            before.entry(*to).or_default().push(*from);
        }
        let settled = self.settled.iter().filter(|(_, s)| **s).map(|(id, _)| *id);
        // Beyond the limit of the search nothing is known, so nothing is reported as stuck.
        let unknown = self.calm.iter().map(|(_, to)| *to).filter(|id| !self.settled.contains_key(id));
        let mut open: Vec<u64> = settled.chain(unknown).collect();
        let mut reached: std::collections::HashSet<u64> = open.iter().copied().collect();
        while let Some(state) = open.pop() {
            for from in before.get(&state).into_iter().flatten() {
                if reached.insert(*from) {
                    open.push(*from);
                }
            }
        }
        self.settled.keys().filter(|id| !reached.contains(id)).copied().collect()
    }
}

/// Describes the shortest path to a stuck state.
fn describe_stuck(budget: MoveBudget, bug: Option<Planted>, state: u64) -> String {
    let model = Gangs { budget, bug, graph: Arc::default() };
    let mut seen: HashMap<u64, Option<(u64, Action)>> = HashMap::new();
    let mut open = std::collections::VecDeque::from(model.init_states());
    seen.insert(fingerprint(&open[0]), None);
    while let Some(world) = open.pop_front() {
        let id = fingerprint(&world);
        if id == state {
            let mut actions = Vec::new();
            let mut at = id;
            while let Some(Some((from, action))) = seen.get(&at) {
                actions.push(*action);
                at = *from;
            }
            let mut option = Vec::new();
            let mut world = model.init_states().remove(0);
            for action in actions.into_iter().rev() {
                let next = model.next_state(&world, action).unwrap();
                option.push((std::mem::replace(&mut world, next), Some(action)));
            }
            option.push((world, None));
            return story(&option);
        }
        for (action, next) in model.next_steps(&world) {
            seen.entry(fingerprint(&next)).or_insert_with(|| {
                open.push_back(next);
                Some((id, action))
            });
        }
    }
    "not found again".to_owned()
}
