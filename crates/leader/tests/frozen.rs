//! A leader that is frozen while another takes over, and goes on writing when it thaws.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Error,
    api::{ObjectMeta, PostParams},
};
use mainstay_leader::{LeaderElectionConfig, LeaderTerm, run_while_leading};
use mainstay_server::fence::Fence;
use mainstay_store::Revision;
use mainstay_testing::{TestApi, until};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

const MARKER: &str = "marker";

fn config(identity: &str) -> LeaderElectionConfig {
    LeaderElectionConfig {
        lease_duration: Duration::from_secs(2),
        ..LeaderElectionConfig::new("mainstay-task", identity)
    }
}

fn fence(term: &LeaderTerm) -> Fence {
    Fence::new(&term.namespace, &term.name, Revision(term.version), term.ended.clone())
}

fn marker(by: &str) -> ConfigMap {
    let metadata = ObjectMeta { name: Some(MARKER.to_owned()), ..ObjectMeta::default() };
    ConfigMap { metadata, data: Some(BTreeMap::from([("by".to_owned(), by.to_owned())])), ..ConfigMap::default() }
}

async fn write_marker(client: &Client, by: &str) -> Result<ConfigMap, Error> {
    Api::namespaced(client.clone(), "kube-system").replace(MARKER, &PostParams::default(), &marker(by)).await
}

#[derive(Debug, Default)]
struct Attempts {
    written: usize,
    refused: Vec<String>,
    terms: Vec<u64>,
}

/// Writes without a pause and without a look at whether it should stop, until it is refused.
async fn write_until_refused(
    client: Client,
    attempts: Arc<Mutex<Attempts>>,
    frozen: Arc<AtomicBool>,
    term: LeaderTerm,
) {
    attempts.lock().terms.push(term.version);
    for n in 0.. {
        // This stops the whole thread, timers and renewals included.
        while frozen.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(10));
        }
        match write_marker(&client, &format!("frozen {n}")).await {
            Ok(_) => attempts.lock().written += 1,
            Err(Error::Api(status)) => {
                attempts.lock().refused.push(status.message.clone());
                break;
            }
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    term.stop.cancelled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_write_of_a_frozen_leader_gets_through_once_another_leads() {
    let api = Arc::new(TestApi::start(&["kube-system"]).await);
    let admin = api.client("test");
    let markers: Api<ConfigMap> = Api::namespaced(admin.clone(), "kube-system");
    markers.create(&PostParams::default(), &marker("nobody")).await.unwrap();
    let (attempts, frozen) = (Arc::new(Mutex::new(Attempts::default())), Arc::new(AtomicBool::new(false)));
    let stop_frozen = CancellationToken::new();
    let thread = thread::spawn({
        let (api, attempts, frozen, stop) = (api.clone(), attempts.clone(), frozen.clone(), stop_frozen.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            // A client has to be made within the runtime that it works in.
            runtime.block_on(async {
                run_while_leading(api.client("frozen"), config("frozen"), stop.clone(), |term| {
                    let client = api.fenced_client("frozen", fence(&term));
                    let writes = write_until_refused(client, attempts.clone(), frozen.clone(), term);
                    let stop = stop.clone();
                    async move { stop.run_until_cancelled(writes).await.unwrap_or_default() }
                })
                .await;
            });
        }
    });
    until("it writes", async || attempts.lock().written > 10).await;

    frozen.store(true, Ordering::Relaxed);
    let (stop_next, leads) = (CancellationToken::new(), Arc::new(Mutex::new(None)));
    let next = tokio::spawn({
        let (api, stop, leads) = (api.clone(), stop_next.clone(), leads.clone());
        async move {
            run_while_leading(api.client("next"), config("next"), stop, |term| {
                let (client, leads) = (api.fenced_client("next", fence(&term)), leads.clone());
                async move {
                    let written = write_marker(&client, "next").await.expect("the leader writes");
                    *leads.lock() = written.metadata.resource_version;
                    term.stop.cancelled().await;
                }
            })
            .await;
        }
    });
    until("the next one leads", async || leads.lock().is_some()).await;
    let written_before = attempts.lock().written;
    frozen.store(false, Ordering::Relaxed);
    until("it is refused", async || !attempts.lock().refused.is_empty()).await;
    let found = markers.get(MARKER).await.unwrap();
    assert_eq!(found.metadata.resource_version, *leads.lock(), "nothing was written since: {found:?}");
    let refusal = attempts.lock().refused[0].clone();
    assert!(refusal.contains("no longer holds Lease \"kube-system/mainstay-task\""), "{refusal}");
    assert_eq!(attempts.lock().written, written_before);

    // It is a candidate again, without a restart.
    stop_next.cancel();
    next.await.unwrap();
    until("it leads again and writes", async || {
        let attempts = attempts.lock();
        attempts.terms.len() == 2 && attempts.written > written_before
    })
    .await;
    let terms = attempts.lock().terms.clone();
    assert!(terms[0] < terms[1], "{terms:?}");
    stop_frozen.cancel();
    until("it ends", async || thread.is_finished()).await;
}
