//! Whatever happens, in whatever order it is heard of: no pod is placed twice, no room is given twice, nobody is
//! forgotten.
//!
//! A model of the API holds the truth. The state hears of it late and answers come late, but of each kind in order.

use std::collections::{BTreeMap, VecDeque};

use proptest::{prelude::*, strategy::Strategy};
use serde_json::json;

use super::*;

const MACHINES: [&str; 3] = ["a", "b", "c"];
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
    /// The next of what is on its way from the API is heard.
    Hear(usize),
    /// The oldest placement under way is answered: well, or not at all.
    Answer(bool),
    Turn,
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..8u8, 1..4i64).prop_map(|(pod, cpu)| Step::Create(pod, cpu)),
        2 => (0..8u8).prop_map(Step::Delete),
        1 => (0..8u8).prop_map(Step::Label),
        2 => (0..3usize).prop_map(Step::Offer),
        6 => (1..4usize).prop_map(Step::Hear),
        4 => prop::bool::weighted(0.8).prop_map(Step::Answer),
        4 => Just(Step::Turn),
        1 => (0..2_000u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 0..120)
}

struct Model {
    state: State,
    now: Instant,
    version: u64,
    births: u64,
    pods: BTreeMap<String, (String, TruePod)>,
    on_the_way: VecDeque<News>,
    asked: VecDeque<Vec<Order>>,
}

impl Model {
    fn new() -> Self {
        let now = Instant::now();
        let mut model = Self {
            state: State::new(Settings::default(), Metrics::default(), now),
            now,
            version: 10,
            births: 0,
            pods: BTreeMap::new(),
            on_the_way: VecDeque::new(),
            asked: VecDeque::new(),
        };
        fn nothing<T>() -> Seen<T> {
            Seen::All { items: vec![], version: 1, round: 0 }
        }
        for news in [News::Pods(nothing()), News::Budgets(nothing()), News::Namespaces(nothing())] {
            model.state.hear(news, now);
        }
        for news in [News::Claims(nothing()), News::Volumes(nothing()), News::Classes(nothing())] {
            model.state.hear(news, now);
        }
        model.state.hear(News::Nodes(nothing()), now);
        for machine in MACHINES {
            let node = json!({
                "metadata": { "name": machine },
                "status": {
                    "allocatable": { "cpu": CAPACITY.to_string(), "pods": "110" },
                    "conditions": [{ "type": "Ready", "status": "True" }],
                },
            });
            let id = Id { name: machine.to_owned(), ..Id::default() };
            let view = serde_json::from_value(node).unwrap();
            model.state.hear(News::Nodes(Seen::There(Item { id, view })), now);
            model.offer(machine);
        }
        model
    }

    fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// The machine has seen everything up to now, and says what is left.
    fn offer(&mut self, machine: &str) {
        let here = self.pods.values().filter(|(_, pod)| pod.node.as_deref() == Some(machine));
        let taken: i64 = here.map(|(_, pod)| pod.cpu).sum();
        let (seen, version) = (self.version, self.next());
        let spec = json!({ "spec": {
            "free": { "cpu": (CAPACITY - taken).to_string(), "pods": "100" }, "ttlSeconds": 3600, "seen": seen.to_string(),
        } });
        let id = Id { name: machine.to_owned(), version, ..Id::default() };
        let view = serde_json::from_value(spec).unwrap();
        self.on_the_way.push_back(News::Offers(Seen::There(Item { id, view })));
    }

