//! A cache of API objects of one kind: each object is watched while some pod refers to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use kube::{Api, Client, Resource, ResourceExt};
use mainstay_backoff::Backoff;
use mainstay_errors::error_chain;
use mainstay_runtime::PodUid;
use mainstay_watch::{Event, Watch, WatchOptions};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::watch, task::AbortHandle};

use super::{ObjectError, ObjectResult, changes::Changes, checkpoint::ObjectCheckpoint};

/// Silence for this long counts as unreachable.
const PATIENCE: Duration = Duration::from_secs(10);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5), 0.5);

/// One object of a namespace, or all of a kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Selection {
    namespace: String,
    name: Option<String>,
}

impl Selection {
    pub(super) fn named(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: Some(name.to_owned()) }
    }

    pub(super) fn all(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: None }
    }

    fn field_selector(&self, restriction: &str) -> String {
        let name = self.name.as_ref().map(|name| format!("metadata.name={name}"));
        let restriction = (!restriction.is_empty()).then(|| restriction.to_owned());
        name.into_iter().chain(restriction).collect::<Vec<_>>().join(",")
    }

    /// Names of the API hold no slash and no underscore.
    fn file(&self) -> String {
        let name = self.name.as_deref().unwrap_or_default();
        format!("{}_{name}", self.namespace).replace('/', "_")
    }
}

type ObjectsByName<K> = BTreeMap<String, Arc<K>>;

#[derive(Clone)]
enum State<K> {
    Asking,
    Synced(ObjectsByName<K>),
    Unreachable(String),
    Forbidden(String),
}

struct Entry<K> {
    pods: Arc<Mutex<BTreeSet<PodUid>>>,
    state: watch::Receiver<State<K>>,
    task: AbortHandle,
}

impl<K> Drop for Entry<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) struct ObjectCache<K> {
    client: Client,
    api: fn(Client, &str) -> Api<K>,
    changes: Option<Changes>,
    saved: ObjectCheckpoint,
    /// Restricts what is selected to what this node may see; empty for no restriction.
    restriction: String,
    entries: Mutex<BTreeMap<Selection, Entry<K>>>,
}

impl<K> ObjectCache<K>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    pub(super) fn new(client: Client, api: fn(Client, &str) -> Api<K>, changes: Option<Changes>) -> Self {
        Self {
            client,
            api,
            changes,
            saved: ObjectCheckpoint::nowhere(),
            restriction: String::new(),
            entries: Mutex::default(),
        }
    }

    /// What is received is saved there as well, for an agent that starts while the API is away.
    pub(super) fn checkpoint_in(&mut self, saved: ObjectCheckpoint) {
        self.saved = saved;
    }

    /// Selects only what this field selector does.
    pub(super) fn restrict_to(&mut self, restriction: String) {
        self.restriction = restriction;
    }

    pub(super) async fn get_named(&self, pod: &PodUid, namespace: &str, name: &str) -> ObjectResult<K> {
        self.get(pod, &Selection::named(namespace, name)).await?.remove(name).ok_or(ObjectError::Missing)
    }

    /// What is known now; waits for the first answer if none has come yet.
    pub(super) async fn get(&self, pod: &PodUid, which: &Selection) -> Result<ObjectsByName<K>, ObjectError> {
        let mut state = self.follow(pod, which);
        let state = state.wait_for(|state| !matches!(state, State::Asking)).await;
        match state.as_deref() {
            Ok(State::Synced(found)) => Ok(found.clone()),
            Ok(State::Unreachable(why)) => Err(ObjectError::Unreachable(why.clone())),
            Ok(State::Forbidden(why)) => Err(ObjectError::Forbidden(why.clone())),
            Ok(State::Asking) | Err(_) => Err(ObjectError::Unreachable("the agent is stopping".to_owned())),
        }
    }

    pub(super) fn forget(&self, pod: &PodUid) {
        self.forget_where(pod, |_| true);
    }

    /// The pod no longer refers to this object, though it may to others.
    pub(super) fn forget_named(&self, pod: &PodUid, namespace: &str, name: &str) {
        let named = Selection::named(namespace, name);
        self.forget_where(pod, |which| *which == named);
    }

    fn forget_where(&self, pod: &PodUid, is_forgotten: impl Fn(&Selection) -> bool) {
        self.entries.lock().retain(|which, entry| {
            if !is_forgotten(which) {
                return true;
            }
            let mut pods = entry.pods.lock();
            pods.remove(pod);
            if pods.is_empty() {
                self.saved.forget(&which.file());
            }
            !pods.is_empty()
        });
    }

    fn follow(&self, pod: &PodUid, which: &Selection) -> watch::Receiver<State<K>> {
        let mut entries = self.entries.lock();
        let entry = entries.entry(which.clone()).or_insert_with(|| {
            let (sender, state) = watch::channel(State::Asking);
            let pods = Arc::new(Mutex::new(BTreeSet::new()));
            let saved = (self.saved.clone(), which.file());
            let reflector = ObjectReflector { state: sender, pods: pods.clone(), changes: self.changes.clone(), saved };
            let api = (self.api)(self.client.clone(), &which.namespace);
            let task = tokio::spawn(reflector.run(api, which.field_selector(&self.restriction))).abort_handle();
            Entry { pods, state, task }
        });
        entry.pods.lock().insert(pod.clone());
        entry.state.clone()
    }
}

