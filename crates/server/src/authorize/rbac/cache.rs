//! The cache of roles and bindings: filled before the server takes requests, kept current by watching the store.
//!
//! While the store cannot be reached, decisions go by what was last known, as upstream's do. An object that cannot be
//! parsed is logged and gives no rights.

use std::{sync::Arc, time::Duration};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use mainstay_api::{descriptor::Descriptor, registry::Registry};
use mainstay_backoff::{Backoff, RetryState};
use mainstay_store::{Entry, List, Revision, Store, StoreError, WatchEvent};
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use super::policy::{Policy, RoleKey};
use crate::objects::{keys, object};

const GROUP: &str = "rbac.authorization.k8s.io";
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5), 0.5);

#[derive(Clone, Copy, Debug)]
enum Kind {
    Role,
    Binding,
}

#[derive(Default)]
pub struct RbacCache {
    policy: RwLock<Policy>,
}

type Changes = BoxStream<'static, (Kind, Arc<Descriptor>, Result<WatchEvent, StoreError>)>;

impl RbacCache {
    pub fn read<T>(&self, read: impl FnOnce(&Policy) -> T) -> T {
        read(&self.policy.read())
    }

    /// Reads all roles and bindings; returns the revision of each kind's list.
    pub async fn load(&self, registry: &Registry, store: &dyn Store) -> Result<Vec<Revision>, StoreError> {
        let mut policy = Policy::default();
        let mut revisions = Vec::new();
        for (kind, d) in kinds(registry) {
            let listing = store.list(List { prefix: &keys::prefix(&d, None), ..List::default() }).await?;
            for entry in &listing.entries {
                set(&mut policy, kind, &d, &entry.key, Some(entry));
            }
            revisions.push(listing.revision);
        }
        *self.policy.write() = policy;
        Ok(revisions)
    }

    /// Follows the changes until `stop`; reads everything again whenever it may have missed some.
    pub async fn follow(&self, registry: &Registry, store: &dyn Store, stop: CancellationToken) {
        let mut retry = RetryState::new(RETRY);
        while !stop.is_cancelled() {
            let followed = stop.run_until_cancelled(self.follow_once(registry, store, &mut retry)).await;
            let Some(Err(error)) = followed else { return };
            tracing::debug!(%error, "the watch of roles and bindings ended; it is opened anew");
            let delay = retry.record_failure(fastrand::f64());
            stop.run_until_cancelled(tokio::time::sleep(delay)).await;
        }
    }

    async fn follow_once(
        &self,
        registry: &Registry,
        store: &dyn Store,
        retry: &mut RetryState,
    ) -> Result<(), StoreError> {
        let revisions = self.load(registry, store).await?;
        let mut watches = Vec::new();
        for ((kind, d), revision) in kinds(registry).into_iter().zip(revisions) {
            watches.push(watch(store, kind, d, revision).await?);
        }
        retry.reset();
        let mut changes = stream::select_all(watches);
        while let Some((kind, d, event)) = changes.next().await {
            let WatchEvent::Changes(changes) = event? else { continue };
            let mut policy = self.policy.write();
            for change in changes {
                set(&mut policy, kind, &d, &change.key, change.current.as_ref());
            }
        }
        Ok(())
    }
}

fn kinds(registry: &Registry) -> Vec<(Kind, Arc<Descriptor>)> {
    let all = [
        ("clusterroles", Kind::Role),
        ("roles", Kind::Role),
        ("clusterrolebindings", Kind::Binding),
        ("rolebindings", Kind::Binding),
    ];
    all.into_iter().filter_map(|(plural, kind)| Some((kind, registry.find(GROUP, "v1", plural)?.clone()))).collect()
}

async fn watch(store: &dyn Store, kind: Kind, d: Arc<Descriptor>, after: Revision) -> Result<Changes, StoreError> {
    let watch = store.watch(&keys::prefix(&d, None), after).await?;
    Ok(stream::unfold(watch, move |mut watch| {
        let d = d.clone();
        async move {
            let event = watch.next().await;
            Some(((kind, d, event), watch))
        }
    })
    .boxed())
}

fn set(policy: &mut Policy, kind: Kind, d: &Descriptor, key: &str, entry: Option<&Arc<Entry>>) {
    let (namespace, name) = keys::names(d, key);
    match kind {
        Kind::Role => {
            let role = RoleKey { namespace: namespace.map(str::to_owned), name: name.to_owned() };
            policy.set_role(role, entry.and_then(parse));
        }
        Kind::Binding => policy.set_binding(namespace, name, entry.and_then(parse)),
    }
}

fn parse<T: serde::de::DeserializeOwned>(entry: &Arc<Entry>) -> Option<T> {
    match serde_json::from_slice(&entry.value) {
        Ok(object) => Some(object),
        Err(error) => {
            object::unreadable(entry, &error.to_string());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstay_store::{Memory, Op, Txn};
    use serde_json::{Value, json};

    use super::*;
    use crate::auth::User;

    async fn write_object(store: &dyn Store, key: &str, object: &Value) {
        let op = Op::Put { key: key.into(), value: object.to_string().into() };
        store.commit(Txn { compares: vec![], ops: vec![op] }).await.unwrap();
    }

    fn verbs(cache: &RbacCache, user: &str) -> Vec<String> {
        let user = User { name: user.to_owned(), ..User::default() };
        cache.read(|policy| policy.rules_for(&user, None).0).into_iter().flat_map(|rule| rule.verbs).collect()
    }

    async fn until(what: &str, condition: impl Fn() -> bool) {
        let wait = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect(what);
    }

    #[tokio::test]
    async fn changes_reach_the_cache_and_corrupt_objects_give_nothing() {
        let (registry, store, cache) =
            (Registry::builtin(), Arc::new(Memory::default()), Arc::new(RbacCache::default()));
        let role = json!({ "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }] });
        let ann = json!({
            "roleRef": { "kind": "ClusterRole", "name": "reader" }, "subjects": [{ "kind": "User", "name": "ann" }],
        });
        write_object(&*store, "/registry/clusterroles/reader", &role).await;
        write_object(&*store, "/registry/clusterrolebindings/ann", &ann).await;
        cache.load(&registry, &*store).await.unwrap();
        assert_eq!(verbs(&cache, "ann"), ["get"]);

        let stop = CancellationToken::new();
        let following = tokio::spawn({
            let (cache, store, stop) = (cache.clone(), store.clone(), stop.clone());
            async move { cache.follow(&Registry::builtin(), &*store, stop).await }
        });
        let bob = json!({
            "roleRef": { "kind": "ClusterRole", "name": "reader" }, "subjects": [{ "kind": "User", "name": "bob" }],
        });
        write_object(&*store, "/registry/clusterrolebindings/bob", &bob).await;
        until("bob is bound", || verbs(&cache, "bob") == ["get"]).await;
        write_object(&*store, "/registry/clusterrolebindings/bob", &json!({ "roleRef": 7 })).await;
        until("what cannot be parsed binds nobody", || verbs(&cache, "bob").is_empty()).await;
        let op = Op::Delete { key: "/registry/clusterroles/reader".into() };
        store.commit(Txn { compares: vec![], ops: vec![op] }).await.unwrap();
        until("the role is gone", || verbs(&cache, "ann").is_empty()).await;
        stop.cancel();
        following.await.unwrap();
    }
}
