//! Healers of several machines over one API, all in this process.

use k8s_openapi::{
    api::{apps::v1::ReplicaSet, coordination::v1::Lease, policy::v1::PodDisruptionBudget},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Resource,
    api::{ListParams, PostParams},
};
use mainstay_events::EventWriter;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::{pods::Source, testing, wake::Wake};

struct Machine {
    healer: Healer,
    recorded: EventWriter,
    pods: Arc<Pods>,
    _directory: TempDir,
}

fn machine(client: Option<Client>) -> Machine {
    machine_at(client, tempfile::tempdir().unwrap())
}

fn machine_at(client: Option<Client>, directory: TempDir) -> Machine {
    let (events, recorded) = Events::new("m1");
    let pods = Arc::new(Pods::new(Wake::default()));
    let healer = healer(client, pods.clone(), events, directory.path().to_owned());
    Machine { healer, recorded, pods, _directory: directory }
}

fn healer(client: Option<Client>, pods: Arc<Pods>, events: Events, directory: PathBuf) -> Healer {
    let tasks = TaskScope::default();
    let policies = OwnerPolicies::new(client.clone(), tasks.clone());
    Healer::new(client, policies, pods, events, directory, Metrics::default(), tasks)
}

impl Machine {
    fn events(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.recorded.try_next()).map(|event| event.note.reason.into_owned()).collect()
    }
}

/// Requests a restart and returns the outcome, as the planner would see it.
async fn request(healer: &Healer, pod: &Pod) -> RestartPermission {
    healer.request_restart(pod).await;
    healer.observe(pod, Timestamp::now()).permission
}

/// Decides about a failure as the planner does, and writes it down.
fn fail(healer: &Healer, pod: &Pod, attempt: u32, cause: &Cause) -> Rung {
    let now = Timestamp::now();
    let HealingObservation { policy, may_move, record, .. } = healer.observe(pod, now);
    let mut history = record.history;
    history.settle(&policy, now);
    let step = assess_failure(&policy, &history, may_move, "c", cause, now);
    history.record(&step.rung, now);
    let rung = step.rung.clone();
    let diagnosis = Diagnosis::Failed { cause: cause.clone(), step, history, backs_off: false };
    healer.record(pod, &HealingDecision { container: "c".into(), attempt, diagnosis }, now);
    rung
}

async fn api() -> Client {
    testing::api(&["default"]).await
}

async fn set(client: &Client, replicas: u32, annotation: Option<&str>) -> OwnerReference {
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {"name": "web", "annotations": annotation.map(|text| json!({"mainstay.dev/heal": text}))},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "x"}]},
            },
        },
    });
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), "default");
    let made = sets.create(&PostParams::default(), &serde_json::from_value(set).unwrap()).await.unwrap();
    made.controller_owner_ref(&()).unwrap()
}

fn pod(number: usize, owner: Option<&OwnerReference>) -> Pod {
    let pod = json!({
        "metadata": {
            "name": format!("web-{number}"), "namespace": "default", "uid": format!("pod-{number}"),
            "labels": {"app": "web"}, "ownerReferences": owner.map(|owner| vec![owner]),
        },
        "spec": {"containers": [{"name": "c"}]},
    });
    serde_json::from_value(pod).unwrap()
}

async fn granted(machines: &[Machine], pods: &[Pod]) -> usize {
    let asked = pods.iter().enumerate().map(|(n, pod)| request(&machines[n % machines.len()].healer, pod));
    futures::future::join_all(asked).await.into_iter().filter(|answer| *answer == RestartPermission::Granted).count()
}

async fn leases(client: &Client) -> usize {
    Api::<Lease>::namespaced(client.clone(), "default").list(&ListParams::default()).await.unwrap().items.len()
}

