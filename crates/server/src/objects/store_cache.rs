//! Objects of a few kinds in memory, current with the store: what admission looks at on every write.
//!
//! A commit of this server is in the cache before its client has the answer ([`StoreCache::observe_commit`]); writes of
//! other servers follow by watch. While the store cannot be reached, decisions go by what was last known. An object that
//! cannot be parsed is logged and left out.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, stream};
use mainstay_api::{descriptor::Descriptor, registry::Registry};
use mainstay_backoff::{Backoff, RetryState};
use mainstay_store::{Entry, List, Memo, Op, Revision, Store, StoreError, WatchEvent};
use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{keys, object};

const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5), 0.5);

/// An object as it was at one revision.
#[derive(Clone, Debug)]
pub struct CachedObject {
    pub modified: Revision,
    pub value: Arc<Value>,
}

type Objects = BTreeMap<Arc<str>, CachedObject>;

struct CachedKind {
    d: Arc<Descriptor>,
    prefix: String,
    objects: RwLock<Objects>,
}

pub struct StoreCache {
    kinds: Vec<CachedKind>,
    /// Counts changes.
    version: watch::Sender<u64>,
    is_loaded: AtomicBool,
}

impl StoreCache {
    /// A cache of these kinds, each by group and plural, empty until it is loaded.
    pub fn new(registry: &Registry, kinds: &[(&str, &str)]) -> Self {
        let found = kinds.iter().filter_map(|(group, plural)| registry.find(group, "v1", plural));
        let kinds =
            found.map(|d| CachedKind { prefix: keys::prefix(d, None), d: d.clone(), objects: RwLock::default() });
        Self { kinds: kinds.collect(), version: watch::Sender::new(0), is_loaded: AtomicBool::new(false) }
    }

    /// Whether it has been loaded once; before, it has what was written since.
    pub fn is_loaded(&self) -> bool {
        self.is_loaded.load(Ordering::Acquire)
    }

    /// Another number after every change.
    pub fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// Says when something changed.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    fn count_change(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    /// All objects of a kind, or those in one namespace, in the order of their names.
    pub fn list(&self, plural: &str, namespace: Option<&str>) -> Vec<CachedObject> {
        let Some(kind) = self.kind(plural) else { return Vec::new() };
        let objects = kind.objects.read();
        // Most clusters have none of most of these kinds, and every write asks for all of them.
        if objects.is_empty() {
            return Vec::new();
        }
        let prefix = keys::prefix(&kind.d, namespace);
        let from = objects.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        from.take_while(|(key, _)| key.starts_with(&prefix)).map(|(_, object)| object.clone()).collect()
    }

    /// One object of a kind without namespaces.
    pub fn get(&self, plural: &str, name: &str) -> Option<CachedObject> {
        let kind = self.kind(plural)?;
        kind.objects.read().get(&*keys::key(&kind.d, None, name)).cloned()
    }

    fn kind(&self, plural: &str) -> Option<&CachedKind> {
        self.kinds.iter().find(|kind| kind.d.plural == plural)
    }

    /// Of the operations of a transaction those that concern the cache: of most transactions none.
    pub fn cached_ops(&self, ops: &[Op]) -> Vec<Op> {
        ops.iter().filter(|op| self.kind_of_op(op).is_some()).cloned().collect()
    }

    fn kind_of_op(&self, op: &Op) -> Option<&CachedKind> {
        let (Op::Put { key, .. } | Op::Delete { key }) = op;
        self.kinds.iter().find(|kind| key.starts_with(&kind.prefix))
    }

    /// Takes in what this server committed.
    pub fn observe_commit(&self, ops: &[Op], revision: Revision) {
        for op in ops {
            let Some(kind) = self.kind_of_op(op) else { continue };
            let (Op::Put { key, .. } | Op::Delete { key }) = op;
            let entry = match op {
                Op::Put { key, value } => Some(Entry {
                    key: key.clone(),
                    value: value.clone(),
                    created: revision,
                    modified: revision,
                    memo: Memo::default(),
                }),
                Op::Delete { .. } => None,
            };
            kind.set(key, entry.as_ref(), revision);
            self.count_change();
        }
    }

    /// Reads every kind; returns the revision of each list.
    pub async fn load(&self, store: &dyn Store) -> Result<Vec<Revision>, StoreError> {
        let mut revisions = Vec::new();
        for kind in &self.kinds {
            let listing = store.list(List { prefix: &kind.prefix, ..List::default() }).await?;
            kind.replace(&listing.entries, listing.revision);
            self.count_change();
            revisions.push(listing.revision);
        }
        self.is_loaded.store(true, Ordering::Release);
        Ok(revisions)
    }

    /// Follows the changes until `stop`; reads everything again whenever it may have missed some.
    pub async fn follow(&self, store: &dyn Store, stop: CancellationToken) {
        let mut retry = RetryState::new(RETRY);
        while !stop.is_cancelled() {
            let followed = stop.run_until_cancelled(self.follow_once(store, &mut retry)).await;
            let Some(Err(error)) = followed else { return };
            tracing::debug!(%error, "the watch of objects for admission ended; it is opened anew");
            let delay = retry.record_failure(fastrand::f64());
            stop.run_until_cancelled(tokio::time::sleep(delay)).await;
        }
    }

