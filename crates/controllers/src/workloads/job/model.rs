//! A Job against a model of the API: pods end and are deleted at any moment, changes are seen late, controllers
//! crash between any two of their writes, and a second controller may be at work with a cache of its own.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::JobStatus;
use proptest::prelude::*;

use super::{
    finish::{finished, on_record},
    indexes::Indexes,
    plan::{Action, Slot, plan},
    policy::FailureAction,
    testing::{at_second, desired},
    uncounted,
    view::{Desired, Life, View, World},
};
use crate::runtime::Plan;

#[derive(Clone, Debug)]
enum Command {
    /// A pod runs, or ends.
    Live {
        which: usize,
        life: Life,
        ignored: bool,
    },
    /// Somebody deletes a pod.
    Delete {
        which: usize,
    },
    /// The node is done with a pod that is being deleted.
    Confirm {
        which: usize,
    },
    /// A controller sees the current state of one pod.
    Refresh {
        who: usize,
        which: usize,
    },
    /// A controller reconciles and is cut off after some writes.
    Reconcile {
        who: usize,
        writes: usize,
    },
    Wait {
        seconds: i64,
    },
    Suspend(bool),
    Parallelism(usize),
}

fn command(writers: usize) -> impl Strategy<Value = Command> {
    let life = prop_oneof![Just(Life::Running), Just(Life::Succeeded), Just(Life::Failed)];
    let writes = prop_oneof![3 => Just(usize::MAX), 1 => 0..4usize];
    prop_oneof![
        4 => (0..8usize, life, prop::bool::weighted(0.2))
            .prop_map(|(which, life, ignored)| Command::Live { which, life, ignored }),
        1 => (0..8usize).prop_map(|which| Command::Delete { which }),
        2 => (0..8usize).prop_map(|which| Command::Confirm { which }),
        5 => (0..writers, 0..8usize).prop_map(|(who, which)| Command::Refresh { who, which }),
        6 => (0..writers, writes).prop_map(|(who, writes)| Command::Reconcile { who, writes }),
        1 => (1..400i64).prop_map(|seconds| Command::Wait { seconds }),
        1 => prop::bool::weighted(0.3).prop_map(Command::Suspend),
        1 => (0..4usize).prop_map(Command::Parallelism),
    ]
}

fn job() -> impl Strategy<Value = Desired> {
    let completions = prop_oneof![1 => Just(None), 4 => (0..6usize).prop_map(Some)];
    let per_index = prop_oneof![Just(None), (0..3).prop_map(Some)];
    (0..4usize, completions, any::<bool>(), 0..5, per_index, any::<bool>()).prop_map(
        |(parallelism, completions, indexed, backoff_limit, per_index, replace_ended_only)| {
            let indexed = indexed && completions.is_some();
            let backoff_limit_per_index = per_index.filter(|_| indexed);
            Desired {
                parallelism,
                completions,
                indexed,
                backoff_limit: if backoff_limit_per_index.is_some() { i32::MAX } else { backoff_limit },
                backoff_limit_per_index,
                replace_ended_only,
                ..desired()
            }
        },
    )
}

/// A controller: what it knows of pods and of the Job.
#[derive(Clone)]
struct ControllerView {
    pods: BTreeMap<String, View>,
    status: JobStatus,
    version: u64,
}

struct Model {
    want: Desired,
    pods: BTreeMap<String, View>,
    status: JobStatus,
    version: u64,
    now: Timestamp,
    made: usize,
    controllers: Vec<ControllerView>,
    /// Uids that were ever on record as uncounted, and what was last on record.
    entered: BTreeSet<String>,
    /// Pods that a controller gave up, which are not to be counted.
    given_up: BTreeSet<String>,
    /// Pods that ended and whose end counts, once they are released.
    released: Vec<(String, Life, Option<usize>)>,
}

impl Model {
    fn new(want: Desired, writers: usize) -> Self {
        let knows = ControllerView { pods: BTreeMap::new(), status: JobStatus::default(), version: 1 };
        Self {
            want,
            pods: BTreeMap::new(),
            status: JobStatus::default(),
            version: 1,
            now: at_second(1_000_000),
            made: 0,
            controllers: vec![knows; writers],
            entered: BTreeSet::new(),
            given_up: BTreeSet::new(),
            released: Vec::new(),
        }
    }

    fn nth(&self, which: usize) -> Option<String> {
        self.pods.keys().nth(which % self.pods.len().max(1)).cloned()
    }

