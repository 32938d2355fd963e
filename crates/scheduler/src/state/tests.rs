//! Events in, actions out, on a clock of the test's own.

use serde_json::{Value, json};

use super::*;
use crate::handle::{DebugReply, DebugRequest};

const SECOND: Duration = Duration::from_secs(1);

/// A state that has synced with an empty cluster, and a clock.
struct TestScheduler {
    state: SchedulerState,
    now: Instant,
    version: u64,
    /// Status updates of cycles that were run for something else.
    earlier_updates: Vec<StatusUpdate>,
}

impl TestScheduler {
    fn new() -> Self {
        let now = Instant::now();
        let state = SchedulerState::new(Settings::default(), Metrics::default(), now);
        let mut scheduler = Self { state, now, version: 100, earlier_updates: vec![] };
        scheduler.apply(SchedulerEvent::Pods(nothing()));
        scheduler.apply(SchedulerEvent::Nodes(nothing()));
        scheduler.apply(SchedulerEvent::Offers(nothing()));
        scheduler.apply(SchedulerEvent::Budgets(nothing()));
        scheduler.apply(SchedulerEvent::Namespaces(nothing()));
        scheduler.apply(SchedulerEvent::Claims(nothing()));
        scheduler.apply(SchedulerEvent::Volumes(nothing()));
        scheduler.apply(SchedulerEvent::StorageClasses(nothing()));
        scheduler
    }

    /// With nodes that offer this many cpus each, past the time before the first status is written.
    fn with_nodes(nodes: &[(&str, &str)]) -> Self {
        let mut scheduler = Self::new();
        for (name, cpu) in nodes {
            scheduler.node(name, json!({}), json!({}));
            scheduler.offer(name, cpu);
        }
        scheduler.pass(6 * SECOND);
        nodes.iter().for_each(|(name, cpu)| scheduler.offer(name, cpu));
        assert_eq!(scheduler.schedule(), []);
        scheduler
    }

    fn apply(&mut self, event: SchedulerEvent) {
        self.state.apply(event, self.now);
    }

    fn schedule(&mut self) -> Vec<Action> {
        self.state.schedule(self.now)
    }

