//! News in, work out, on a clock of the test's own.

use serde_json::{Value, json};

use super::*;
use crate::handle::{Ask, Reply};

const SECOND: Duration = Duration::from_secs(1);

/// A state that knows everything there is, which is nothing, and a clock.
struct Bench {
    state: State,
    now: Instant,
    version: u64,
    /// What was said in turns that were taken for something else.
    overheard: Vec<Statement>,
}

impl Bench {
    fn new() -> Self {
        let now = Instant::now();
        let state = State::new(Settings::default(), Metrics::default(), now);
        let mut bench = Self { state, now, version: 100, overheard: vec![] };
        bench.hear(News::Pods(nothing()));
        bench.hear(News::Nodes(nothing()));
        bench.hear(News::Offers(nothing()));
        bench.hear(News::Budgets(nothing()));
        bench.hear(News::Namespaces(nothing()));
        bench.hear(News::Claims(nothing()));
        bench.hear(News::Volumes(nothing()));
        bench.hear(News::Classes(nothing()));
        bench
    }

    /// With machines that offer this many cpus each, past the time in which nothing is said.
    fn with_machines(machines: &[(&str, &str)]) -> Self {
        let mut bench = Self::new();
        for (name, cpu) in machines {
            bench.node(name, json!({}), json!({}));
            bench.offer(name, cpu);
        }
        bench.pass(6 * SECOND);
        machines.iter().for_each(|(name, cpu)| bench.offer(name, cpu));
        assert_eq!(bench.turn(), []);
        bench
    }

    fn hear(&mut self, news: News) {
        self.state.hear(news, self.now);
    }

    fn turn(&mut self) -> Vec<Work> {
        self.state.turn(self.now)
    }

    /// Time passes without any machine falling silent: offers are renewed and nothing else happens.
    fn pass(&mut self, time: Duration) {
        let names: Vec<String> = self.state.offers.keys().cloned().collect();
        self.now += time;
        for name in names {
            let terms = self.state.cluster.offer(&name).cloned().expect("an offer");
            let id = Id { name: name.clone(), version: self.next(), ..Id::default() };
            let view = OfferWire { terms, ttl: None };
            self.hear(News::Offers(Seen::There(Item { id, view })));
        }
    }

    fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn node(&mut self, name: &str, labels: Value, spec: Value) {
        let version = self.next();
        let node = json!({
            "metadata": { "name": name, "labels": labels, "resourceVersion": version.to_string() }, "spec": spec,
            "status": {
                "allocatable": { "cpu": "8", "memory": "8Gi", "pods": "110" },
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        });
        self.hear(News::Nodes(Seen::There(item(&node))));
    }

    fn offer(&mut self, name: &str, cpu: &str) {
        let seen = self.version;
        self.offer_of(name, json!({ "cpu": cpu, "memory": "8Gi", "pods": "110" }), seen);
    }

    fn offer_of(&mut self, name: &str, free: Value, seen: u64) {
        let version = self.next();
        let offer = json!({
            "metadata": { "name": name, "resourceVersion": version.to_string() },
            "spec": { "free": free, "automaticPorts": ["31000-32000"], "explicitPorts": ["1-65535"], "ttlSeconds": 5, "seen": seen.to_string() },
        });
        self.hear(News::Offers(Seen::There(item(&offer))));
    }

    fn pod(&mut self, name: &str, spec: Value) {
        self.pod_with(name, json!({}), spec, json!({}));
    }

    fn pod_with(&mut self, name: &str, metadata: Value, spec: Value, status: Value) {
        let version = self.next();
        let mut pod = json!({
            "metadata": {
                "name": name, "namespace": "ns", "uid": format!("uid-{name}"), "resourceVersion": version.to_string(),
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] },
            "status": status,
        });
        merge(&mut pod["metadata"], metadata);
        merge(&mut pod["spec"], spec);
        self.hear(News::Pods(Seen::There(item(&pod))));
    }

    fn gone(&mut self, name: &str) {
        let id =
            Id { namespace: "ns".to_owned(), name: name.to_owned(), uid: format!("uid-{name}"), version: self.next() };
        self.hear(News::Pods(Seen::Gone(id)));
    }

    /// Takes a turn and says what was bound where; everything else is in `others`.
    fn placed(&mut self) -> Vec<(String, String)> {
        let work = self.turn();
        let orders = work.iter().filter_map(|work| if let Work::Bind(orders) = work { Some(orders) } else { None });
        orders.flatten().map(|order| (order.pod.name.clone(), order.node.clone())).collect()
    }