    fn run(&mut self, command: Command) {
        match command {
            Command::Live { which, life, ignored } => {
                let Some(name) = self.nth(which) else { return };
                let pod = self.pods.get_mut(&name).unwrap();
                if pod.is_finished() {
                    return;
                }
                (pod.life, pod.finished) = (life, self.now);
                if life == Life::Failed && ignored {
                    pod.ruling = FailureAction::Ignore;
                }
                self.touch();
            }
            Command::Delete { which } => {
                let Some(name) = self.nth(which) else { return };
                self.delete(&name);
            }
            Command::Confirm { which } => {
                let Some(name) = self.nth(which) else { return };
                let pod = self.pods.get_mut(&name).unwrap();
                if pod.leaving && !pod.is_finished() {
                    (pod.life, pod.finished) = (Life::Failed, self.now);
                }
                self.sweep();
            }
            Command::Refresh { who, which } => {
                let names: BTreeSet<&String> = self.pods.keys().chain(self.controllers[who].pods.keys()).collect();
                if let Some(name) = names.iter().nth(which % names.len().max(1)).map(|name| (*name).clone()) {
                    self.refresh(who, &name);
                }
            }
            Command::Reconcile { who, writes } => self.reconcile(who, writes),
            Command::Wait { seconds } => self.now += SignedDuration::from_secs(seconds),
            Command::Suspend(suspended) => {
                self.want.suspended = suspended;
                self.version += 1;
            }
            Command::Parallelism(parallelism) => {
                self.want.parallelism = parallelism;
                self.version += 1;
            }
        }
    }

    fn refresh(&mut self, who: usize, name: &str) {
        match self.pods.get(name) {
            Some(pod) => drop(self.controllers[who].pods.insert(name.to_owned(), pod.clone())),
            None => drop(self.controllers[who].pods.remove(name)),
        }
    }

    fn delete(&mut self, name: &str) {
        let pod = self.pods.get_mut(name).unwrap();
        if !pod.leaving && !pod.is_finished() {
            pod.finished = self.now;
        }
        pod.leaving = true;
        self.sweep();
    }

    /// Pods that are being deleted, have ended and are held by nothing are gone.
    fn sweep(&mut self) {
        self.touch();
        self.pods.retain(|_, pod| !(pod.leaving && pod.is_finished() && !pod.tracked));
    }

    /// Whatever changed has another version.
    fn touch(&mut self) {
        for pod in self.pods.values_mut() {
            pod.version = format!("{:?}", (pod.life, pod.leaving, pod.tracked));
        }
    }

    fn observe(&mut self, who: usize) -> World {
        // The Job itself, and what the record names, are never out of date for long.
        let knows = &mut self.controllers[who];
        let missing = |knows: &ControllerView| {
            let known: BTreeSet<&str> = knows.pods.values().map(|pod| pod.uid.as_str()).collect();
            uncounted(&knows.status).into_iter().any(|uid| !known.contains(uid))
        };
        if missing(knows) {
            knows.pods = self.pods.clone();
        }
        World {
            want: self.want.clone(),
            version: knows.version.to_string(),
            status: knows.status.clone(),
            pods: knows.pods.values().cloned().collect(),
            claims: vec![],
            foreign: vec![],
            used_numbers: Default::default(),
            predecessors: Default::default(),
        }
    }

    fn reconcile(&mut self, who: usize, mut writes: usize) {
        let world = self.observe(who);
        let plan = plan(&world, self.now);
        for action in plan.actions {
            if writes == 0 {
                return self.restart(who);
            }
            writes -= 1;
            if !self.apply(who, action) {
                break;
            }
        }
        let Some(report) = plan.status else { return };
        if writes == 0 {
            return self.restart(who);
        }
        for begun in &report.begun {
            let stale = self.pods.get(&begun.name).is_none_or(|pod| pod.uid != begun.uid || !pod.tracked);
            self.refresh(who, &begun.name);
            if stale {
                return;
            }
        }
        if world.version != self.version.to_string() {
            (self.controllers[who].status, self.controllers[who].version) = (self.status.clone(), self.version);
            return; // refused
        }
        let before: BTreeSet<String> = uncounted(&self.status).into_iter().map(str::to_owned).collect();
        let after: BTreeSet<String> = uncounted(&report.status).into_iter().map(str::to_owned).collect();
        for uid in after.difference(&before) {
            assert!(self.entered.insert(uid.clone()), "{uid} is counted again");
        }
        self.status = report.status;
        self.version += 1;
        (self.controllers[who].status, self.controllers[who].version) = (self.status.clone(), self.version);
    }

    /// A controller that starts anew sees the world as it is.
    fn restart(&mut self, who: usize) {
        self.controllers[who] =
            ControllerView { pods: self.pods.clone(), status: self.status.clone(), version: self.version };
    }