    /// Time passes without any node falling silent: offers are renewed and nothing else happens.
    fn pass(&mut self, time: Duration) {
        let names: Vec<String> = self.state.offer_versions.keys().cloned().collect();
        self.now += time;
        for name in names {
            let offer = self.state.cluster.offer(&name).cloned().expect("an offer");
            let object = ObjectRef { name: name.clone(), version: self.next(), ..ObjectRef::default() };
            let view = OfferObject { offer, ttl: None };
            self.apply(SchedulerEvent::Offers(Delta::Updated(Item { object, view })));
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
        self.apply(SchedulerEvent::Nodes(Delta::Updated(item(&node))));
    }

    fn offer(&mut self, name: &str, cpu: &str) {
        let observed = self.version;
        self.offer_of(name, json!({ "cpu": cpu, "memory": "8Gi", "pods": "110" }), observed);
    }

    fn offer_of(&mut self, name: &str, free: Value, observed: u64) {
        let version = self.next();
        let offer = json!({
            "metadata": { "name": name, "resourceVersion": version.to_string() },
            "spec": { "free": free, "automaticPorts": ["31000-32000"], "explicitPorts": ["1-65535"], "ttlSeconds": 5, "seen": observed.to_string() },
        });
        self.apply(SchedulerEvent::Offers(Delta::Updated(item(&offer))));
    }

    /// A heartbeat of a node that renews this version of its offer.
    fn lease(&mut self, node: &str, offer: Option<u64>) {
        let version = self.next();
        let annotations = offer.map(|offer| json!({ "mainstay.dev/renewed-offer": offer.to_string() }));
        let lease = json!({
            "metadata": { "name": node, "resourceVersion": version.to_string(), "annotations": annotations },
        });
        self.apply(SchedulerEvent::Leases(Delta::Updated(item(&lease))));
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
        self.apply(SchedulerEvent::Pods(Delta::Updated(item(&pod))));
    }

    fn delete_pod(&mut self, name: &str) {
        let object = ObjectRef {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            version: self.next(),
        };
        self.apply(SchedulerEvent::Pods(Delta::Deleted(object)));
    }

    /// Takes a turn and says what was bound where; everything else is in `others`.
    fn placed(&mut self) -> Vec<(String, String)> {
        let actions = self.schedule();
        let requests = actions
            .iter()
            .filter_map(|actions| if let Action::Bind(requests) = actions { Some(requests) } else { None });
        requests.flatten().map(|request| (request.pod.name.clone(), request.node.clone())).collect()
    }

    /// Takes a turn and answers every placement in it as the API would.
    fn bind(&mut self) -> Vec<(String, String)> {
        let mut placed = vec![];
        for actions in self.schedule() {
            let requests = match actions {
                Action::Bind(requests) => requests,
                Action::WriteStatus(update) => {
                    self.earlier_updates.push(update);
                    continue;
                }
                _ => continue,
            };
            placed.extend(requests.iter().map(|request| (request.pod.name.clone(), request.node.clone())));
            let results = requests.iter().map(|_| BindResult::Bound { version: self.next() }).collect();
            self.apply(SchedulerEvent::BindFinished { requests, results, claims: vec![], took: Duration::ZERO });
        }
        placed
    }

    fn status_updates(&mut self) -> Vec<(String, String, String)> {
        let actions = self.schedule();
        let mut updates = std::mem::take(&mut self.earlier_updates);
        updates.extend(
            actions
                .into_iter()
                .filter_map(|actions| if let Action::WriteStatus(update) = actions { Some(update) } else { None }),
        );
        for update in &updates {
            self.apply(SchedulerEvent::StatusWritten { update: update.clone(), done: true });
        }
        updates.into_iter().map(|s| (s.pod.name, s.failure.reason.to_owned(), s.failure.message)).collect()
    }

    fn debug(&mut self, request: DebugRequest) -> String {
        match self.state.debug(request, self.now, "2026-01-01T00:00:00Z".parse().unwrap()) {
            DebugReply::Text(text) => text,
            other => panic!("{other:?}"),
        }
    }
}

fn nothing<T>() -> Delta<T> {
    Delta::Replaced { items: vec![], version: 1, round: 0 }
}

fn item<T: serde::de::DeserializeOwned>(object: &Value) -> Item<T> {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let version = text("resourceVersion").parse().unwrap();
    let reference = ObjectRef { namespace: text("namespace"), name: text("name"), uid: text("uid"), version };
    Item { object: reference, view: serde_json::from_value(object.clone()).unwrap() }
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
fn nothing_is_scheduled_before_all_kinds_are_synced() {
    let now = Instant::now();
    let state = SchedulerState::new(Settings::default(), Metrics::default(), now);
    let mut scheduler = TestScheduler { state, now, version: 1, earlier_updates: vec![] };
    scheduler.node("m", json!({}), json!({}));
    scheduler.offer("m", "4");
    scheduler.pod("p", json!({}));
    assert_eq!(scheduler.schedule(), [], "other pods may be on that node");
    let next = scheduler.state.next_deadline(scheduler.now);
    assert!(next.is_none_or(|at| at > scheduler.now), "it waits for the lists and does not spin");
    for event in [
        SchedulerEvent::Budgets(nothing()),
        SchedulerEvent::Claims(nothing()),
        SchedulerEvent::Volumes(nothing()),
        SchedulerEvent::StorageClasses(nothing()),
    ] {
        scheduler.apply(event);
    }
    scheduler.apply(SchedulerEvent::Namespaces(nothing()));
    assert_eq!(scheduler.schedule(), []);
    let node = scheduler.state.cluster.nodes().next().cloned().unwrap();
    let object = ObjectRef { name: "m".to_owned(), ..ObjectRef::default() };
    scheduler.apply(SchedulerEvent::Nodes(Delta::Replaced {
        items: vec![Item { object, view: node }],
        version: 1,
        round: 0,
    }));
    scheduler.apply(SchedulerEvent::Pods(Delta::Replaced { items: vec![], version: 1, round: 0 }));
    assert_eq!(scheduler.placed(), pairs(&[("p", "m")]));
}

#[test]
fn pods_are_bound_in_batches_and_resources_are_given_once() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "2"), ("b", "2")]);
    for n in 0..6 {
        scheduler.pod(&format!("p{n}"), json!({}));
    }
    let placed = scheduler.bind();
    assert_eq!(placed.len(), 4, "{placed:?}");
    assert_eq!(placed.iter().filter(|(_, node)| node == "a").count(), 2);
    let updates = scheduler.status_updates();
    assert_eq!(updates.len(), 2);
    assert!(updates[0].2.starts_with("0/2 nodes are available: 2 Insufficient cpu."), "{updates:?}");
    assert_eq!(scheduler.schedule(), []);
}