    /// Takes a turn and answers every placement in it as the API would.
    fn bind(&mut self) -> Vec<(String, String)> {
        let mut placed = vec![];
        for work in self.turn() {
            let orders = match work {
                Work::Bind(orders) => orders,
                Work::Say(statement) => {
                    self.overheard.push(statement);
                    continue;
                }
                _ => continue,
            };
            placed.extend(orders.iter().map(|order| (order.pod.name.clone(), order.node.clone())));
            let answers = orders.iter().map(|_| Answer::Bound { version: self.next() }).collect();
            self.hear(News::Bound { orders, answers, took: Duration::ZERO });
        }
        placed
    }

    fn said(&mut self) -> Vec<(String, String, String)> {
        let work = self.turn();
        let mut said = std::mem::take(&mut self.overheard);
        said.extend(work.into_iter().filter_map(|work| if let Work::Say(said) = work { Some(said) } else { None }));
        for statement in &said {
            self.hear(News::Said { statement: statement.clone(), done: true });
        }
        said.into_iter().map(|s| (s.pod.name, s.complaint.reason.to_owned(), s.complaint.message)).collect()
    }

    fn text(&mut self, ask: Ask) -> String {
        match self.state.answer(ask, self.now, "2026-01-01T00:00:00Z".parse().unwrap()) {
            Reply::Text(text) => text,
            other => panic!("{other:?}"),
        }
    }
}

fn nothing<T>() -> Seen<T> {
    Seen::All { items: vec![], version: 1, round: 0 }
}

fn item<T: serde::de::DeserializeOwned>(object: &Value) -> Item<T> {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let version = text("resourceVersion").parse().unwrap();
    let id = Id { namespace: text("namespace"), name: text("name"), uid: text("uid"), version };
    Item { id, view: serde_json::from_value(object.clone()).unwrap() }
}

fn merge(to: &mut Value, more: Value) {
    let Value::Object(more) = more else { panic!("{more}") };
    to.as_object_mut().unwrap().extend(more);
}

