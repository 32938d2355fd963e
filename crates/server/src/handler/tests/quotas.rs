//! ResourceQuotas as clients meet them: exact, however many write at once.

use futures::future::join_all;
use mainstay_store::{Entry, List, Listing, Op, Outcome, Revision, StoreError, Txn, Watch};
use tokio::sync::{Notify, Semaphore};

use super::*;

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

/// A quota that the controller has counted: nothing used yet.
async fn create_quota(server: &Server, hard: Value) {
    let admin = administrator();
    let quota = json!({ "metadata": { "name": "q" }, "spec": { "hard": hard } });
    let (code, mut created) = server.send(&admin, Method::POST, QUOTAS, &quota).await;
    assert_eq!(code, 201, "{created}");
    let used: Value = hard.as_object().unwrap().keys().map(|name| (name.clone(), json!("0"))).collect();
    created["status"] = json!({ "hard": hard, "used": used });
    let (code, counted) = server.send(&admin, Method::PUT, &format!("{QUOTAS}/q/status"), &created).await;
    assert_eq!(code, 200, "{counted}");
}

async fn used(server: &Server) -> Value {
    let (_, quota) = server.send(&administrator(), Method::GET, &format!("{QUOTAS}/q"), &Value::Null).await;
    quota["status"]["used"].clone()
}

/// Creates all objects at once, in turn at each of the servers.
async fn create_all(servers: &[&Server], path: &str, objects: Vec<Value>) -> (usize, Vec<Value>) {
    let admin = administrator();
    let requests = objects.iter().enumerate().map(|(index, object)| {
        let server = servers[index % servers.len()];
        tokio::spawn(server.start(&admin, Method::POST, path, Full::from(object.to_string())))
    });
    let (mut created, mut refused) = (0, Vec::new());
    for response in join_all(requests).await {
        match answer(response.unwrap()).await {
            (201, _) => created += 1,
            (_, status) => refused.push(status),
        }
    }
    (created, refused)
}