#[test]
fn the_watch_event_of_a_binding_does_not_count_twice() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "2")]);
    scheduler.pod("p", json!({}));
    scheduler.bind();
    scheduler.pod_with("p", json!({}), json!({ "nodeName": "a" }), json!({}));
    scheduler.pod_with("p", json!({}), json!({ "nodeName": "a" }), json!({ "phase": "Running" }));
    scheduler.pod("q", json!({}));
    scheduler.pod("r", json!({}));
    assert_eq!(scheduler.bind(), pairs(&[("q", "a")]));
    // The node has seen all of it and says what is left: nothing.
    let observed = scheduler.version;
    scheduler.offer_of("a", json!({ "cpu": "0", "memory": "8Gi", "pods": "108" }), observed);
    assert_eq!(scheduler.placed(), []);
    assert_eq!(scheduler.state.cluster.free_resources("a")["cpu"], 0);
}

#[test]
fn events_from_before_a_binding_change_nothing() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "2")]);
    scheduler.pod("p", json!({}));
    let Some(Action::Bind(requests)) = scheduler.schedule().pop() else { panic!() };
    scheduler.pod_with("p", json!({ "labels": { "x": "y" } }), json!({}), json!({})); // labelled just before it was bound
    let version = scheduler.next();
    scheduler.apply(SchedulerEvent::BindFinished {
        requests,
        results: vec![BindResult::Bound { version }],
        claims: vec![],
        took: SECOND,
    });
    assert_eq!(scheduler.schedule(), [], "it is not placed again");
    assert!(scheduler.state.queue.is_empty());
    assert_eq!(scheduler.debug(DebugRequest::Tasks), "task_count=1\nuid-p\tns/p\tplaced\ta\n");
}

#[test]
fn a_bind_names_the_offer_that_was_used() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "2")]);
    let offer: OfferObject = serde_json::from_value(json!({
        "metadata": { "name": "a", "uid": "second" },
        "spec": { "free": { "cpu": "2", "memory": "8Gi", "pods": "110" }, "ttlSeconds": 60, "seen": "0" },
    }))
    .unwrap();
    let object = ObjectRef { name: "a".to_owned(), version: scheduler.next(), ..ObjectRef::default() };
    scheduler.apply(SchedulerEvent::Offers(Delta::Updated(Item { object, view: offer })));
    scheduler.pod("p", json!({}));
    let Some(Action::Bind(requests)) = scheduler.schedule().pop() else { panic!() };
    assert_eq!(requests[0].offer_uid, "second");
}

#[test]
fn refused_and_failed_bindings_are_scheduled_again() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "1")]);
    for result in [
        BindResult::Refused { message: "nodes \"a\" not found".to_owned() },
        BindResult::Failed { message: "no answer".to_owned() },
    ] {
        scheduler.pod("p", json!({}));
        let Some(Action::Bind(requests)) = scheduler.schedule().pop() else { panic!() };
        scheduler.apply(SchedulerEvent::BindFinished { requests, results: vec![result], claims: vec![], took: SECOND });
        assert_eq!(scheduler.placed(), [], "after its back-off");
        scheduler.pass(SECOND);
        scheduler.pass(SECOND);
        assert_eq!(scheduler.bind(), pairs(&[("p", "a")]));
        scheduler.delete_pod("p");
        scheduler.schedule();
    }
}

#[test]
fn a_thousand_unschedulable_pods_wait_until_something_changes() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "1")]);
    for n in 0..1000 {
        scheduler.pod(&format!("p{n}"), cpu("4"));
    }
    let first = scheduler.status_updates().len();
    assert!(first > 0);
    while !scheduler.status_updates().is_empty() {}
    let quiet = scheduler.state.next_deadline(scheduler.now).unwrap();
    assert!(quiet > scheduler.now + SECOND, "only the node's offer and comparisons have their time");
    scheduler.pass(4 * SECOND);
    assert_eq!(scheduler.schedule(), []);
    assert!(scheduler.state.queue.next_deadline(scheduler.now).is_none(), "renewed offers wake nobody");
    scheduler.offer("a", "8");
    assert_eq!(scheduler.bind().len(), 2, "an offer that is large enough wakes them at once");
}

