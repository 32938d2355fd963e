//! A cache of the objects of one kind (an informer) that reads its own writes, shared by all controllers.
//!
//! One watch feeds it, and so does every write of our own: what the API answered to a write is taken in at once
//! ([`Cache::wrote`], [`Cache::removed`]), and events of the watch that are older are dropped. A reconcile therefore
//! never sees a world older than what earlier reconciles did to it, which is what keeps a controller from deleting,
//! scaling or replacing twice. Versions are compared as the numbers they are.
//!
//! What this cannot rule out is a second writer with a cache of its own. Creates collide by name as long as both know
//! the same pods (see [`crate::names`]); everything else is fenced by uid and version.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Debug,
    sync::Arc,
};

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client, Resource};
use mainstay_watch::{Event, Watch, WatchOptions};
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::outage::Outage;

/// Namespace (empty for kinds without) and name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    pub namespace: String,
    pub name: String,
}

impl ObjectKey {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    pub fn from_meta(meta: &ObjectMeta) -> Self {
        Self::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    }
}

impl Debug for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What a kind must be to be cached. Narrow types of our own do as well as generated ones.
pub trait CachedObject: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static {}
impl<K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static> CachedObject for K {}

/// Something happened to an object: what it was before, and what it is now.
pub struct Change<'a, K> {
    pub key: &'a ObjectKey,
    pub before: Option<&'a K>,
    pub after: Option<&'a K>,
    /// The version at which it happened; 0 if that is not known.
    pub version: u64,
    /// We wrote this ourselves.
    pub own: bool,
}

impl<K> Change<'_, K> {
    /// The newest there is.
    pub fn latest(&self) -> Option<&K> {
        self.after.or(self.before)
    }
}

type Handler<K> = Box<dyn Fn(Change<'_, K>) + Send + Sync>;

pub struct Cache<K> {
    state: RwLock<State<K>>,
    handlers: Mutex<Arc<Vec<Handler<K>>>>,
    synced: watch::Sender<bool>,
    /// All namespaces without one.
    namespace: Option<&'static str>,
}

struct State<K> {
    objects: HashMap<ObjectKey, Arc<K>>,
    by_controller: HashMap<String, BTreeSet<ObjectKey>>,
    by_namespace: HashMap<String, BTreeSet<ObjectKey>>,
    /// What nobody controls, by namespace.
    orphans: HashMap<String, BTreeSet<ObjectKey>>,
    /// Objects whose removal we know of before the watch does, by uid.
    removed: HashMap<String, ObjectKey>,
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        let state = State {
            objects: HashMap::new(),
            by_controller: HashMap::new(),
            by_namespace: HashMap::new(),
            orphans: HashMap::new(),
            removed: HashMap::new(),
        };
        Self {
            state: RwLock::new(state),
            handlers: Mutex::default(),
            synced: watch::Sender::new(false),
            namespace: None,
        }
    }
}

impl<K: CachedObject> Cache<K> {
    pub fn new() -> Self {
        Self::default()
    }

    /// The same for one namespace only.
    pub fn within(self, namespace: &'static str) -> Self {
        Self { namespace: Some(namespace), ..self }
    }

    /// Calls `handler` after every change. Handlers add keys to work queues; they do no work.
    pub fn on_change(&self, handler: impl Fn(Change<'_, K>) + Send + Sync + 'static) {
        let mut handlers = self.handlers.lock();
        let all = Arc::get_mut(&mut handlers).expect("handlers are added before the watch begins");
        all.push(Box::new(handler));
    }

    /// Returns once the first list has been taken in.
    pub async fn synced(&self) {
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Whether the first list has been taken in.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.state.read().objects.get(key).cloned()
    }

    /// What an object controls, by the controller's uid, in the order of keys.
    pub fn controlled_by(&self, uid: &str) -> Vec<Arc<K>> {
        let state = self.state.read();
        state.get_all(state.by_controller.get(uid))
    }

    /// What nobody controls in a namespace, in the order of keys.
    pub fn orphans_in(&self, namespace: &str) -> Vec<Arc<K>> {
        let state = self.state.read();
        state.get_all(state.orphans.get(namespace))
    }

    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let state = self.state.read();
        state.get_all(state.by_namespace.get(namespace))
    }

