//! Whatever happens, in whatever order events arrive: no pod is bound twice, no resource is given twice, no pod is
//! forgotten.
//!
//! A model of the API has the true state. Events and results reach the scheduler late, but of each kind in order.

use std::collections::{BTreeMap, VecDeque};

use proptest::{prelude::*, strategy::Strategy};
use serde_json::json;

use super::*;

const NODES: [&str; 3] = ["a", "b", "c"];
const CAPACITY: i64 = 4;

#[derive(Clone, Debug)]
struct TruePod {
    cpu: i64,
    node: Option<String>,
    version: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Create(u8, i64),
    Delete(u8),
    Label(u8),
    Offer(usize),
    /// The next event on its way from the API is delivered.
    Hear(usize),
    /// The oldest placement under way is answered: well, or not at all.
    BindResult(bool),
    Schedule,
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..8u8, 1..4i64).prop_map(|(pod, cpu)| Step::Create(pod, cpu)),
        2 => (0..8u8).prop_map(Step::Delete),
        1 => (0..8u8).prop_map(Step::Label),
        2 => (0..3usize).prop_map(Step::Offer),
        6 => (1..4usize).prop_map(Step::Hear),
        4 => prop::bool::weighted(0.8).prop_map(Step::BindResult),
        4 => Just(Step::Schedule),
        1 => (0..2_000u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 0..120)
}

struct Model {
    state: SchedulerState,
    now: Instant,
    version: u64,
    births: u64,
    pods: BTreeMap<String, (String, TruePod)>,
    pending_events: VecDeque<SchedulerEvent>,
    asked: VecDeque<Vec<BindRequest>>,
}

impl Model {
    fn new() -> Self {
        let now = Instant::now();
        let mut model = Self {
            state: SchedulerState::new(Settings::default(), Metrics::default(), now),
            now,
            version: 10,
            births: 0,
            pods: BTreeMap::new(),
            pending_events: VecDeque::new(),
            asked: VecDeque::new(),
        };
        fn nothing<T>() -> Delta<T> {
            Delta::Replaced { items: vec![], version: 1, round: 0 }
        }
        for event in
            [SchedulerEvent::Pods(nothing()), SchedulerEvent::Budgets(nothing()), SchedulerEvent::Namespaces(nothing())]
        {
            model.state.apply(event, now);
        }
        for event in [
            SchedulerEvent::Claims(nothing()),
            SchedulerEvent::Volumes(nothing()),
            SchedulerEvent::StorageClasses(nothing()),
        ] {
            model.state.apply(event, now);
        }
        model.state.apply(SchedulerEvent::Nodes(nothing()), now);
        for name in NODES {
            let node = json!({
                "metadata": { "name": name },
                "status": {
                    "allocatable": { "cpu": CAPACITY.to_string(), "pods": "110" },
                    "conditions": [{ "type": "Ready", "status": "True" }],
                },
            });
            let object = ObjectRef { name: name.to_owned(), ..ObjectRef::default() };
            let view = serde_json::from_value(node).unwrap();
            model.state.apply(SchedulerEvent::Nodes(Delta::Updated(Item { object, view })), now);
            model.offer(name);
        }
        model
    }

    fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// The node has seen everything up to now, and says what is left.
    fn offer(&mut self, node: &str) {
        let here = self.pods.values().filter(|(_, pod)| pod.node.as_deref() == Some(node));
        let taken: i64 = here.map(|(_, pod)| pod.cpu).sum();
        let (observed, version) = (self.version, self.next());
        let spec = json!({ "spec": {
            "free": { "cpu": (CAPACITY - taken).to_string(), "pods": "100" }, "ttlSeconds": 3600, "seen": observed.to_string(),
        } });
        let object = ObjectRef { name: node.to_owned(), version, ..ObjectRef::default() };
        let view = serde_json::from_value(spec).unwrap();
        self.pending_events.push_back(SchedulerEvent::Offers(Delta::Updated(Item { object, view })));
    }