fn cpu(amount: &str) -> Value {
    json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": amount } } }] })
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn nothing_is_decided_before_everything_is_known() {
    let now = Instant::now();
    let state = State::new(Settings::default(), Metrics::default(), now);
    let mut bench = Bench { state, now, version: 1, overheard: vec![] };
    bench.node("m", json!({}), json!({}));
    bench.offer("m", "4");
    bench.pod("p", json!({}));
    assert_eq!(bench.turn(), [], "other pods may be on that machine");
    for news in [News::Budgets(nothing()), News::Claims(nothing()), News::Volumes(nothing()), News::Classes(nothing())]
    {
        bench.hear(news);
    }
    bench.hear(News::Namespaces(nothing()));
    assert_eq!(bench.turn(), []);
    let node = bench.state.cluster.machines().next().cloned().unwrap();
    let id = Id { name: "m".to_owned(), ..Id::default() };
    bench.hear(News::Nodes(Seen::All { items: vec![Item { id, view: node }], version: 1, round: 0 }));
    bench.hear(News::Pods(Seen::All { items: vec![], version: 1, round: 0 }));
    assert_eq!(bench.placed(), pairs(&[("p", "m")]));
}

#[test]
fn pods_are_bound_together_and_room_is_given_once() {
    let mut bench = Bench::with_machines(&[("a", "2"), ("b", "2")]);
    for n in 0..6 {
        bench.pod(&format!("p{n}"), json!({}));
    }
    let placed = bench.bind();
    assert_eq!(placed.len(), 4, "{placed:?}");
    assert_eq!(placed.iter().filter(|(_, node)| node == "a").count(), 2);
    let said = bench.said();
    assert_eq!(said.len(), 2);
    assert!(said[0].2.starts_with("0/2 nodes are available: 2 Insufficient cpu."), "{said:?}");
    assert_eq!(bench.turn(), []);
}

#[test]
fn the_echo_of_a_placement_does_not_count_twice() {
    let mut bench = Bench::with_machines(&[("a", "2")]);
    bench.pod("p", json!({}));
    bench.bind();
    bench.pod_with("p", json!({}), json!({ "nodeName": "a" }), json!({}));
    bench.pod_with("p", json!({}), json!({ "nodeName": "a" }), json!({ "phase": "Running" }));
    bench.pod("q", json!({}));
    bench.pod("r", json!({}));
    assert_eq!(bench.bind(), pairs(&[("q", "a")]));
    // The machine has seen all of it and says what is left: nothing.
    let seen = bench.version;
    bench.offer_of("a", json!({ "cpu": "0", "memory": "8Gi", "pods": "108" }), seen);
    assert_eq!(bench.placed(), []);
    assert_eq!(bench.state.cluster.room("a")["cpu"], 0);
}

#[test]
fn old_news_after_a_placement_changes_nothing() {
    let mut bench = Bench::with_machines(&[("a", "2")]);
    bench.pod("p", json!({}));
    let Some(Work::Bind(orders)) = bench.turn().pop() else { panic!() };
    bench.pod_with("p", json!({ "labels": { "x": "y" } }), json!({}), json!({})); // labelled just before it was bound
    let version = bench.next();
    bench.hear(News::Bound { orders, answers: vec![Answer::Bound { version }], took: SECOND });
    assert_eq!(bench.turn(), [], "it is not placed again");
    assert!(bench.state.queue.is_empty());
    assert_eq!(bench.text(Ask::Tasks), "task_count=1\nuid-p\tns/p\tplaced\ta\n");
}

#[test]
fn a_refused_placement_is_decided_anew_and_a_failed_one_too() {
    let mut bench = Bench::with_machines(&[("a", "1")]);
    for answer in [
        Answer::Refused { message: "nodes \"a\" not found".to_owned() },
        Answer::Failed { message: "no answer".to_owned() },
    ] {
        bench.pod("p", json!({}));
        let Some(Work::Bind(orders)) = bench.turn().pop() else { panic!() };
        bench.hear(News::Bound { orders, answers: vec![answer], took: SECOND });
        assert_eq!(bench.placed(), [], "after its back-off");
        bench.pass(SECOND);
        bench.pass(SECOND);
        assert_eq!(bench.bind(), pairs(&[("p", "a")]));
        bench.gone("p");
        bench.turn();
    }
}

#[test]
fn a_thousand_that_fit_nowhere_sleep_until_something_changes() {
    let mut bench = Bench::with_machines(&[("a", "1")]);
    for n in 0..1000 {
        bench.pod(&format!("p{n}"), cpu("4"));
    }
    let first = bench.said().len();
    assert!(first > 0);
    while !bench.said().is_empty() {}
    let quiet = bench.state.next(bench.now).unwrap();
    assert!(quiet > bench.now + SECOND, "only the machine's offer and comparisons have their time");
    bench.pass(4 * SECOND);
    assert_eq!(bench.turn(), []);
    assert!(bench.state.queue.next(bench.now).is_none(), "renewed offers wake nobody");
    bench.offer("a", "8");
    assert_eq!(bench.bind().len(), 2, "an offer that is large enough wakes them at once");
}

#[test]
fn back_off_is_cut_short_for_pods_with_selectors_too() {
    let mut bench = Bench::with_machines(&[("a", "4"), ("b", "4")]);
    let picky = json!({ "nodeSelector": { "disk": "ssd" } });
    for n in 0..20 {
        bench.pod(&format!("p{n}"), picky.clone());
    }
    while !bench.said().is_empty() {}
    bench.node("b", json!({ "disk": "ssd" }), json!({}));
    let placed = bench.bind();
    assert_eq!(placed.len(), 4, "at once, as many as fit");
    assert!(placed.iter().all(|(_, node)| node == "b"));
}

#[test]
fn freed_ports_taints_and_cordons_wake_whom_they_help() {
    let mut bench = Bench::with_machines(&[("a", "4")]);
    let port = json!({ "containers": [{ "name": "c", "ports": [{ "containerPort": 80, "hostPort": 80 }] }] });
    bench.pod("first", port.clone());
    assert_eq!(bench.bind().len(), 1);
    bench.pod("second", port);
    assert!(bench.said()[0].2.contains("host port 80 on a is taken by ns/first"), "the reason is told");
    bench.gone("first");
    assert_eq!(bench.bind(), pairs(&[("second", "a")]));
    bench.node("a", json!({}), json!({ "unschedulable": true }));
    bench.pod("third", json!({}));
    assert!(bench.said()[0].2.starts_with("0/1 nodes are available: 1 node(s) were unschedulable."));
    bench.node("a", json!({}), json!({}));
    assert_eq!(bench.bind(), pairs(&[("third", "a")]));
}

#[test]
fn a_pod_that_wants_to_be_near_another_comes_when_that_does() {
    let mut bench = Bench::with_machines(&[("a", "4"), ("b", "4")]);
    for name in ["a", "b"] {
        bench.node(name, json!({ "kubernetes.io/hostname": name }), json!({}));
    }
    bench.turn();
    let near = json!({ "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
        { "labelSelector": { "matchLabels": { "app": "db" } }, "topologyKey": "kubernetes.io/hostname" },
    ] } } });
    bench.pod("web", near);
    assert!(bench.said()[0].2.contains("didn't match pod affinity rules"));
    bench.pod("other", json!({}));
    assert_eq!(bench.bind().len(), 1, "only the other");
    bench.pod_with("db", json!({ "labels": { "app": "db" } }), json!({}), json!({}));
    let placed = bench.bind();
    let node = |pod: &str| placed.iter().find(|(name, _)| name == pod).map(|(_, node)| node.clone());
    assert!(node("db").is_some());
    assert_eq!(node("db"), node("web"), "{placed:?}");
}