#[tokio::test]
async fn fifty_pods_that_fail_together_are_not_all_restarted() {
    let client = api().await;
    let owner = set(&client, 50, None).await;
    let machines: Vec<_> = (0..5).map(|_| machine(Some(client.clone()))).collect();
    let pods: Vec<_> = (0..50).map(|n| pod(n, Some(&owner))).collect();
    // Where so many come at once, some are sent away although there is room, and come again.
    let mut at_once = granted(&machines, &pods).await;
    for _ in 0..20 {
        assert!(at_once <= 12, "{at_once} of 50");
        at_once = granted(&machines, &pods).await;
    }
    assert_eq!(at_once, 12);
    assert_eq!(leases(&client).await, 12);
    assert_eq!(granted(&machines, &pods).await, 12, "those that have leave keep it, others get none");

    // One that is well again makes room for one other.
    let mut held = None;
    for (n, pod) in pods.iter().enumerate() {
        if request(&machines[n % 5].healer, pod).await == RestartPermission::Granted {
            held = Some((n, pod));
            break;
        }
    }
    let (n, healed) = held.unwrap();
    machines[n % 5].healer.record_healthy(healed, Timestamp::now());
    assert_eq!(leases(&client).await, 12, "it still looks well, but has not been restarted yet");
    let unhealthy = Cause::Unhealthy { why: "no answer".into() };
    assert_eq!(fail(&machines[n % 5].healer, healed, 0, &unhealthy), Rung::Restart);
    assert_eq!(leases(&client).await, 12);
    machines[n % 5].healer.record_healthy(healed, Timestamp::now());
    testing::until("its slot is given back", || async { leases(&client).await == 11 }).await;
    let others: Vec<_> = pods.iter().filter(|pod| pod.metadata.uid != healed.metadata.uid).cloned().collect();
    let mut total = 0;
    for pod in &others {
        let n: usize = pod.metadata.name.as_ref().unwrap()[4..].parse().unwrap();
        total += usize::from(request(&machines[n % 5].healer, pod).await == RestartPermission::Granted);
    }
    assert_eq!(total, 12);
}

#[tokio::test]
async fn the_owners_annotation_and_a_disruption_budget_say_how_many() {
    let client = api().await;
    let owner = set(&client, 10, None).await;
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
        "spec": {"maxUnavailable": 4, "selector": {"matchLabels": {"app": "web"}}},
    });
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), "default");
    budgets.create(&PostParams::default(), &serde_json::from_value(budget).unwrap()).await.unwrap();
    let pods: Vec<_> = (0..10).map(|n| pod(n, Some(&owner))).collect();
    assert_eq!(granted(&[machine(Some(client.clone()))], &pods).await, 4);

    let client = api().await;
    let owner = set(&client, 10, Some("budget=50%")).await;
    let pods: Vec<_> = (0..10).map(|n| pod(n, Some(&owner))).collect();
    assert_eq!(granted(&[machine(Some(client.clone()))], &pods).await, 5);

    let bare: Vec<_> = (0..3).map(|n| pod(n, None)).collect();
    assert_eq!(granted(&[machine(Some(client))], &bare).await, 3, "nobody shares a budget with a bare pod");
}

#[tokio::test]
async fn a_place_whose_time_is_over_goes_to_another() {
    let client = api().await;
    let owner = set(&client, 2, Some("settle=1s")).await;
    let (one, other) = (machine(Some(client.clone())), machine(Some(client.clone())));
    assert_eq!(request(&one.healer, &pod(0, Some(&owner))).await, RestartPermission::Granted);
    let denied = request(&other.healer, &pod(1, Some(&owner))).await;
    let expected = "1 pods of ReplicaSet web are being restarted already, and its restart budget is 1";
    assert!(matches!(&denied, RestartPermission::Denied { reason, .. } if reason == expected), "{denied:?}");
    let second = pod(1, Some(&owner));
    let granted = || async { request(&other.healer, &second).await == RestartPermission::Granted };
    testing::until("the slot is given on", granted).await;
    fail(&one.healer, &pod(0, Some(&owner)), 0, &Cause::Unhealthy { why: "no answer".into() });
    one.healer.record_healthy(&pod(0, Some(&owner)), Timestamp::now());
    assert_eq!(leases(&client).await, 1, "what another has now is not taken away");
}

#[tokio::test]
async fn without_the_api_each_machine_keeps_to_its_share() {
    let owner = OwnerReference {
        kind: "ReplicaSet".into(),
        name: "web".into(),
        uid: "o".into(),
        api_version: "apps/v1".into(),
        controller: Some(true),
        ..Default::default()
    };
    let machine = machine(None);
    let pods: Vec<_> = (0..8).map(|n| pod(n, Some(&owner))).collect();
    for pod in &pods {
        machine.pods.upsert(Source::Api, pod.clone());
    }
    assert_eq!(granted(std::slice::from_ref(&machine), &pods).await, 2);
    machine.healer.forget(&PodUid("pod-0".into()));
    assert_eq!(granted(std::slice::from_ref(&machine), &pods[1..]).await, 2);
}