/// Keeps one selection current.
struct ObjectReflector<K> {
    state: watch::Sender<State<K>>,
    pods: Arc<Mutex<BTreeSet<PodUid>>>,
    changes: Option<Changes>,
    saved: (ObjectCheckpoint, String),
}

impl<K> ObjectReflector<K>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    async fn run(self, api: Api<K>, field_selector: String) {
        let mut events =
            Watch::<K>::new(api, WatchOptions { field_selector, backoff: BACKOFF, ..WatchOptions::default() });
        let (mut known, mut listed) = (ObjectsByName::new(), ObjectsByName::new());
        loop {
            let event = if matches!(*self.state.borrow(), State::Asking) {
                match tokio::time::timeout(PATIENCE, events.next()).await {
                    Ok(event) => event,
                    Err(_) => {
                        self.fall_back(&mut known, State::Unreachable("the API does not answer".to_owned()));
                        continue;
                    }
                }
            } else {
                events.next().await
            };
            let Some(event) = event else { return };
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    listed.insert(object.name_any(), Arc::new(object));
                }
                Ok(Event::InitDone) => {
                    known = std::mem::take(&mut listed);
                    self.publish(&known);
                }
                Ok(Event::Apply(object)) => {
                    known.insert(object.name_any(), Arc::new(object));
                    self.publish(&known);
                }
                Ok(Event::Delete(object)) => {
                    known.remove(&object.name_any());
                    self.publish(&known);
                }
                Err(error) => {
                    tracing::debug!(error = error_chain(&error), kind = std::any::type_name::<K>(), "cannot follow");
                    if !matches!(*self.state.borrow(), State::Synced(_)) {
                        let why = error_chain(&error);
                        let state = if error.is_forbidden() { State::Forbidden(why) } else { State::Unreachable(why) };
                        self.fall_back(&mut known, state);
                    }
                }
            }
        }
    }

    /// Without an answer: what an earlier agent received, or nothing.
    fn fall_back(&self, known: &mut ObjectsByName<K>, otherwise: State<K>) {
        let (saved, file) = &self.saved;
        match saved.read::<K>(file) {
            Some(found) => {
                *known = found.into_iter().map(|object| (object.name_any(), Arc::new(object))).collect();
                self.state.send_replace(State::Synced(known.clone()));
            }
            None => drop(self.state.send_replace(otherwise)),
        }
    }

    /// Whoever waits for the first answer gets it by waiting; everybody else is woken.
    fn publish(&self, known: &ObjectsByName<K>) {
        let before = self.state.send_replace(State::Synced(known.clone()));
        let news = match &before {
            State::Asking => false,
            State::Unreachable(_) | State::Forbidden(_) => true,
            State::Synced(before) => versions(before).ne(versions(known)),
        };
        if news || matches!(before, State::Asking) {
            let (saved, file) = &self.saved;
            saved.write(file, known.values().map(|object| &**object));
        }
        if let (true, Some(changes)) = (news, &self.changes) {
            for pod in self.pods.lock().iter() {
                changes.record(pod);
            }
        }
    }
}

fn versions<K: Resource>(found: &ObjectsByName<K>) -> impl Iterator<Item = (&String, Option<&String>)> {
    found.iter().map(|(name, object)| (name, object.meta().resource_version.as_ref()))
}