#[test]
fn a_machine_that_falls_silent_gets_nothing_and_its_offer_is_torn_up() {
    let mut bench = Bench::with_machines(&[("a", "4")]);
    bench.now += 5 * SECOND;
    let version = bench.state.offers["a"];
    bench.pod("p", json!({}));
    let work = bench.turn();
    assert_eq!(work[0], Work::TearUp { machine: "a".to_owned(), version });
    let Work::Say(statement) = &work[1] else { panic!("{work:?}") };
    assert!(statement.complaint.message.contains("node(s) were not offering"), "{statement:?}");
    bench.offer("a", "4");
    assert_eq!(bench.bind(), pairs(&[("p", "a")]));
}

#[test]
fn who_was_turned_away_goes_elsewhere_or_back_after_a_while() {
    let mut bench = Bench::with_machines(&[("a", "4")]);
    bench.pod("p", json!({}));
    bench.bind();
    bench.pod_with("p", json!({}), json!({ "nodeName": "a" }), json!({}));
    let refused = json!({ "conditions": [
        { "type": "PodScheduled", "status": "False", "reason": "Refused", "message": "machine a refused: no room" },
    ] });
    bench.pod_with("p", json!({ "annotations": { "mainstay.dev/refused-by": "a" } }), json!({}), refused);
    assert!(bench.said()[0].2.contains("node(s) refused the pod"));
    bench.pass(4 * SECOND);
    assert_eq!(bench.placed(), []);
    bench.pass(SECOND);
    assert_eq!(bench.bind(), pairs(&[("p", "a")]), "asked again");
}

#[test]
fn the_more_important_makes_others_leave_and_waits_for_it() {
    let mut bench = Bench::with_machines(&[("a", "1")]);
    bench.pod("low", json!({}));
    bench.bind();
    bench.pod_with("low", json!({}), json!({ "nodeName": "a" }), json!({ "phase": "Running" }));
    bench.pod("high", json!({ "priority": 10 }));
    let work = bench.turn();
    let Some(Work::Evict(eviction)) = work.iter().find(|work| matches!(work, Work::Evict(_))) else {
        panic!("{work:?}")
    };
    assert_eq!(eviction.victims, [(PodKey::new("ns", "low"), "uid-low".to_owned())]);
    assert_eq!((eviction.pod.name.as_str(), eviction.node.as_str()), ("high", "a"));
    bench.hear(News::Evicted { eviction: eviction.clone(), done: true });
    bench.pod_with(
        "low",
        json!({ "deletionTimestamp": "2026-01-01T00:00:30Z" }),
        json!({ "nodeName": "a" }),
        json!({}),
    );
    assert!(!bench.turn().iter().any(|work| matches!(work, Work::Evict(_) | Work::Bind(_))), "nobody is asked twice");
    bench.gone("low");
    assert_eq!(bench.bind(), pairs(&[("high", "a")]));
}