#[tokio::test]
async fn an_agent_that_was_restarted_goes_on_from_the_same_rung() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let mut first = machine_at(None, directory);
    let pod = pod(0, None);
    let crash = Cause::Crashed { exit_code: 1 };
    for attempt in 0..5 {
        assert_eq!(fail(&first.healer, &pod, attempt, &crash), Rung::Restart);
    }
    assert_eq!(first.events(), ["HealRestart"; 5]);

    let (events, _writer) = Events::new("m1");
    let second = healer(None, first.pods.clone(), events, path.clone());
    let record = second.observe(&pod, Timestamp::now()).record;
    assert_eq!(record.decided.get("c"), Some(&(4, Rung::Restart)));
    assert!(matches!(fail(&second, &pod, 5, &crash), Rung::Recreate { .. }));
    second.forget(&PodUid("pod-0".into()));
    assert!(!path.join("pods/pod-0/heal.json").exists());
}

#[tokio::test(start_paused = true)]
async fn without_answers_of_the_api_observing_does_not_wait_and_a_request_ends_with_this_nodes_share() {
    let (client, severed) = testing::severable(testing::api(&["default"]).await);
    severed.store(true, std::sync::atomic::Ordering::SeqCst);
    let machine = machine(Some(client));
    let owner = OwnerReference {
        kind: "ReplicaSet".into(),
        name: "web".into(),
        uid: "o".into(),
        api_version: "apps/v1".into(),
        controller: Some(true),
        ..Default::default()
    };
    let pod = pod(0, Some(&owner));
    let observed = machine.healer.observe(&pod, Timestamp::now());
    assert_eq!((observed.policy, observed.permission), (Policy::default(), RestartPermission::NotRequested));
    assert_eq!(request(&machine.healer, &pod).await, RestartPermission::Granted);
}

#[tokio::test]
async fn an_owners_policy_is_read_in_the_background_and_then_in_force() {
    let client = api().await;
    let owner = set(&client, 2, Some("restarts=1/1m")).await;
    let machine = machine(Some(client));
    let pod = pod(0, Some(&owner));
    let policy = || machine.healer.observe(&pod, Timestamp::now()).policy;
    assert_eq!(policy(), Policy::default(), "an owner that was not read yet has the stock policy");
    let read = Policy::parse("restarts=1/1m").unwrap();
    testing::until("the owner's policy is in force", || async { policy() == read }).await;
}

#[tokio::test]
async fn liveness_restarts_are_counted_by_owner() {
    let machine = machine(None);
    let unhealthy = Cause::Unhealthy { why: "HTTP probe failed with statuscode: 500".into() };
    for attempt in 0..3 {
        fail(&machine.healer, &pod(1, None), attempt, &unhealthy);
    }
    fail(&machine.healer, &pod(2, None), 0, &Cause::OutOfMemory);
    let of = |owner: &str| Owner { namespace: "default".to_owned(), owner: owner.to_owned() };
    let counted = |owner: &str| machine.healer.metrics.liveness_restarts.get_or_create(&of(owner)).get();
    assert_eq!((counted("Pod web-1"), counted("Pod web-2")), (3, 0));
}

#[tokio::test]
async fn pods_of_a_set_that_was_moved_away_avoid_this_node() {
    let machine = machine(None);
    let owner = OwnerReference {
        kind: "ReplicaSet".into(),
        name: "web".into(),
        uid: "o".into(),
        api_version: "apps/v1".into(),
        controller: Some(true),
        ..Default::default()
    };
    let (failed, replacement) = (pod(0, Some(&owner)), pod(1, Some(&owner)));
    let crash = Cause::Crashed { exit_code: 1 };
    let avoids = |pod: &Pod| machine.healer.reason_to_avoid(pod, Timestamp::now());
    let mut attempt = 0;
    while !matches!(fail(&machine.healer, &failed, attempt, &crash), Rung::Move { .. }) {
        assert_eq!(avoids(&replacement), None);
        attempt += 1;
        assert!(attempt < 100, "it never moves");
    }
    let why = avoids(&replacement).unwrap();
    assert!(why.starts_with("a pod of ReplicaSet web was moved away from this node: container c"), "{why}");
    let other = OwnerReference { uid: "p".into(), ..owner.clone() };
    assert_eq!(avoids(&pod(2, Some(&other))), None, "another set, or another template of the same Deployment");
    let daemon = OwnerReference { kind: "DaemonSet".into(), ..owner };
    assert_eq!(avoids(&pod(3, Some(&daemon))), None);
    assert_eq!(machine.healer.reason_to_avoid(&replacement, Timestamp::now() + AVOID), None, "for a while only");
}