#[test]
fn backoff_is_cut_short_for_pods_with_selectors_too() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "4"), ("b", "4")]);
    let picky = json!({ "nodeSelector": { "disk": "ssd" } });
    for n in 0..20 {
        scheduler.pod(&format!("p{n}"), picky.clone());
    }
    while !scheduler.status_updates().is_empty() {}
    scheduler.node("b", json!({ "disk": "ssd" }), json!({}));
    let placed = scheduler.bind();
    assert_eq!(placed.len(), 4, "at once, as many as fit");
    assert!(placed.iter().all(|(_, node)| node == "b"));
}

#[test]
fn freed_ports_taints_and_cordons_activate_pods_they_help() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "4")]);
    let port = json!({ "containers": [{ "name": "c", "ports": [{ "containerPort": 80, "hostPort": 80 }] }] });
    scheduler.pod("first", port.clone());
    assert_eq!(scheduler.bind().len(), 1);
    scheduler.pod("second", port);
    assert!(scheduler.status_updates()[0].2.contains("host port 80 on a is taken by ns/first"), "the reason is told");
    scheduler.delete_pod("first");
    assert_eq!(scheduler.bind(), pairs(&[("second", "a")]));
    scheduler.node("a", json!({}), json!({ "unschedulable": true }));
    scheduler.pod("third", json!({}));
    assert!(scheduler.status_updates()[0].2.starts_with("0/1 nodes are available: 1 node(s) were unschedulable."));
    scheduler.node("a", json!({}), json!({}));
    assert_eq!(scheduler.bind(), pairs(&[("third", "a")]));
}

#[test]
fn a_pod_with_affinity_is_scheduled_when_the_other_pod_is() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "4"), ("b", "4")]);
    for name in ["a", "b"] {
        scheduler.node(name, json!({ "kubernetes.io/hostname": name }), json!({}));
    }
    scheduler.schedule();
    let near = json!({ "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
        { "labelSelector": { "matchLabels": { "app": "db" } }, "topologyKey": "kubernetes.io/hostname" },
    ] } } });
    scheduler.pod("web", near);
    assert!(scheduler.status_updates()[0].2.contains("didn't match pod affinity rules"));
    scheduler.pod("other", json!({}));
    assert_eq!(scheduler.bind().len(), 1, "only the other");
    scheduler.pod_with("db", json!({ "labels": { "app": "db" } }), json!({}), json!({}));
    let placed = scheduler.bind();
    let node = |pod: &str| placed.iter().find(|(name, _)| name == pod).map(|(_, node)| node.clone());
    assert!(node("db").is_some());
    assert_eq!(node("db"), node("web"), "{placed:?}");
}

#[test]
fn a_silent_node_gets_no_pods_and_its_offer_is_deleted() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "4")]);
    scheduler.now += 5 * SECOND;
    let version = scheduler.state.offer_versions["a"];
    scheduler.pod("p", json!({}));
    let actions = scheduler.schedule();
    assert_eq!(actions[0], Action::DeleteOffer { node: "a".to_owned(), version });
    let Action::WriteStatus(update) = &actions[1] else { panic!("{actions:?}") };
    assert!(update.failure.message.contains("node(s) were not offering"), "{update:?}");
    scheduler.offer("a", "4");
    assert_eq!(scheduler.bind(), pairs(&[("p", "a")]));
}

#[test]
fn heartbeats_renew_the_offer_that_they_name_and_no_other() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "4")]);
    let offer = scheduler.state.offer_versions["a"];
    scheduler.now += 3 * SECOND;
    scheduler.lease("a", Some(offer));
    scheduler.now += 4 * SECOND;
    scheduler.pod("p", json!({}));
    assert_eq!(scheduler.bind(), pairs(&[("p", "a")]), "7 s after it was written, 4 s after it was renewed");

    // Neither a list that repeats the Lease renews it, nor Leases that name another version or none.
    let lease = json!({
        "metadata": {
            "name": "a", "resourceVersion": scheduler.version.to_string(),
            "annotations": { "mainstay.dev/renewed-offer": offer.to_string() },
        },
    });
    scheduler.state.lease_versions.insert("a".to_owned(), scheduler.version);
    let items = vec![item(&lease)];
    scheduler.apply(SchedulerEvent::Leases(Delta::Replaced { items, version: 0, round: 0 }));
    scheduler.lease("a", Some(offer - 1));
    scheduler.lease("a", None);
    scheduler.now += SECOND;
    let actions = scheduler.schedule();
    assert!(actions.contains(&Action::DeleteOffer { node: "a".to_owned(), version: offer }), "{actions:?}");
}

