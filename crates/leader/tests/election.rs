//! Several candidates for one Lease, on an API in the test's process.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, api::PostParams};
use mainstay_leader::{LeaderElectionConfig, run_while_leading};
use mainstay_testing::{TestApi, until};
use parking_lot::Mutex;
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

const TIMEOUT: Duration = Duration::from_secs(20);

async fn start_api() -> (Client, CancellationToken) {
    let api = TestApi::start(&["kube-system"]).await;
    (api.client("test"), api.stop)
}

#[derive(Debug, Default)]
struct Leaders {
    current: Vec<String>,
    all: Vec<String>,
}

/// A task that notes who runs it, and that only one does at a time.
#[derive(Clone, Default)]
struct ExclusiveTask(Arc<Mutex<Leaders>>);

impl ExclusiveTask {
    fn start_candidate(&self, client: &Client, identity: &str, stop: CancellationToken) -> JoinHandle<()> {
        self.start_with(client, identity, stop, Duration::from_secs(2))
    }

    fn start_with(
        &self,
        client: &Client,
        identity: &str,
        stop: CancellationToken,
        lease_duration: Duration,
    ) -> JoinHandle<()> {
        let (task, identity, client) = (self.clone(), identity.to_owned(), client.clone());
        let config = LeaderElectionConfig { lease_duration, ..LeaderElectionConfig::new("mainstay-task", &identity) };
        tokio::spawn(async move {
            run_while_leading(client, config, stop, move |term| {
                let (task, identity) = (task.clone(), identity.clone());
                async move {
                    {
                        let mut leaders = task.0.lock();
                        assert!(leaders.current.is_empty(), "{identity} started while {:?} ran", leaders.current);
                        leaders.current.push(identity.clone());
                        leaders.all.push(identity.clone());
                    }
                    term.stop.cancelled().await;
                    task.0.lock().current.clear();
                }
            })
            .await;
        })
    }

    async fn wait_until(&self, what: &str, holds: impl Fn(&Leaders) -> bool) {
        until(what, async || holds(&self.0.lock())).await;
    }
}

#[tokio::test]
async fn one_candidate_leads_at_a_time_and_the_next_starts_when_it_stops() {
    let (client, _server) = start_api().await;
    let task = ExclusiveTask::default();
    let stops: Vec<CancellationToken> = (0..3).map(|_| CancellationToken::new()).collect();
    let candidates: Vec<JoinHandle<()>> = stops
        .iter()
        .enumerate()
        .map(|(n, stop)| task.start_candidate(&client, &format!("c{n}"), stop.clone()))
        .collect();
    for count in 1..=3 {
        task.wait_until("somebody leads", |leaders| leaders.current.len() == 1 && leaders.all.len() == count).await;
        let leader: usize = task.0.lock().current[0][1..].parse().unwrap();
        stops[leader].cancel();
    }
    for candidate in candidates {
        timeout(TIMEOUT, candidate).await.expect("the candidate ends").expect("without panic");
    }
    assert!(task.0.lock().current.is_empty());
    let mut all = task.0.lock().all.clone();
    all.sort();
    assert_eq!(all, ["c0", "c1", "c2"]);
}

#[tokio::test]
async fn a_leader_that_lost_the_lease_stops_and_acquires_it_again_when_it_expires() {
    let (client, _server) = start_api().await;
    let (task, stop) = (ExclusiveTask::default(), CancellationToken::new());
    let candidate = task.start_candidate(&client, "me", stop.clone());
    task.wait_until("it leads", |leaders| leaders.current.len() == 1).await;
    let leases: Api<Lease> = Api::namespaced(client, "kube-system");
    // Another identity takes the Lease by force and never renews it.
    loop {
        let mut lease = leases.get("mainstay-task").await.unwrap();
        lease.spec.as_mut().unwrap().holder_identity = Some("ghost".to_owned());
        if leases.replace("mainstay-task", &PostParams::default(), &lease).await.is_ok() {
            break;
        }
    }
    task.wait_until("it stops", |leaders| leaders.current.is_empty()).await;
    assert_eq!(leases.get("mainstay-task").await.unwrap().spec.unwrap().holder_identity.as_deref(), Some("ghost"));
    task.wait_until("it leads again", |leaders| leaders.current.len() == 1 && leaders.all.len() == 2).await;
    stop.cancel();
    timeout(TIMEOUT, candidate).await.expect("the candidate ends").expect("without panic");
    let lease = leases.get("mainstay-task").await.unwrap().spec.unwrap();
    assert_eq!(lease.holder_identity.unwrap_or_default(), "", "the Lease is released");
    assert_eq!(lease.lease_transitions, Some(1), "acquired twice");
}

#[tokio::test]
async fn a_released_lease_is_acquired_without_waiting_for_the_next_look() {
    let (client, _server) = start_api().await;
    let task = ExclusiveTask::default();
    let (first, second) = (CancellationToken::new(), CancellationToken::new());
    let duration = Duration::from_secs(240); // a candidate looks every minute
    let leading = task.start_with(&client, "first", first.clone(), duration);
    task.wait_until("it leads", |leaders| leaders.current == ["first"]).await;
    let waiting = task.start_with(&client, "second", second.clone(), duration);
    let leases: Api<Lease> = Api::namespaced(client, "kube-system");
    let before = leases.get("mainstay-task").await.unwrap().metadata.resource_version;
    first.cancel();
    task.wait_until("the other leads", |leaders| leaders.current == ["second"]).await;
    leading.await.unwrap();
    second.cancel();
    waiting.await.unwrap();
    let lease = leases.get("mainstay-task").await.unwrap();
    assert_ne!(lease.metadata.resource_version, before);
    assert_eq!(lease.spec.unwrap().lease_transitions, Some(1));
}

#[tokio::test]
async fn a_deleted_lease_ends_the_term() {
    let (client, _server) = start_api().await;
    let (task, stop) = (ExclusiveTask::default(), CancellationToken::new());
    let candidate = task.start_candidate(&client, "me", stop.clone());
    task.wait_until("it leads", |leaders| leaders.current.len() == 1).await;
    let leases: Api<Lease> = Api::namespaced(client, "kube-system");
    leases.delete("mainstay-task", &Default::default()).await.unwrap();
    task.wait_until("it leads anew", |leaders| leaders.current.len() == 1 && leaders.all.len() == 2).await;
    stop.cancel();
    candidate.await.unwrap();
}
