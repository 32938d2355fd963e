//! Healers of several machines over one API, all in this process.

use k8s_openapi::{
    api::{apps::v1::ReplicaSet, coordination::v1::Lease, policy::v1::PodDisruptionBudget},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Resource,
    api::{ListParams, PostParams},
};
use mainstay_api::registry::Registry;
use mainstay_server::{api, client, handler::Handler, settings::Settings};
use mainstay_store::Memory;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{events::Said, pods::Source, wake::Wake};

struct Machine {
    healer: Healer,
    said: mpsc::Receiver<Said>,
    pods: Arc<Pods>,
    _directory: TempDir,
}

fn machine(client: Option<Client>) -> Machine {
    machine_at(client, tempfile::tempdir().unwrap())
}

fn machine_at(client: Option<Client>, directory: TempDir) -> Machine {
    let (events, said) = Events::channel();
    let pods = Arc::new(Pods::new(Wake::default()));
    let policies = Arc::new(Policies::new(client.clone()));
    let healer = Healer::new(client, policies, pods.clone(), events, directory.path().to_owned(), Metrics::default());
    Machine { healer, said, pods, _directory: directory }
}

impl Machine {
    fn events(&mut self) -> Vec<&'static str> {
        std::iter::from_fn(|| self.said.try_recv().ok()).map(|said| said.reason).collect()
    }
}

async fn api() -> Client {
    let api = api::Api::new(Registry::builtin(), Arc::new(Memory::new()), Settings::default());
    let handler = Arc::new(Handler::new(api, CancellationToken::new()));
    let client = client::internal(handler, "test");
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
    client
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
    let asked = pods.iter().enumerate().map(|(n, pod)| machines[n % machines.len()].healer.may_kill(pod, "c", 0));
    futures::future::join_all(asked).await.into_iter().filter(|leave| *leave == Leave::Granted).count()
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
        if machines[n % 5].healer.may_kill(pod, "c", 0).await == Leave::Granted {
            held = Some((n, pod));
            break;
        }
    }
    let (n, healed) = held.unwrap();
    machines[n % 5].healer.healthy(healed).await;
    assert_eq!(leases(&client).await, 12, "it still looks well, but has not been restarted yet");
    let unhealthy = Cause::Unhealthy { why: "no answer".into() };
    assert_eq!(machines[n % 5].healer.failed(healed, "c", 0, &unhealthy).await, Rung::Restart);
    assert_eq!(leases(&client).await, 12);
    machines[n % 5].healer.healthy(healed).await;
    assert_eq!(leases(&client).await, 11);
    let others: Vec<_> = pods.iter().filter(|pod| pod.metadata.uid != healed.metadata.uid).cloned().collect();
    let mut total = 0;
    for pod in &others {
        let n: usize = pod.metadata.name.as_ref().unwrap()[4..].parse().unwrap();
        total += usize::from(machines[n % 5].healer.may_kill(pod, "c", 0).await == Leave::Granted);
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
    assert_eq!(one.healer.may_kill(&pod(0, Some(&owner)), "c", 0).await, Leave::Granted);
    let kept = other.healer.may_kill(&pod(1, Some(&owner)), "c", 0).await;
    let why = "1 pods of ReplicaSet web are being restarted already, and its restart budget is 1".to_owned();
    assert_eq!(kept, Leave::Kept { why });
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while other.healer.may_kill(&pod(1, Some(&owner)), "c", 0).await != Leave::Granted {
        assert!(tokio::time::Instant::now() < deadline, "the place was never given on");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    one.healer.failed(&pod(0, Some(&owner)), "c", 0, &Cause::Unhealthy { why: "no answer".into() }).await;
    one.healer.healthy(&pod(0, Some(&owner))).await;
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
        machine.pods.put(Source::Api, pod.clone());
    }
    assert_eq!(granted(std::slice::from_ref(&machine), &pods).await, 2);
    machine.healer.forget(&PodUid("pod-0".into()));
    assert_eq!(granted(std::slice::from_ref(&machine), &pods[1..]).await, 2);
}

#[tokio::test]
async fn each_failure_is_judged_once_and_an_agent_that_returns_goes_on_from_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let mut first = machine_at(None, directory);
    let pod = pod(0, None);
    let crash = Cause::Crashed { exit_code: 1 };
    for attempt in 0..5 {
        assert_eq!(first.healer.failed(&pod, "c", attempt, &crash).await, Rung::Restart);
        assert_eq!(first.healer.failed(&pod, "c", attempt, &crash).await, Rung::Restart, "said again");
    }
    assert_eq!(first.events(), ["HealRestart"; 5]);
    assert_eq!(first.healer.failed(&pod, "c", 5, &Cause::Crashed { exit_code: 0 }).await, Rung::Restart);

    let (events, _said) = Events::channel();
    let policies = Arc::new(Policies::new(None));
    let second = Healer::new(None, policies, first.pods.clone(), events, path.clone(), Metrics::default());
    assert!(matches!(second.failed(&pod, "c", 6, &crash).await, Rung::Recreate { .. }));
    assert!(matches!(second.failed(&pod, "c", 6, &crash).await, Rung::Recreate { .. }));
    second.forget(&PodUid("pod-0".into()));
    assert!(!path.join("pods/pod-0/heal.json").exists());
}

#[tokio::test]
async fn liveness_restarts_are_counted_by_owner() {
    let machine = machine(None);
    let unhealthy = Cause::Unhealthy { why: "HTTP probe failed with statuscode: 500".into() };
    for attempt in 0..3 {
        machine.healer.failed(&pod(1, None), "c", attempt, &unhealthy).await;
    }
    machine.healer.failed(&pod(2, None), "c", 0, &Cause::OutOfMemory).await;
    let of = |owner: &str| Owner { namespace: "default".to_owned(), owner: owner.to_owned() };
    let counted = |owner: &str| machine.healer.metrics.liveness_restarts.get_or_create(&of(owner)).get();
    assert_eq!((counted("Pod web-1"), counted("Pod web-2")), (3, 0));
}