#[test]
fn a_refused_pod_is_scheduled_elsewhere_or_again_after_a_while() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "4")]);
    scheduler.pod("p", json!({}));
    scheduler.bind();
    scheduler.pod_with("p", json!({}), json!({ "nodeName": "a" }), json!({}));
    let refused = json!({ "conditions": [
        { "type": "PodScheduled", "status": "False", "reason": "Refused", "message": "node a refused: no room" },
    ] });
    scheduler.pod_with("p", json!({ "annotations": { "mainstay.dev/refused-by": "a" } }), json!({}), refused);
    assert!(scheduler.status_updates()[0].2.contains("node(s) refused the pod"));
    scheduler.pass(4 * SECOND);
    assert_eq!(scheduler.placed(), []);
    scheduler.pass(SECOND);
    assert_eq!(scheduler.bind(), pairs(&[("p", "a")]), "asked again");
}

#[test]
fn a_pod_of_higher_priority_preempts_and_waits_for_the_victims() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "1")]);
    scheduler.pod("low", json!({}));
    scheduler.bind();
    scheduler.pod_with("low", json!({}), json!({ "nodeName": "a" }), json!({ "phase": "Running" }));
    scheduler.pod("high", json!({ "priority": 10 }));
    let actions = scheduler.schedule();
    let Some(Action::Preempt(preemption)) = actions.iter().find(|actions| matches!(actions, Action::Preempt(_))) else {
        panic!("{actions:?}")
    };
    assert_eq!(preemption.victims, [(PodKey::new("ns", "low"), "uid-low".to_owned())]);
    assert_eq!((preemption.pod.name.as_str(), preemption.node.as_str()), ("high", "a"));
    scheduler.apply(SchedulerEvent::PreemptionFinished { preemption: preemption.clone(), done: true });
    scheduler.pod_with(
        "low",
        json!({ "deletionTimestamp": "2026-01-01T00:00:30Z" }),
        json!({ "nodeName": "a" }),
        json!({}),
    );
    assert!(
        !scheduler.schedule().iter().any(|actions| matches!(actions, Action::Preempt(_) | Action::Bind(_))),
        "nobody is asked twice"
    );
    scheduler.delete_pod("low");
    assert_eq!(scheduler.bind(), pairs(&[("high", "a")]));
}

#[test]
fn gated_foreign_and_terminating_pods_are_not_scheduled() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "4")]);
    scheduler.pod("gated", json!({ "schedulingGates": [{ "name": "wait" }] }));
    scheduler.pod("foreign", json!({ "schedulerName": "other" }));
    scheduler.pod_with("leaving", json!({ "deletionTimestamp": "2026-01-01T00:00:30Z" }), json!({}), json!({}));
    let updates = scheduler.status_updates();
    let gated = "Scheduling is blocked due to non-empty scheduling gates";
    assert_eq!(updates, [("gated".to_owned(), "SchedulingGated".to_owned(), gated.to_owned())]);
    scheduler.pod("gated", json!({}));
    assert_eq!(scheduler.bind(), pairs(&[("gated", "a")]));
}

#[test]
fn an_unknown_port_mapping_is_warned_of_and_treated_as_the_default() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "4")]);
    let labels = json!({ "labels": { "k8s.mesosphere.io/portMapping": "sideways" } });
    let ports = json!({ "containers": [{ "name": "c", "ports": [{ "containerPort": 80 }] }] });
    scheduler.pod_with("p", labels, ports, json!({}));
    let actions = scheduler.schedule();
    let [Action::RecordEvent(note), Action::Bind(requests)] = &actions[..] else { panic!("{actions:?}") };
    assert!(note.note.message.contains("\"sideways\" is neither"), "{note:?}");
    assert!(requests[0].annotations.is_empty());
}