#[test]
fn gated_foreign_and_leaving_pods_are_not_placed() {
    let mut bench = Bench::with_machines(&[("a", "4")]);
    bench.pod("gated", json!({ "schedulingGates": [{ "name": "wait" }] }));
    bench.pod("foreign", json!({ "schedulerName": "other" }));
    bench.pod_with("leaving", json!({ "deletionTimestamp": "2026-01-01T00:00:30Z" }), json!({}), json!({}));
    let said = bench.said();
    let gated = "Scheduling is blocked due to non-empty scheduling gates";
    assert_eq!(said, [("gated".to_owned(), "SchedulingGated".to_owned(), gated.to_owned())]);
    bench.pod("gated", json!({}));
    assert_eq!(bench.bind(), pairs(&[("gated", "a")]));
}

#[test]
fn a_port_mapping_nobody_knows_is_warned_of_and_taken_as_the_stock_one() {
    let mut bench = Bench::with_machines(&[("a", "4")]);
    let labels = json!({ "labels": { "k8s.mesosphere.io/portMapping": "sideways" } });
    let ports = json!({ "containers": [{ "name": "c", "ports": [{ "containerPort": 80 }] }] });
    bench.pod_with("p", labels, ports, json!({}));
    let work = bench.turn();
    let [Work::Tell(note), Work::Bind(orders)] = &work[..] else { panic!("{work:?}") };
    assert!(note.message.contains("\"sideways\" is neither"), "{note:?}");
    assert!(orders[0].annotations.is_empty());
}

#[test]
fn a_pending_pod_that_is_deleted_leaves_at_once() {
    let mut bench = Bench::with_machines(&[("a", "1")]);
    bench.pod("p", cpu("4"));
    bench.said();
    bench.gone("p");
    assert!(bench.state.queue.is_empty() && bench.state.models.is_empty() && bench.state.pods.is_empty());
    bench.offer("a", "8");
    assert_eq!(bench.turn(), []);
}

#[test]
fn claims_have_to_be_there_and_their_volumes_say_where() {
    let mut bench = Bench::with_machines(&[("a", "4"), ("b", "4")]);
    bench.pod("p", json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }] }));
    assert!(bench.said()[0].2.contains("persistentvolumeclaim \"c\" not found"));
    let volume = json!({
        "metadata": { "name": "pv", "resourceVersion": "7" },
        "spec": { "nodeAffinity": { "required": { "nodeSelectorTerms": [
            { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["b"] }] },
        ] } } },
    });
    bench.hear(News::Volumes(Seen::There(item(&volume))));
    let claim = json!({
        "metadata": { "name": "c", "namespace": "ns", "resourceVersion": "8" },
        "spec": { "volumeName": "pv" }, "status": { "phase": "Bound" },
    });
    bench.hear(News::Claims(Seen::There(item(&claim))));
    assert_eq!(bench.bind(), pairs(&[("p", "b")]));
}

#[test]
fn everything_is_compared_on_demand_and_what_was_missed_is_made_good() {
    let mut bench = Bench::with_machines(&[("a", "1")]);
    bench.pod("kept", json!({}));
    bench.bind();
    bench.pod("big", cpu("4"));
    bench.said();
    bench.state.request(Kind::Explicit, bench.now);
    bench.state.request(Kind::Explicit, bench.now);
    assert_eq!(bench.turn(), [Work::Relist { round: 1 }], "one for both");
    // In truth both pods are gone and the machine is larger: the watch missed all of it.
    let all = |round| Seen::All { items: vec![], version: 1_000_000, round };
    bench.hear(News::Pods(all(1)));
    assert_eq!(bench.text(Ask::PodStore), "");
    assert_eq!(bench.state.cluster.pods_on("a").count(), 0);
}

#[test]
fn people_see_who_waits_and_who_has_a_machine() {
    let mut bench = Bench::with_machines(&[("a", "1")]);
    bench.pod("placed", json!({}));
    bench.bind();
    bench.pod("waits", cpu("4"));
    bench.said();
    let queue = bench.text(Ask::PodQueue);
    assert!(queue.starts_with("ns/waits\t-\t0."), "{queue}");
    assert_eq!(bench.text(Ask::PodStore), "ns/placed\ta\tplaced\tuid-placed\nns/waits\t-\twaiting\tuid-waits\n");
    assert_eq!(bench.text(Ask::Kamikaze), "a\nOK\n");
    let work = bench.turn();
    assert!(matches!(&work[..], [Work::TearUp { machine, .. }, ..] if machine == "a"), "{work:?}");
    bench.pod("late", json!({}));
    assert_eq!(bench.placed(), [], "it has to offer itself again first");
    bench.offer("a", "8");
    assert_eq!(bench.placed().len(), 2);
}
