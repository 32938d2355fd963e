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