    /// Those that `is_wanted` says, in no order.
    pub fn select(&self, is_wanted: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        self.state.read().objects.values().filter(|object| is_wanted(object)).cloned().collect()
    }

    pub fn all(&self) -> Vec<Arc<K>> {
        self.state.read().objects.values().cloned().collect()
    }

    /// Takes in what the API answered to a write of ours.
    pub fn wrote(&self, object: K) {
        self.take_in(object, true);
    }

    /// Takes in that a delete of ours took effect at once.
    pub fn removed(&self, key: &ObjectKey, uid: &str) {
        let before = {
            let mut state = self.state.write();
            if state.objects.get(key).is_none_or(|known| known.meta().uid.as_deref() != Some(uid)) {
                return;
            }
            state.removed.insert(uid.to_owned(), key.clone());
            state.take(key)
        };
        self.notify(Change { key, before: before.as_deref(), after: None, version: 0, own: true });
    }

    /// Lists and watches until asked to stop.
    pub async fn run(self: Arc<Self>, client: Client, stop: CancellationToken) {
        let api: Api<K> = Api::all(client);
        let options = match self.namespace {
            Some(namespace) => WatchOptions::fields(format!("metadata.namespace={namespace}")),
            None => WatchOptions::default(),
        };
        let mut events = Watch::<K>::new(api, options);
        let (mut listed, mut outage) = (BTreeSet::new(), Outage::new(K::kind(&())));
        while let Some(Some(event)) = stop.run_until_cancelled(events.next()).await {
            match &event {
                Ok(Event::Init) => {}
                Ok(_) => outage.worked(),
                Err(error) => outage.failed(error),
            }
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    listed.insert(ObjectKey::from_meta(object.meta()));
                    self.upsert(object);
                }
                Ok(Event::InitDone) => {
                    self.retain_listed(&std::mem::take(&mut listed));
                    self.synced.send_replace(true);
                }
                Ok(Event::Apply(object)) => self.upsert(object),
                Ok(Event::Delete(object)) => self.delete(&object),
                Err(_) => {}
            }
        }
    }

    fn upsert(&self, object: K) {
        self.take_in(object, false);
    }

    fn take_in(&self, object: K, own: bool) {
        let key = ObjectKey::from_meta(object.meta());
        let (object, before) = {
            let mut state = self.state.write();
            let uid = object.meta().uid.as_deref().unwrap_or_default();
            if state.removed.contains_key(uid) {
                return;
            }
            let known = state.objects.get(&key);
            if known.is_some_and(|known| version_of(known.meta()) >= version_of(object.meta())) {
                return;
            }
            let before = state.take(&key);
            let object = Arc::new(object);
            state.add(key.clone(), object.clone());
            (object, before)
        };
        let version = version_of(object.meta());
        self.notify(Change { key: &key, before: before.as_deref(), after: Some(&object), version, own });
    }

    fn delete(&self, object: &K) {
        let key = ObjectKey::from_meta(object.meta());
        let before = {
            let mut state = self.state.write();
            state.removed.remove(object.meta().uid.as_deref().unwrap_or_default());
            let known = state.objects.get(&key);
            if known.is_none_or(|known| known.meta().uid != object.meta().uid) {
                return; // its name belongs to another already
            }
            state.take(&key)
        };
        let version = version_of(object.meta());
        self.notify(Change { key: &key, before: before.as_deref(), after: None, version, own: false });
    }

    fn retain_listed(&self, listed: &BTreeSet<ObjectKey>) {
        let lost: Vec<(ObjectKey, Option<Arc<K>>)> = {
            let mut state = self.state.write();
            state.removed.clear();
            let lost: Vec<ObjectKey> = state.objects.keys().filter(|key| !listed.contains(key)).cloned().collect();
            lost.into_iter().map(|key| (key.clone(), state.take(&key))).collect()
        };
        for (key, before) in lost {
            self.notify(Change { key: &key, before: before.as_deref(), after: None, version: 0, own: false });
        }
    }

    fn notify(&self, change: Change<'_, K>) {
        let handlers = self.handlers.lock().clone();
        handlers.iter().for_each(|handler| handler(Change { ..change }));
    }
}

impl<K: CachedObject> State<K> {
    fn get_all(&self, keys: Option<&BTreeSet<ObjectKey>>) -> Vec<Arc<K>> {
        keys.into_iter().flatten().filter_map(|key| self.objects.get(key).cloned()).collect()
    }

