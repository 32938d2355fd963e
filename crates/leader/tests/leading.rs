//! Several candidates on one API, in the test's process.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Namespace};
use kube::{Api, Client, api::PostParams};
use mainstay_leader::{Term, lead};
use mainstay_server::{api, client, handler::Handler, settings::Settings};
use mainstay_store::Memory;
use parking_lot::Mutex;
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(20);

async fn api() -> (Client, CancellationToken) {
    let stop = CancellationToken::new();
    let registry = mainstay_api::registry::Registry::builtin();
    let api = api::Api::new(registry, Arc::new(Memory::new()), Settings::default());
    let client = client::internal(Arc::new(Handler::new(api, stop.clone())), "test");
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some("kube-system".to_owned());
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.expect("a namespace");
    (client, stop)
}

/// Who works at the moment, and who ever did.
#[derive(Clone, Default)]
struct Work(Arc<Mutex<(Vec<String>, Vec<String>)>>);

impl Work {
    fn candidate(&self, client: &Client, name: &str, stop: CancellationToken) -> JoinHandle<()> {
        let (work, own) = (self.clone(), name.to_owned());
        let term = Term { duration: Duration::from_secs(2), ..Term::new("work", name) };
        let client = client.clone();
        tokio::spawn(async move {
            lead(client, term, stop, move |ended| {
                let (work, own) = (work.clone(), own.clone());
                async move {
                    {
                        let mut held = work.0.lock();
                        assert!(held.0.is_empty(), "{own} began while {:?} worked", held.0);
                        held.0.push(own.clone());
                        held.1.push(own.clone());
                    }
                    ended.cancelled().await;
                    work.0.lock().0.clear();
                }
            })
            .await;
        })
    }

    async fn until(&self, what: &str, holds: impl Fn(&(Vec<String>, Vec<String>)) -> bool) {
        let wait = async {
            while !holds(&self.0.lock()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(timeout(PATIENCE, wait).await.is_ok(), "in vain until {what}: {:?}", self.0.lock());
    }
}

#[tokio::test]
async fn one_works_at_a_time_and_the_next_begins_when_it_stops() {
    let (client, _server) = api().await;
    let work = Work::default();
    let stops: Vec<CancellationToken> = (0..3).map(|_| CancellationToken::new()).collect();
    let candidates: Vec<JoinHandle<()>> =
        stops.iter().enumerate().map(|(n, stop)| work.candidate(&client, &format!("c{n}"), stop.clone())).collect();
    for turn in 1..=3 {
        work.until("somebody works", |(now, ever)| now.len() == 1 && ever.len() == turn).await;
        let who = work.0.lock().0[0].clone();
        let which: usize = who[1..].parse().unwrap();
        stops[which].cancel();
    }
    for candidate in candidates {
        timeout(PATIENCE, candidate).await.expect("it ends").expect("without panic");
    }
    assert!(work.0.lock().0.is_empty());
    let mut ever = work.0.lock().1.clone();
    ever.sort();
    assert_eq!(ever, ["c0", "c1", "c2"]);
}

#[tokio::test]
async fn an_abandoned_lease_is_taken_and_whoever_lost_it_stops() {
    let (client, _server) = api().await;
    let (work, stop) = (Work::default(), CancellationToken::new());
    let candidate = work.candidate(&client, "me", stop.clone());
    work.until("it works", |(now, _)| now.len() == 1).await;
    let leases: Api<Lease> = Api::namespaced(client, "kube-system");
    // Another takes it over by force, and is never heard of again.
    loop {
        let mut lease = leases.get("work").await.unwrap();
        lease.spec.as_mut().unwrap().holder_identity = Some("ghost".to_owned());
        if leases.replace("work", &PostParams::default(), &lease).await.is_ok() {
            break;
        }
    }
    work.until("it stops", |(now, _)| now.is_empty()).await;
    assert_eq!(leases.get("work").await.unwrap().spec.unwrap().holder_identity.as_deref(), Some("ghost"));
    work.until("it works again", |(now, ever)| now.len() == 1 && ever.len() == 2).await;
    stop.cancel();
    timeout(PATIENCE, candidate).await.expect("it ends").expect("without panic");
    let given_back = leases.get("work").await.unwrap().spec.unwrap().holder_identity;
    assert_eq!(given_back.unwrap_or_default(), "");
}
