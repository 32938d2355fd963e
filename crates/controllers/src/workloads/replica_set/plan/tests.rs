use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{names, workloads::replica_set::surplus::Crowd};

fn at_second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// How a pod is, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Unplaced,
    Starting,
    Ready(i64),
    Failed,
    Leaving,
}

fn pod(name: &str, uid: u64, life: Life) -> Arc<Pod> {
    let (node, phase) = match life {
        Life::Unplaced => ("", "Pending"),
        Life::Starting => ("m1", "Pending"),
        Life::Ready(_) | Life::Leaving => ("m1", "Running"),
        Life::Failed => ("m1", "Failed"),
    };
    let conditions = match life {
        Life::Ready(since) => {
            json!([{ "type": "Ready", "status": "True", "lastTransitionTime": at_second(since).to_string() }])
        }
        _ => json!([]),
    };
    let gone = (life == Life::Leaving).then(|| at_second(1).to_string());
    let pod = json!({
        "metadata": {
            "name": name, "uid": format!("{uid:06}"), "labels": { "app": "web" }, "deletionTimestamp": gone,
            "creationTimestamp": at_second(0).to_string(),
        },
        "spec": { "nodeName": node },
        "status": { "phase": phase, "conditions": conditions },
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn world(replicas: usize, pods: Vec<Arc<Pod>>) -> World {
    let taken = |name: &str| pods.iter().any(|pod| pod.name() == name);
    World {
        want: Desired {
            replicas,
            min_ready_seconds: 0,
            template_labels: Labels::parse("app=web").unwrap(),
            generation: 4,
            leaving: false,
            counts_leaving: true,
        },
        new_names: names::unused("web", "u", taken).take(replicas.min(BURST)).collect(),
        pods,
        claims: Vec::new(),
        crowd: Crowd::new(),
        standing: Status::default(),
    }
}

fn some(lives: &[Life]) -> Vec<Arc<Pod>> {
    (0..).zip(lives).map(|(n, life)| pod(&names::numbered("web", "u", n), n, *life)).collect()
}

fn created(plan: &Plan<Step, Status>) -> usize {
    plan.actions.iter().filter(|step| matches!(step, Step::Create { .. })).count()
}

fn deleted(plan: &Plan<Step, Status>) -> Vec<&str> {
    let mut uids = Vec::new();
    for step in &plan.actions {
        if let Step::Delete { uid, .. } = step {
            uids.push(uid.as_str());
        }
    }
    uids
}

#[test]
fn what_ended_or_leaves_is_replaced_and_not_counted() {
    let pods = some(&[Life::Ready(0), Life::Failed, Life::Leaving]);
    let plan = plan(&world(2, pods), at_second(10));
    assert_eq!(plan.actions, [Step::Create { name: names::numbered("web", "u", 3) }]);
    let status = plan.status.unwrap();
    assert_eq!((status.replicas, status.ready_replicas, status.terminating_replicas), (1, 1, Some(1)));
    assert_eq!((status.observed_generation, status.fully_labeled_replicas), (4, 1));
}

#[test]
fn a_surplus_goes_by_rank_and_without_creating() {
    let pods = some(&[Life::Ready(0), Life::Unplaced, Life::Ready(0), Life::Starting]);
    let plan = plan(&world(2, pods), at_second(10));
    assert_eq!((created(&plan), deleted(&plan)), (0, vec!["000001", "000003"]));
}

#[test]
fn ownership_is_settled_before_anything_is_counted() {
    let claim = OwnershipChange::Adopt { name: "x".into(), uid: "x".into(), version: "1".into() };
    let plan = plan(&World { claims: vec![claim.clone()], ..world(3, vec![]) }, at_second(10));
    assert_eq!(plan.actions, [Step::OwnershipChange(claim)]);
}

#[test]
fn one_that_is_being_deleted_only_reports() {
    let mut leaving = world(3, some(&[Life::Ready(0)]));
    leaving.want.leaving = true;
    let plan = plan(&leaving, at_second(10));
    assert!(plan.actions.is_empty());
    assert_eq!(plan.status.unwrap().replicas, 1);
}

#[test]
fn availability_comes_with_time_and_is_waited_for() {
    let mut world = world(2, some(&[Life::Ready(0), Life::Ready(8)]));
    world.want.min_ready_seconds = 5;
    let plan = plan(&world, at_second(10));
    assert!(plan.actions.is_empty());
    let status = plan.status.unwrap();
    assert_eq!((status.ready_replicas, status.available_replicas, plan.requeue_at), (2, 1, Some(at_second(13))));
}

#[test]
fn many_are_made_in_several_turns() {
    let plan = plan(&world(5000, vec![]), at_second(10));
    assert_eq!((created(&plan), plan.requeue_at), (BURST, Some(at_second(10))));
}

#[test]
fn pods_without_all_labels_of_the_template_are_counted_apart() {
    let mut odd = (*pod("web-x", 1, Life::Ready(0))).clone();
    odd.metadata.labels = Some([("app".to_owned(), "other".to_owned())].into());
    let status = plan(&world(1, vec![Arc::new(odd)]), at_second(10)).status.unwrap();
    assert_eq!((status.replicas, status.fully_labeled_replicas), (1, 0));
}

/// Something that happens without us.
#[derive(Clone, Copy, Debug)]
enum Event {
    Reconcile,
    /// What others did becomes known.
    News,
    Place(prop::sample::Index),
    GetReady(prop::sample::Index),
    Fail(prop::sample::Index),
    /// The node says that a pod being deleted is gone.
    Gone(prop::sample::Index),
    DeletedBySomeone(prop::sample::Index),
    Scale(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let index = any::<prop::sample::Index>;
    let event = prop_oneof![
        4 => Just(Event::Reconcile),
        3 => Just(Event::News),
        2 => index().prop_map(Event::Place),
        2 => index().prop_map(Event::GetReady),
        1 => index().prop_map(Event::Fail),
        2 => index().prop_map(Event::Gone),
        1 => index().prop_map(Event::DeletedBySomeone),
        1 => (0..8usize).prop_map(Event::Scale),
    ];
    prop::collection::vec(event, 0..60)
}

/// The API, and what a cache knows of it: our own writes at once, everything else with the next event.
#[derive(Default)]
struct Model {
    there: BTreeMap<String, (u64, Life)>,
    known: BTreeMap<String, (u64, Life)>,
    uids: u64,
    replicas: usize,
    deletes: BTreeMap<u64, u32>,
}

impl Model {
    fn happen(&mut self, at: prop::sample::Index, to: impl Fn(Life) -> Option<Life>) {
        if self.there.is_empty() {
            return;
        }
        let name = at.get(&self.there.keys().cloned().collect::<Vec<_>>()).clone();
        let (uid, life) = self.there[&name];
        match to(life) {
            Some(life) => self.there.insert(name, (uid, life)),
            None => self.there.remove(&name),
        };
    }

    fn plan(&self, now: i64) -> Plan<Step, Status> {
        let pods = self.known.iter().map(|(name, (uid, life))| pod(name, *uid, *life)).collect();
        plan(&world(self.replicas, pods), at_second(now))
    }

    /// Returns whether there was anything to do.
    fn reconcile(&mut self, now: i64) -> Result<bool, TestCaseError> {
        let plan = self.plan(now);
        prop_assert!(created(&plan) == 0 || deleted(&plan).is_empty(), "creates and trims at once");
        let acted = !plan.actions.is_empty();
        for step in plan.actions {
            match step {
                Step::OwnershipChange(_) => {}
                Step::Create { name } => {
                    if self.there.contains_key(&name) {
                        break; // refused: someone has it whom we do not know yet
                    }
                    self.uids += 1;
                    self.there.insert(name.clone(), (self.uids, Life::Unplaced));
                    self.known.insert(name, (self.uids, Life::Unplaced));
                }
                Step::Delete { name, uid } => {
                    let uid: u64 = uid.parse().unwrap();
                    *self.deletes.entry(uid).or_default() += 1;
                    match self.there.get(&name).copied() {
                        Some((there, _)) if there != uid => break, // refused
                        Some((_, Life::Ready(_) | Life::Starting)) => {
                            self.there.insert(name.clone(), (uid, Life::Leaving));
                            self.known.insert(name, (uid, Life::Leaving));
                        }
                        Some((_, Life::Leaving)) => {
                            self.known.insert(name, (uid, Life::Leaving));
                        }
                        Some((_, Life::Unplaced | Life::Failed)) | None => {
                            self.there.remove(&name);
                            self.known.remove(&name);
                        }
                    }
                }
            }
        }
        Ok(acted)
    }
}

#[test]
fn a_pod_that_is_about_to_be_evicted_has_its_replacement_beside_it_for_a_while() {
    let mut pods = some(&[Life::Ready(1), Life::Ready(1)]);
    let marked = Arc::make_mut(&mut pods[0]);
    marked.metadata.annotations.get_or_insert_default().insert(REPLACE_FIRST.to_owned(), at_second(100).to_string());
    let mut two = world(2, pods.clone());
    two.new_names = names::unused("web", "u", |name| pods.iter().any(|pod| pod.name() == name)).take(2).collect();
    let made = plan(&two, at_second(10));
    assert_eq!((created(&made), deleted(&made).len(), made.requeue_at), (1, 0, Some(at_second(100))));
    pods.push(pod("web-new", 9, Life::Ready(20)));
    let rests = plan(&world(2, pods.clone()), at_second(30));
    assert_eq!((created(&rests), deleted(&rests).len()), (0, 0), "until it is evicted");
    let expired = plan(&world(2, pods.clone()), at_second(100));
    assert_eq!((created(&expired), deleted(&expired).len()), (0, 1), "who drained has not come back");
    let none = plan(&world(0, pods), at_second(30));
    assert_eq!(deleted(&none).len(), 3, "nothing is wanted");
}

proptest! {
    #[test]
    fn it_converges_and_rests_whatever_happens(events in events()) {
        let mut model = Model { replicas: 3, ..Model::default() };
        for (now, event) in (10..).zip(events) {
            match event {
                Event::Reconcile => { model.reconcile(now)?; }
                Event::News => model.known = model.there.clone(),
                Event::Place(at) => model.happen(at, |life| Some(if life == Life::Unplaced { Life::Starting } else { life })),
                Event::GetReady(at) => {
                    model.happen(at, |life| Some(if life == Life::Starting { Life::Ready(now) } else { life }));
                }
                Event::Fail(at) => model.happen(at, |life| Some(if life == Life::Leaving { life } else { Life::Failed })),
                Event::Gone(at) => model.happen(at, |life| Some(life).filter(|life| *life != Life::Leaving)),
                Event::DeletedBySomeone(at) => model.happen(at, |_| Some(Life::Leaving)),
                Event::Scale(replicas) => model.replicas = replicas,
            }
            let active = |pods: &BTreeMap<String, (u64, Life)>| {
                pods.values().filter(|(_, life)| !matches!(life, Life::Leaving | Life::Failed)).count()
            };
            prop_assert!(active(&model.there) <= 8, "more than ever wanted");
        }
        model.known = model.there.clone();
        let mut reconciles = 0;
        while model.reconcile(100)? {
            reconciles += 1;
            prop_assert!(reconciles < 5, "does not come to rest");
        }
        let alive = model.there.values().filter(|(_, life)| !matches!(life, Life::Leaving | Life::Failed)).count();
        prop_assert_eq!(alive, model.replicas);
        for (uid, times) in &model.deletes {
            prop_assert_eq!(*times, 1, "{} was deleted more than once", uid);
        }
    }

    /// Two who look at the same gap, each with a view of its own, fill it once.
    #[test]
    fn two_writers_do_not_make_twice_as_many(replicas in 0..20usize, mine in 0..20usize) {
        let mut model = Model { replicas, ..Model::default() };
        let other = model.plan(10);
        let plan = model.plan(10);
        for step in plan.actions.into_iter().take(mine).chain(other.actions) {
            let Step::Create { name } = step else { panic!("nothing else is to do") };
            model.there.entry(name).or_insert((0, Life::Unplaced));
        }
        prop_assert_eq!(model.there.len(), replicas);
    }
}