    fn add(&mut self, key: ObjectKey, object: Arc<K>) {
        if let Some(uid) = controller_of(object.meta()) {
            self.by_controller.entry(uid.to_owned()).or_default().insert(key.clone());
        } else {
            self.orphans.entry(key.namespace.clone()).or_default().insert(key.clone());
        }
        self.by_namespace.entry(key.namespace.clone()).or_default().insert(key.clone());
        self.objects.insert(key, object);
    }

    fn take(&mut self, key: &ObjectKey) -> Option<Arc<K>> {
        let object = self.objects.remove(key)?;
        if let Some(uid) = controller_of(object.meta()) {
            forget(&mut self.by_controller, uid, key);
        } else {
            forget(&mut self.orphans, &key.namespace, key);
        }
        forget(&mut self.by_namespace, &key.namespace, key);
        Some(object)
    }
}

fn forget(index: &mut HashMap<String, BTreeSet<ObjectKey>>, at: &str, key: &ObjectKey) {
    if let Some(keys) = index.get_mut(at) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(at);
        }
    }
}

/// The uid of the one owner that controls an object.
pub fn controller_of(meta: &ObjectMeta) -> Option<&str> {
    let mut owners = meta.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
}

pub fn version_of(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn object(name: &str, uid: &str, version: u64, controller: Option<&str>) -> ConfigMap {
        let owners = controller
            .map(|uid| json!([{ "apiVersion": "v1", "kind": "X", "name": "x", "uid": uid, "controller": true }]));
        let object = json!({ "metadata": {
            "name": name, "namespace": "ns", "uid": uid, "resourceVersion": version.to_string(), "ownerReferences": owners,
        } });
        serde_json::from_value(object).unwrap()
    }

    fn versions(cache: &Cache<ConfigMap>) -> Vec<u64> {
        cache.in_namespace("ns").iter().map(|object| version_of(&object.metadata)).collect()
    }

    #[test]
    fn events_older_than_our_own_write_are_dropped() {
        let cache = Cache::new();
        cache.upsert(object("a", "1", 5, None));
        cache.wrote(object("a", "1", 9, None));
        cache.upsert(object("a", "1", 7, None));
        assert_eq!(versions(&cache), [9]);
    }

    #[test]
    fn what_we_removed_does_not_come_back_by_an_old_event() {
        let cache = Cache::new();
        cache.upsert(object("a", "1", 5, None));
        cache.removed(&ObjectKey::new("ns", "a"), "1");
        cache.upsert(object("a", "1", 6, None));
        assert!(versions(&cache).is_empty());
        cache.upsert(object("a", "2", 8, None));
        cache.delete(&object("a", "1", 7, None));
        assert_eq!(versions(&cache), [8], "another object of that name");
    }

    #[test]
    fn what_is_controlled_is_found_until_it_is_released() {
        let cache = Cache::new();
        cache.upsert(object("a", "1", 5, Some("boss")));
        cache.upsert(object("b", "2", 6, Some("boss")));
        cache.upsert(object("a", "1", 7, None));
        let names =
            |objects: Vec<Arc<ConfigMap>>| objects.iter().map(|o| o.metadata.name.clone().unwrap()).collect::<Vec<_>>();
        assert_eq!(names(cache.controlled_by("boss")), ["b"]);
        assert_eq!(names(cache.orphans_in("ns")), ["a"]);
        assert_eq!(names(cache.in_namespace("ns")), ["a", "b"]);
    }

    #[test]
    fn a_new_list_drops_what_it_does_not_contain() {
        let cache = Cache::new();
        let changes = Arc::new(Mutex::new(Vec::new()));
        let observed = changes.clone();
        cache.on_change(move |change| observed.lock().push((change.key.name.clone(), change.after.is_some())));
        cache.upsert(object("a", "1", 5, None));
        cache.upsert(object("b", "2", 6, None));
        cache.retain_listed(&[ObjectKey::new("ns", "b")].into());
        assert_eq!(versions(&cache), [6]);
        let expected = [("a", true), ("b", true), ("a", false)].map(|(name, there)| (name.to_owned(), there));
        assert_eq!(*changes.lock(), expected);
    }
}