#[test]
fn a_pending_pod_that_is_deleted_leaves_the_queue_at_once() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "1")]);
    scheduler.pod("p", cpu("4"));
    scheduler.status_updates();
    scheduler.delete_pod("p");
    assert!(
        scheduler.state.queue.is_empty() && scheduler.state.class_samples.is_empty() && scheduler.state.pods.is_empty()
    );
    scheduler.offer("a", "8");
    assert_eq!(scheduler.schedule(), []);
}

#[test]
fn claims_must_exist_and_their_volumes_restrict_nodes() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "4"), ("b", "4")]);
    scheduler.pod("p", json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }] }));
    assert!(scheduler.status_updates()[0].2.contains("persistentvolumeclaim \"c\" not found"));
    let volume = json!({
        "metadata": { "name": "pv", "resourceVersion": "7" },
        "spec": { "nodeAffinity": { "required": { "nodeSelectorTerms": [
            { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["b"] }] },
        ] } } },
    });
    scheduler.apply(SchedulerEvent::Volumes(Delta::Updated(item(&volume))));
    let claim = json!({
        "metadata": { "name": "c", "namespace": "ns", "resourceVersion": "8" },
        "spec": { "volumeName": "pv" }, "status": { "phase": "Bound" },
    });
    scheduler.apply(SchedulerEvent::Claims(Delta::Updated(item(&claim))));
    assert_eq!(scheduler.bind(), pairs(&[("p", "b")]));
}

#[test]
fn a_reconciliation_on_demand_finds_missed_events() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "1")]);
    scheduler.pod("kept", json!({}));
    scheduler.bind();
    scheduler.pod("big", cpu("4"));
    scheduler.status_updates();
    scheduler.state.request_reconcile(ReconcileKind::Explicit, scheduler.now);
    scheduler.state.request_reconcile(ReconcileKind::Explicit, scheduler.now);
    assert_eq!(scheduler.schedule(), [Action::Relist { round: 1 }], "one for both");
    // In truth both pods are gone and the node is larger: the watch missed all of it.
    let all = |round| Delta::Replaced { items: vec![], version: 1_000_000, round };
    scheduler.apply(SchedulerEvent::Pods(all(1)));
    assert_eq!(scheduler.debug(DebugRequest::PodStore), "");
    assert_eq!(scheduler.state.cluster.pods_on("a").count(), 0);
}

#[test]
fn debug_shows_the_queue_and_the_pods_on_nodes() {
    let mut scheduler = TestScheduler::with_nodes(&[("a", "1")]);
    scheduler.pod("placed", json!({}));
    scheduler.bind();
    scheduler.pod("waits", cpu("4"));
    scheduler.status_updates();
    let queue = scheduler.debug(DebugRequest::PodQueue);
    assert!(queue.starts_with("ns/waits\t-\t0."), "{queue}");
    assert_eq!(
        scheduler.debug(DebugRequest::PodStore),
        "ns/placed\ta\tplaced\tuid-placed\nns/waits\t-\twaiting\tuid-waits\n"
    );
    assert_eq!(scheduler.debug(DebugRequest::Kamikaze), "a\nOK\n");
    let actions = scheduler.schedule();
    assert!(matches!(&actions[..], [Action::DeleteOffer { node, .. }, ..] if node == "a"), "{actions:?}");
    scheduler.pod("late", json!({}));
    assert_eq!(scheduler.placed(), [], "it has to offer itself again first");
    scheduler.offer("a", "8");
    assert_eq!(scheduler.placed().len(), 2);
}

/// A node with a device that has to be attached, and a claim for it.
fn with_remote_device() -> TestScheduler {
    let mut scheduler = TestScheduler::with_nodes(&[("n1", "4")]);
    let pool = json!({ "name": "n1", "generation": 1, "resourceSliceCount": 1 });
    let devices = json!([{ "name": "far", "bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"] }]);
    let slice = json!({ "metadata": { "name": "s", "resourceVersion": "2" },
                        "spec": { "driver": "d", "nodeName": "n1", "pool": pool, "devices": devices } });
    let class = json!({ "metadata": { "name": "gpu", "resourceVersion": "2" }, "spec": { "extendedResourceName": "example.com/gpu" } });
    let one = |items| Delta::Replaced { items, version: 2, round: 0 };
    scheduler.apply(SchedulerEvent::ResourceClaims(nothing()));
    scheduler.apply(SchedulerEvent::DeviceTaintRules(nothing()));
    scheduler.apply(SchedulerEvent::ResourceSlices(Delta::Replaced {
        items: vec![item(&slice)],
        version: 2,
        round: 0,
    }));
    scheduler.apply(SchedulerEvent::DeviceClasses(one(vec![item(&class)])));
    scheduler
}