    fn apply(&mut self, who: usize, action: Action) -> bool {
        match action {
            Action::OwnershipChange(claim) => panic!("{claim:?}"),
            Action::Create(Slot { name, index, failures, .. }) => {
                if self.pods.contains_key(&name) {
                    self.refresh(who, &name);
                    return false;
                }
                self.made += 1;
                let (index_failures, index_ignored) = failures.unwrap_or_default();
                let pod = View {
                    name: name.clone(),
                    uid: format!("u{}", self.made),
                    version: String::new(),
                    index,
                    index_failures,
                    index_ignored,
                    life: Life::Pending,
                    leaving: false,
                    tracked: true,
                    placed: false,
                    ready: false,
                    restarts: 0,
                    created: self.now,
                    finished: self.now,
                    ruling: FailureAction::Count,
                };
                self.pods.insert(name.clone(), pod);
                self.touch();
                self.refresh(who, &name);
                let active: Vec<&View> = self.pods.values().filter(|pod| pod.is_active()).collect();
                if self.controllers.len() == 1 {
                    assert!(active.len() <= self.want.parallelism, "{active:?}");
                    let indexes: BTreeSet<usize> = active.iter().filter_map(|pod| pod.index).collect();
                    assert!(!self.want.indexed || indexes.len() == active.len(), "{active:?}");
                }
            }
            Action::Stop { name, uid } => {
                if self.pods.get(&name).is_some_and(|pod| pod.uid == uid) {
                    self.delete(&name);
                }
                self.refresh(who, &name);
            }
            Action::GiveUp { name, uid, version } => {
                let found = self.pods.get_mut(&name).filter(|pod| pod.uid == uid);
                let Some(pod) = found.filter(|pod| pod.version == version) else {
                    self.refresh(who, &name);
                    return false;
                };
                pod.tracked = false;
                self.given_up.insert(uid);
                self.delete(&name);
                self.refresh(who, &name);
            }
            Action::Release { name, uid, version } => {
                if let Some(pod) = self.pods.get_mut(&name).filter(|pod| pod.uid == uid) {
                    if version.is_some_and(|version| version != pod.version) {
                        self.refresh(who, &name);
                        return false;
                    }
                    pod.tracked = false;
                    // What a controller made of an ended Job because it did not know better counts for nobody.
                    let over = finished(&self.status).is_some();
                    // And what was stopped because the Job is content is no failure.
                    let content = on_record(&self.status).is_some_and(|end| end.success) && pod.leaving;
                    let stopped = content && pod.life == Life::Failed;
                    if !over
                        && !stopped
                        && pod.is_finished()
                        && (pod.life == Life::Succeeded || pod.ruling != FailureAction::Ignore)
                    {
                        self.released.push((uid, pod.life, pod.index));
                    }
                    self.sweep();
                }
                self.refresh(who, &name);
            }
        }
        true
    }

    /// Everything is seen, nothing ends by itself any more, and controllers reconcile until nobody acts.
    fn settle(&mut self) {
        for _ in 0..200 {
            self.now += SignedDuration::from_secs(400);
            // Nodes confirm, and what runs ends well, so that there is an end.
            for pod in self.pods.values_mut() {
                if !pod.is_finished() {
                    (pod.life, pod.finished) = (if pod.leaving { Life::Failed } else { Life::Succeeded }, self.now);
                }
            }
            self.sweep();
            let mut quiet = true;
            for who in 0..self.controllers.len() {
                self.restart(who);
                let world = self.observe(who);
                let planned = plan(&world, self.now);
                quiet &= planned == Plan::default();
                self.reconcile(who, usize::MAX);
            }
            if quiet {
                return;
            }
        }
        panic!("no rest: {:?}", self.status);
    }

    fn check(&self) {
        let totals = (self.status.succeeded.unwrap_or_default(), self.status.failed.unwrap_or_default());
        // A failed pod of an index that is not tried again for now remembers how often that failed.
        let remembers = self.want.backoff_limit_per_index.is_some() && finished(&self.status).is_none();
        let retained = |pod: &View| pod.is_active() || (remembers && pod.life == Life::Failed);
        assert!(self.pods.values().all(|pod| !pod.tracked || retained(pod)), "{:?}", self.pods);
        let waiting = uncounted(&self.status);
        assert!(waiting.iter().all(|uid| self.pods.values().any(|pod| pod.uid == *uid && pod.tracked)), "{waiting:?}");
        let entered = i32::try_from(self.entered.len() - waiting.len()).unwrap();
        if self.want.indexed {
            assert_eq!(totals.1, entered, "every failure once");
            assert!(usize::try_from(totals.0).unwrap() <= self.want.indexes());
        } else {
            assert_eq!(totals.0 + totals.1, entered, "every end once");
        }
        if finished(&self.status).is_none() {
            let idle = self.want.suspended || self.want.parallelism == 0;
            assert!(idle, "it comes to an end: {:?}", self.status);
        } else {
            assert!(self.pods.values().all(|pod| !pod.is_active()));
        }
        for (uid, life, index) in &self.released {
            let done = self.status.completed_indexes.as_deref().unwrap_or_default();
            let completed = || index.is_some_and(|index| Indexes::parse(done, self.want.indexes()).contains(index));
            let counted = self.entered.contains(uid) || (self.want.indexed && *life == Life::Succeeded && completed());
            assert!(counted, "{uid} was forgotten");
        }
        assert!(self.given_up.iter().all(|uid| !self.entered.contains(uid)), "what is given up does not count");
    }
}

fn story(want: Desired, writers: usize, commands: Vec<Command>) {
    let mut model = Model::new(want, writers);
    commands.into_iter().for_each(|command| model.run(command));
    model.settle();
    model.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_job_converges_and_counts_once(want in job(), commands in prop::collection::vec(command(1), 0..80)) {
        story(want, 1, commands);
    }

    #[test]
    fn two_controllers_count_no_pod_twice(want in job(), commands in prop::collection::vec(command(2), 0..80)) {
        story(want, 2, commands);
    }
}