fn config_maps(count: usize) -> Vec<Value> {
    (0..count).map(|index| config_map(&format!("m{index}"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_hundred_creates_at_once_exactly_ten_fit_a_quota_of_ten() {
    let server = Server::new(Settings::default()).await;
    create_quota(&server, json!({ "configmaps": "10" })).await;
    let (created, refused) = create_all(&[&server], CONFIG_MAPS, config_maps(100)).await;
    assert_eq!((created, refused.len()), (10, 90));
    for status in refused {
        assert_eq!((&status["code"], &status["reason"]), (&json!(403), &json!("Forbidden")), "{status}");
        let message = status["message"].as_str().unwrap();
        let words =
            "is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=10, limited: configmaps=10";
        assert!(message.ends_with(words), "{message}");
    }
    assert_eq!(used(&server).await, json!({ "configmaps": "10" }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_servers_over_one_store_admit_no_more_than_one() {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let (one, other) = (Server::over(store.clone()).await, Server::over(store.clone()).await);
    create_quota(&one, json!({ "count/configmaps": "10" })).await;
    // As its watch would: the other server learns of the quota.
    other.0.api.admission_cache.load(&*store).await.unwrap();
    let (created, refused) = create_all(&[&one, &other], CONFIG_MAPS, config_maps(40)).await;
    assert_eq!((created, refused.len()), (10, 30), "{refused:?}");
    assert_eq!(used(&other).await, json!({ "count/configmaps": "10" }));
}

#[tokio::test]
async fn what_is_not_written_is_not_charged() {
    let server = Server::new(Settings::default()).await;
    create_quota(&server, json!({ "pods": "5", "limits.cpu": "1", "services": "1" })).await;
    let admin = administrator();
    let pod = |resources: Value| {
        json!({
            "metadata": { "generateName": "p-" },
            "spec": { "containers": [{ "name": "c", "image": "i", "resources": resources }] },
        })
    };
    let (code, status) = server.send(&admin, Method::POST, PODS, &pod(json!({}))).await;
    assert_eq!(code, 403);
    let message = status["message"].as_str().unwrap();
    assert!(message.ends_with("is forbidden: failed quota: q: must specify limits.cpu for: c"), "{message}");
    let small = pod(json!({ "limits": { "cpu": "400m" } }));
    assert_eq!(server.send(&admin, Method::POST, &format!("{PODS}?dryRun=All"), &small).await.0, 201);
    let taken = json!({ "metadata": { "name": "default" } });
    assert_eq!(server.send(&admin, Method::POST, CONFIG_MAPS, &taken).await.0, 201);
    assert_eq!(server.send(&admin, Method::POST, CONFIG_MAPS, &taken).await.0, 409);
    assert_eq!(used(&server).await, json!({ "limits.cpu": "0", "pods": "0", "services": "0" }));
    assert_eq!(server.send(&admin, Method::POST, PODS, &small).await.0, 201);
    assert_eq!(used(&server).await, json!({ "limits.cpu": "400m", "pods": "1", "services": "0" }));
}

/// A store that holds the first commit of one object until it is let go.
struct HeldStore {
    store: Memory,
    held: &'static str,
    arrived: Notify,
    passes: Semaphore,
}

#[async_trait::async_trait]
impl Store for HeldStore {
    async fn get(&self, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
        self.store.get(key).await
    }

    async fn list(&self, query: List<'_>) -> Result<Listing, StoreError> {
        self.store.list(query).await
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        if txn.ops.iter().any(|op| matches!(op, Op::Put { key, .. } if key.ends_with(self.held))) {
            self.arrived.notify_one();
            self.passes.acquire().await.unwrap().forget();
        }
        self.store.commit(txn).await
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        self.store.watch(prefix, after).await
    }

    async fn compact(&self, at: Revision) -> Result<(), StoreError> {
        self.store.compact(at).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.store.revision().await
    }
}

/// A write that was admitted before there was a quota, or before its count began, is committed after the count.
async fn create_around_count(is_quota_known: bool) {
    let store = Arc::new(HeldStore {
        store: Memory::new(),
        held: "/default/late",
        arrived: Notify::new(),
        passes: Semaphore::new(0),
    });
    let server = Server::over(store.clone()).await;
    let admin = administrator();
    let quota = json!({ "metadata": { "name": "q" }, "spec": { "hard": { "configmaps": "1" } } });
    let create_quota = async || {
        let (code, made) = server.send(&admin, Method::POST, QUOTAS, &quota).await;
        assert_eq!(code, 201, "{made}");
    };
    if is_quota_known {
        create_quota().await;
    }
    let late =
        tokio::spawn(server.start(&admin, Method::POST, CONFIG_MAPS, Full::from(config_map("late").to_string())));
    store.arrived.notified().await;
    if !is_quota_known {
        create_quota().await;
    }
    // What the controller does: announces, lists, and writes what it found.
    for used in [json!({}), json!({ "configmaps": "0" })] {
        let (_, mut found) = server.send(&admin, Method::GET, &format!("{QUOTAS}/q"), &Value::Null).await;
        found["status"] = json!({ "hard": { "configmaps": "1" }, "used": used });
        let (code, written) = server.send(&admin, Method::PUT, &format!("{QUOTAS}/q/status"), &found).await;
        assert_eq!(code, 200, "{written}");
    }
    store.passes.add_permits(10);
    let (code, made) = answer(late.await.unwrap()).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(used(&server).await, json!({ "configmaps": "1" }), "it is charged all the same");
    let (code, status) = server.send(&admin, Method::POST, CONFIG_MAPS, &config_map("more")).await;
    assert_eq!(code, 403, "{status}");
}

#[tokio::test]
async fn a_write_that_was_admitted_before_there_was_a_quota_is_charged() {
    create_around_count(false).await;
}

#[tokio::test]
async fn a_write_that_was_admitted_before_the_count_began_is_charged() {
    create_around_count(true).await;
}

#[tokio::test(start_paused = true)]
async fn a_write_waits_for_the_first_count_and_is_refused_if_nobody_counts() {
    let server = Server::new(Settings::default()).await;
    let admin = administrator();
    let quota = json!({ "metadata": { "name": "q" }, "spec": { "hard": { "configmaps": "1" } } });
    let (_, mut announced) = server.send(&admin, Method::POST, QUOTAS, &quota).await;
    announced["status"] = json!({ "hard": { "configmaps": "1" } });
    let (code, mut announced) = server.send(&admin, Method::PUT, &format!("{QUOTAS}/q/status"), &announced).await;
    assert_eq!(code, 200, "{announced}");
    let (code, status) = server.send(&admin, Method::POST, CONFIG_MAPS, &config_map("a")).await;
    assert_eq!(code, 403, "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(message.ends_with("status unknown for quota: q, resources: configmaps"), "{message}");
    let waiting =
        tokio::spawn(server.start(&admin, Method::POST, CONFIG_MAPS, Full::from(config_map("a").to_string())));
    tokio::task::yield_now().await;
    announced["status"]["used"] = json!({ "configmaps": "0" });
    let (code, counted) = server.send(&admin, Method::PUT, &format!("{QUOTAS}/q/status"), &announced).await;
    assert_eq!(code, 200, "{counted}");
    assert_eq!(answer(waiting.await.unwrap()).await.0, 201);
    assert_eq!(used(&server).await, json!({ "configmaps": "1" }));
}