    fn tell(&mut self, name: &str) {
        let (uid, pod) = &self.pods[name];
        let object = json!({
            "metadata": { "name": name, "namespace": "ns", "uid": uid, "resourceVersion": pod.version.to_string() },
            "spec": {
                "nodeName": pod.node,
                "containers": [{ "name": "c", "resources": { "requests": { "cpu": pod.cpu.to_string() } } }],
            },
        });
        let id = Id { namespace: "ns".to_owned(), name: name.to_owned(), uid: uid.clone(), version: pod.version };
        let view = serde_json::from_value(object).unwrap();
        self.on_the_way.push_back(News::Pods(Seen::There(Item { id, view })));
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
                    self.tell(&name);
                }
            }
            Step::Delete(pod) => {
                let name = format!("p{pod}");
                if let Some((uid, _)) = self.pods.remove(&name) {
                    let version = self.next();
                    let id = Id { namespace: "ns".to_owned(), name, uid, version };
                    self.on_the_way.push_back(News::Pods(Seen::Gone(id)));
                }
            }
            Step::Label(pod) => {
                let (name, version) = (format!("p{pod}"), self.next());
                if let Some((_, pod)) = self.pods.get_mut(&name) {
                    pod.version = version;
                    self.tell(&name);
                }
            }
            Step::Offer(machine) => self.offer(MACHINES[*machine]),
            Step::Hear(count) => {
                for _ in 0..*count {
                    if let Some(news) = self.on_the_way.pop_front() {
                        self.state.hear(news, self.now);
                    }
                }
            }
            Step::Answer(well) => self.answer(*well)?,
            Step::Turn => self.turn()?,
            Step::Pass(millis) => self.now += Duration::from_millis(*millis),
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<(), TestCaseError> {
        for work in self.state.turn(self.now) {
            match work {
                Work::Bind(orders) => {
                    for order in &orders {
                        let twice = self.asked.iter().flatten().any(|other| other.uid == order.uid);
                        prop_assert!(!twice, "{:?} is under way already", order);
                    }
                    self.asked.push_back(orders);
                }
                Work::Say(statement) => self.state.hear(News::Said { statement, done: true }, self.now),
                Work::Evict(eviction) => prop_assert!(false, "nobody is less important: {:?}", eviction),
                Work::Renounce { .. } | Work::Tell(_) | Work::TearUp { .. } | Work::Relist { .. } => {}
            }
        }
        Ok(())
    }

    /// The API judges each placement by the truth.
    fn answer(&mut self, well: bool) -> Result<(), TestCaseError> {
        let Some(orders) = self.asked.pop_front() else { return Ok(()) };
        let mut answers = vec![];
        for order in &orders {
            if !well {
                answers.push(Answer::Failed { message: "no answer".to_owned() });
                continue;
            }
            let version = self.next();
            let pod = self.pods.get_mut(&order.pod.name).filter(|(uid, _)| *uid == order.uid);
            let Some((_, pod)) = pod.filter(|(_, pod)| pod.node.is_none()) else {
                answers.push(Answer::Refused { message: "not that pod, or placed already".to_owned() });
                continue;
            };
            (pod.node, pod.version) = (Some(order.node.clone()), version);
            self.tell(&order.pod.name);
            answers.push(Answer::Bound { version });
            self.nobody_has_too_much()?;
        }
        self.state.hear(News::Bound { orders, answers, took: Duration::ZERO }, self.now);
        Ok(())
    }

    fn nobody_has_too_much(&self) -> Result<(), TestCaseError> {
        for machine in MACHINES {
            let here = self.pods.values().filter(|(_, pod)| pod.node.as_deref() == Some(machine));
            let taken: i64 = here.map(|(_, pod)| pod.cpu).sum();
            prop_assert!(taken <= CAPACITY, "{} has {} of {}", machine, taken, CAPACITY);
        }
        Ok(())
    }

    /// Everything is heard and answered, until nothing more happens.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..50 {
            MACHINES.iter().for_each(|machine| self.offer(machine));
            while let Some(news) = self.on_the_way.pop_front() {
                self.state.hear(news, self.now);
            }
            self.turn()?;
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
    fn no_pod_is_placed_twice_no_room_given_twice_and_nobody_forgotten(steps in steps()) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step)?;
        }
        model.settle()?;
        let room = |machine: &str| {
            let here = model.pods.values().filter(|(_, pod)| pod.node.as_deref() == Some(machine));
            CAPACITY - here.map(|(_, pod)| pod.cpu).sum::<i64>()
        };
        let most = MACHINES.iter().map(|machine| room(machine)).max().unwrap_or(0);
        for (name, (_, pod)) in &model.pods {
            prop_assert!(pod.node.is_some() || pod.cpu > most, "{} waits although it fits", name);
        }
        let waiting = model.pods.values().filter(|(_, pod)| pod.node.is_none()).count();
        prop_assert_eq!(model.state.queue.len(), waiting);
        prop_assert_eq!(model.state.pods.len(), model.pods.len());
    }
}