    fn send_pod_event(&mut self, name: &str) {
        let (uid, pod) = &self.pods[name];
        let pod_json = json!({
            "metadata": { "name": name, "namespace": "ns", "uid": uid, "resourceVersion": pod.version.to_string() },
            "spec": {
                "nodeName": pod.node,
                "containers": [{ "name": "c", "resources": { "requests": { "cpu": pod.cpu.to_string() } } }],
            },
        });
        let object =
            ObjectRef { namespace: "ns".to_owned(), name: name.to_owned(), uid: uid.clone(), version: pod.version };
        let view = serde_json::from_value(pod_json).unwrap();
        self.pending_events.push_back(SchedulerEvent::Pods(Delta::Updated(Item { object, view })));
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Create(pod, cpu) => {
                let name = format!("p{pod}");
                if !self.pods.contains_key(&name) {
                    self.births += 1;
                    let version = self.next();
                    let pod = TruePod { cpu: *cpu, node: None, version };
                    self.pods.insert(name.clone(), (format!("uid-{}", self.births), pod));
                    self.send_pod_event(&name);
                }
            }
            Step::Delete(pod) => {
                let name = format!("p{pod}");
                if let Some((uid, _)) = self.pods.remove(&name) {
                    let version = self.next();
                    let object = ObjectRef { namespace: "ns".to_owned(), name, uid, version };
                    self.pending_events.push_back(SchedulerEvent::Pods(Delta::Deleted(object)));
                }
            }
            Step::Label(pod) => {
                let (name, version) = (format!("p{pod}"), self.next());
                if let Some((_, pod)) = self.pods.get_mut(&name) {
                    pod.version = version;
                    self.send_pod_event(&name);
                }
            }
            Step::Offer(node) => self.offer(NODES[*node]),
            Step::Hear(count) => {
                for _ in 0..*count {
                    if let Some(event) = self.pending_events.pop_front() {
                        self.state.apply(event, self.now);
                    }
                }
            }
            Step::BindResult(well) => self.answer(*well)?,
            Step::Schedule => self.schedule()?,
            Step::Pass(millis) => self.now += Duration::from_millis(*millis),
        }
        Ok(())
    }

    fn schedule(&mut self) -> Result<(), TestCaseError> {
        for actions in self.state.schedule(self.now) {
            match actions {
                Action::Bind(requests) => {
                    for request in &requests {
                        let twice = self.asked.iter().flatten().any(|other| other.uid == request.uid);
                        prop_assert!(!twice, "{:?} is under way already", request);
                    }
                    self.asked.push_back(requests);
                }
                Action::WriteStatus(update) => {
                    self.state.apply(SchedulerEvent::StatusWritten { update, done: true }, self.now)
                }
                Action::Preempt(preemption) => prop_assert!(false, "nobody is less important: {:?}", preemption),
                Action::ClearNomination { .. }
                | Action::RecordEvent(_)
                | Action::Deallocate { .. }
                | Action::DeleteOffer { .. }
                | Action::Relist { .. } => {}
            }
        }
        Ok(())
    }

    /// The API judges each placement by the truth.
    fn answer(&mut self, well: bool) -> Result<(), TestCaseError> {
        let Some(requests) = self.asked.pop_front() else { return Ok(()) };
        let mut results = vec![];
        for request in &requests {
            if !well {
                results.push(BindResult::Failed { message: "no answer".to_owned() });
                continue;
            }
            let version = self.next();
            let pod = self.pods.get_mut(&request.pod.name).filter(|(uid, _)| *uid == request.uid);
            let Some((_, pod)) = pod.filter(|(_, pod)| pod.node.is_none()) else {
                results.push(BindResult::Refused { message: "not that pod, or placed already".to_owned() });
                continue;
            };
            (pod.node, pod.version) = (Some(request.node.clone()), version);
            self.send_pod_event(&request.pod.name);
            results.push(BindResult::Bound { version });
            self.no_node_is_overcommitted()?;
        }
        self.state
            .apply(SchedulerEvent::BindFinished { requests, results, claims: vec![], took: Duration::ZERO }, self.now);
        Ok(())
    }

    fn no_node_is_overcommitted(&self) -> Result<(), TestCaseError> {
        for node in NODES {
            let here = self.pods.values().filter(|(_, pod)| pod.node.as_deref() == Some(node));
            let taken: i64 = here.map(|(_, pod)| pod.cpu).sum();
            prop_assert!(taken <= CAPACITY, "{} has {} of {}", node, taken, CAPACITY);
        }
        Ok(())
    }

    /// All events and results are delivered, until nothing more happens.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..50 {
            NODES.iter().for_each(|node| self.offer(node));
            while let Some(event) = self.pending_events.pop_front() {
                self.state.apply(event, self.now);
            }
            self.schedule()?;
            while !self.asked.is_empty() {
                self.answer(true)?;
            }
            self.now += Duration::from_secs(2);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_pod_is_bound_twice_no_resource_given_twice_and_no_pod_forgotten(steps in steps()) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step)?;
        }
        model.settle()?;
        let room = |node: &str| {
            let here = model.pods.values().filter(|(_, pod)| pod.node.as_deref() == Some(node));
            CAPACITY - here.map(|(_, pod)| pod.cpu).sum::<i64>()
        };
        let most = NODES.iter().map(|node| room(node)).max().unwrap_or(0);
        for (name, (_, pod)) in &model.pods {
            prop_assert!(pod.node.is_some() || pod.cpu > most, "{} waits although it fits", name);
        }
        let waiting = model.pods.values().filter(|(_, pod)| pod.node.is_none()).count();
        prop_assert_eq!(model.state.queue.len(), waiting);
        prop_assert_eq!(model.state.pods.len(), model.pods.len());
    }
}