impl TestScheduler {
    /// The claim `x` as the API has it after it was reserved, with these conditions of its device.
    fn written_claim(&mut self, request: &BindRequest, conditions: &[(&str, &str)]) -> WrittenClaim {
        let version = self.next();
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(kind, status)| {
                json!({ "type": kind, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" })
            })
            .collect();
        let binding = &request.claims[0];
        let claim = json!({
            "metadata": { "name": binding.claim.name, "namespace": "ns", "uid": "x-uid", "resourceVersion": version.to_string() },
            "spec": { "devices": { "requests": [{ "name": "r", "exactly": { "deviceClassName": "gpu" } }] } },
            "status": {
                "allocation": &*binding.allocation,
                "reservedFor": [{ "resource": "pods", "name": request.pod.name, "uid": request.uid }],
                "devices": [{ "driver": "d", "pool": "n1", "device": "far", "conditions": conditions }],
            },
        });
        WrittenClaim { key: binding.claim.clone(), view: serde_json::from_value(claim).unwrap() }
    }

    /// Schedules a pod with the claim `x`, which is then reserved and waits for its device.
    fn wait_for_device(&mut self) -> BindRequest {
        let claim = json!({
            "metadata": { "name": "x", "namespace": "ns", "uid": "x-uid", "resourceVersion": "3" },
            "spec": { "devices": { "requests": [{ "name": "r", "exactly": { "deviceClassName": "gpu" } }] } },
        });
        self.apply(SchedulerEvent::ResourceClaims(Delta::Updated(item(&claim))));
        self.pod("p", json!({ "resourceClaims": [{ "name": "own", "resourceClaimName": "x" }] }));
        let actions = self.schedule();
        let [Action::Bind(requests)] = &actions[..] else { panic!("{actions:?}") };
        let request = requests[0].clone();
        let (claim, results) =
            (self.written_claim(&request, &[]), vec![BindResult::Waiting { allocated_for: 10 * SECOND }]);
        let requests = requests.clone();
        self.apply(SchedulerEvent::BindFinished { requests, results, claims: vec![claim], took: Duration::ZERO });
        request
    }

    fn update_claim(&mut self, request: &BindRequest, conditions: &[(&str, &str)]) {
        let WrittenClaim { key, view } = self.written_claim(request, conditions);
        let object =
            ObjectRef { namespace: key.namespace, name: key.name, uid: "x-uid".to_owned(), version: view.version };
        self.apply(SchedulerEvent::ResourceClaims(Delta::Updated(Item { object, view })));
    }
}

#[test]
fn a_pod_is_bound_when_its_device_is_ready() {
    let mut scheduler = with_remote_device();
    let request = scheduler.wait_for_device();
    let actions = scheduler.schedule();
    let events = actions.iter().filter(
        |action| matches!(action, Action::RecordEvent(event) if event.note.reason == "BindingConditionsPending"),
    );
    assert_eq!(events.count(), 1, "{actions:?}");
    assert_eq!(scheduler.placed(), [], "it waits");
    scheduler.update_claim(&request, &[("Attached", "False")]);
    assert_eq!(scheduler.placed(), []);
    scheduler.update_claim(&request, &[("Attached", "True")]);
    assert_eq!(scheduler.bind(), pairs(&[("p", "n1")]));
    assert_eq!(scheduler.placed(), [], "once");
}

#[test]
fn a_device_that_failed_or_came_too_late_is_given_back_and_the_pod_scheduled_again() {
    for fails in [true, false] {
        let mut scheduler = with_remote_device();
        let request = scheduler.wait_for_device();
        scheduler.schedule();
        if fails {
            scheduler.update_claim(&request, &[("Attached", "True"), ("Broken", "True")]);
        } else {
            assert!(scheduler.state.next_deadline(scheduler.now).is_some_and(|at| at <= scheduler.now + 590 * SECOND));
            scheduler.pass(589 * SECOND);
            assert!(!scheduler.schedule().iter().any(|action| matches!(action, Action::Deallocate { .. })), "not yet");
            scheduler.pass(2 * SECOND);
        }
        let actions = scheduler.schedule();
        let given_back: Vec<_> = actions
            .iter()
            .filter_map(|action| {
                if let Action::Deallocate { claim, pod_uid, .. } = action {
                    Some((claim.name.as_str(), pod_uid.as_str()))
                } else {
                    None
                }
            })
            .collect();
        assert_eq!(given_back, [("x", "uid-p")], "{actions:?}");
        let version = scheduler.next();
        let free = json!({ "metadata": { "uid": "x-uid", "resourceVersion": version.to_string() },
                           "spec": { "devices": { "requests": [{ "name": "r", "exactly": { "deviceClassName": "gpu" } }] } } });
        let claim = WrittenClaim { key: ClaimKey::new("ns", "x"), view: serde_json::from_value(free).unwrap() };
        scheduler.apply(SchedulerEvent::Deallocated { claim });
        scheduler.pass(2 * SECOND);
        assert_eq!(scheduler.bind(), pairs(&[("p", "n1")]), "it is scheduled again");
    }
}

#[test]
fn a_pod_that_waits_for_its_device_and_is_deleted_is_forgotten() {
    let mut scheduler = with_remote_device();
    let request = scheduler.wait_for_device();
    scheduler.delete_pod("p");
    scheduler.update_claim(&request, &[("Attached", "True")]);
    assert_eq!(scheduler.placed(), []);
    assert!(scheduler.state.waiting_bindings.is_empty());
}

#[test]
fn extended_resources_become_claims_where_a_class_has_their_name_and_no_node_has_them() {
    let mut scheduler = with_remote_device();
    let container = json!({ "name": "c", "resources": { "requests": { "cpu": "1", "example.com/gpu": "1" } } });
    scheduler.pod("p", json!({ "containers": [container] }));
    let actions = scheduler.schedule();
    let Some(Action::Bind(requests)) = actions.iter().find(|action| matches!(action, Action::Bind(_))) else {
        panic!("{actions:?}")
    };
    let binding = &requests[0].claims[0];
    let extended = binding.extended.as_ref().expect("a claim of its own");
    assert!(binding.claim.name.starts_with("p-extended-resources-") && binding.uid.is_empty());
    assert_eq!(extended.mappings[0].request_name, "container-0-request-1");

    // A class that comes later makes a pod schedulable.
    let container = json!({ "name": "c", "resources": { "requests": { "example.com/tpu": "1" } } });
    let mut scheduler = with_remote_device();
    scheduler.pod("q", json!({ "containers": [container] }));
    assert_eq!(scheduler.placed(), []);
    let class = json!({ "metadata": { "name": "tpu", "resourceVersion": "9" }, "spec": { "extendedResourceName": "example.com/tpu" } });
    scheduler.apply(SchedulerEvent::DeviceClasses(Delta::Updated(item(&class))));
    assert_eq!(scheduler.placed(), pairs(&[("q", "n1")]));

    // What a node has itself is asked of nodes, unless a claim was made before.
    let mut scheduler = with_remote_device();
    let allocatable = json!({ "cpu": "8", "memory": "8Gi", "pods": "110", "example.com/gpu": "1" });
    let version = scheduler.next();
    let node = json!({
        "metadata": { "name": "n1", "resourceVersion": version.to_string() },
        "status": { "allocatable": allocatable, "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    scheduler.apply(SchedulerEvent::Nodes(Delta::Updated(item(&node))));
    let observed = scheduler.version;
    scheduler.offer_of("n1", allocatable, observed);
    let container = json!({ "name": "c", "resources": { "requests": { "example.com/gpu": "1" } } });
    let mapping =
        json!({ "containerName": "c", "resourceName": "example.com/gpu", "requestName": "container-0-request-0" });
    let claimed = json!({ "extendedResourceClaimStatus": { "resourceClaimName": "x", "requestMappings": [mapping] } });
    scheduler.pod("fresh", json!({ "containers": [container] }));
    scheduler.pod_with("claimed", json!({}), json!({ "containers": [container] }), claimed);
    let actions = scheduler.schedule();
    let requests =
        actions.iter().filter_map(|action| if let Action::Bind(requests) = action { Some(requests) } else { None });
    let mut claims: Vec<_> = requests.flatten().map(|own| (own.pod.name.as_str(), own.claims.len())).collect();
    claims.sort_unstable();
    assert_eq!(claims, [("claimed", 1), ("fresh", 0)]);
}