    async fn follow_once(&self, store: &dyn Store, retry: &mut RetryState) -> Result<(), StoreError> {
        let revisions = self.load(store).await?;
        let mut watches = Vec::new();
        for (kind, after) in self.kinds.iter().zip(revisions) {
            let watch = store.watch(&kind.prefix, after).await?;
            let events = stream::unfold(watch, |mut watch| async move { Some((watch.next().await, watch)) });
            watches.push(events.map(move |event| (kind, event)).boxed());
        }
        retry.reset();
        let mut changes = stream::select_all(watches);
        while let Some((kind, event)) = changes.next().await {
            let WatchEvent::Changes(changes) = event? else { continue };
            for change in changes {
                kind.set(&change.key, change.current.as_deref(), change.revision);
                self.count_change();
            }
        }
        Ok(())
    }
}

impl CachedKind {
    fn parse(&self, entry: &Entry) -> Option<CachedObject> {
        let value = object::parse(&self.d, entry).ok()?; // logged where it failed
        Some(CachedObject { modified: entry.modified, value: Arc::new(value) })
    }

    /// A change that is older than what is cached came late and is dropped.
    fn set(&self, key: &Arc<str>, entry: Option<&Entry>, revision: Revision) {
        let parsed = entry.and_then(|entry| self.parse(entry));
        let mut objects = self.objects.write();
        if objects.get(key).is_some_and(|cached| cached.modified > revision) {
            return;
        }
        match parsed {
            Some(object) => objects.insert(key.clone(), object),
            None => objects.remove(key),
        };
    }

    fn replace(&self, entries: &[Arc<Entry>], listed_at: Revision) {
        let listed: Objects =
            entries.iter().filter_map(|entry| Some((entry.key.clone(), self.parse(entry)?))).collect();
        let mut objects = self.objects.write();
        let newer: Objects =
            std::mem::take(&mut *objects).into_iter().filter(|(_, o)| o.modified > listed_at).collect();
        *objects = listed;
        objects.extend(newer);
    }
}

#[cfg(test)]
mod tests {
    use mainstay_store::{Memory, Outcome, Txn};
    use serde_json::json;

    use super::*;

    const KINDS: [(&str, &str); 2] = [("", "limitranges"), ("", "namespaces")];

    fn put(key: &str, object: &Value) -> Op {
        Op::Put { key: key.into(), value: object.to_string().into() }
    }

    fn labels(cache: &StoreCache, namespace: &str) -> Vec<String> {
        let objects = cache.list("limitranges", Some(namespace));
        objects.iter().map(|object| object.value["metadata"]["name"].to_string()).collect()
    }

    fn named(name: &str) -> Value {
        json!({ "kind": "LimitRange", "apiVersion": "v1", "metadata": { "name": name } })
    }

    #[tokio::test]
    async fn own_commits_are_there_at_once_and_those_of_others_follow() {
        let (store, cache) = (Arc::new(Memory::default()), Arc::new(StoreCache::new(&Registry::builtin(), &KINDS)));
        let own = vec![put("/registry/limitranges/a/one", &named("one")), put("/registry/pods/a/p", &json!({}))];
        let Outcome::Committed(revision) = store.commit(Txn { compares: vec![], ops: own.clone() }).await.unwrap()
        else {
            panic!("nothing was compared")
        };
        cache.observe_commit(&own, revision);
        assert_eq!(labels(&cache, "a"), [r#""one""#]);
        assert!(labels(&cache, "ab").is_empty() && labels(&cache, "").is_empty());

        let stop = CancellationToken::new();
        let following = tokio::spawn({
            let (cache, store, stop) = (cache.clone(), store.clone(), stop.clone());
            async move { cache.follow(&*store, stop).await }
        });
        let others = vec![
            put("/registry/limitranges/a/two", &named("two")),
            Op::Delete { key: "/registry/limitranges/a/one".into() },
        ];
        store.commit(Txn { compares: vec![], ops: others }).await.unwrap();
        let arrived = async {
            while labels(&cache, "a") != [r#""two""#] {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), arrived).await.expect("the change arrives");
        stop.cancel();
        following.await.unwrap();
    }

    #[tokio::test]
    async fn a_late_event_does_not_undo_a_newer_write() {
        let cache = StoreCache::new(&Registry::builtin(), &KINDS);
        cache.observe_commit(&[put("/registry/limitranges/a/x", &named("new"))], Revision(9));
        cache.observe_commit(&[put("/registry/limitranges/a/x", &named("old"))], Revision(7));
        assert_eq!(labels(&cache, "a"), [r#""new""#]);
        cache.load(&Memory::default()).await.unwrap();
        assert_eq!(labels(&cache, "a"), [r#""new""#], "the list was older than the write");
    }
}
