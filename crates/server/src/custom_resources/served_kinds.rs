//! The kinds that this server serves: built-in ones and those of CustomResourceDefinitions.
//!
//! Requests take one immutable snapshot and never wait. A changed definition makes a new snapshot; requests that run keep theirs. Changes
//! come from two sides, this server's own commits and the watch of the store, in any order: the newer revision wins.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use mainstay_api::{
    crd::{kind, status::TakenNames},
    descriptor::Descriptor,
    registry::Registry,
};
use mainstay_store::Revision;
use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::webhook_conversion::{HandlerCell, WebhookConversion};
use crate::handler::Handler;

pub struct ServedKinds {
    builtin: Registry,
    /// Through which conversion webhooks are called.
    handler: HandlerCell,
    state: RwLock<State>,
    /// Counts snapshots, for whoever waits for the next one.
    changes: watch::Sender<u64>,
}

struct State {
    current: Arc<Registry>,
    /// By the name of the definition: `<plural>.<group>`.
    definitions: BTreeMap<String, KnownDefinition>,
}

struct KnownDefinition {
    /// When it was last written, or deleted.
    revision: Revision,
    kinds: Vec<Arc<Descriptor>>,
    group: String,
    /// `status.acceptedNames`.
    names: Value,
    /// Ends the watches of its objects.
    watches: Option<CancellationToken>,
    /// The conversions of its kinds that a webhook does, by the kinds' ids.
    webhooks: Vec<(u64, Arc<WebhookConversion>)>,
}

/// Lets a webhook do what conversion a kind needs, if its definition says so.
fn convert_by_webhook(handler: &HandlerCell, d: &mut Descriptor) -> Option<(u64, Arc<WebhookConversion>)> {
    let custom = d.custom.as_ref()?;
    let webhook = custom.conversion_webhook.clone().filter(|_| d.conversion.is_some())?;
    let conversion = Arc::new(WebhookConversion {
        handler: handler.clone(),
        webhook,
        kind: (&*d.kind).into(),
        served: custom.schema.clone(),
        served_version: d.api_version().into(),
        stored_version: d.stored_api_version().into(),
    });
    let id = custom.id;
    d.conversion = Some(conversion.clone());
    Some((id, conversion))
}

impl ServedKinds {
    pub fn new(builtin: Registry) -> Self {
        let state = State { current: Arc::new(builtin.clone()), definitions: BTreeMap::new() };
        Self { builtin, handler: HandlerCell::default(), state: RwLock::new(state), changes: watch::Sender::default() }
    }

    /// Tells whenever other kinds are served.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// From now on conversion webhooks can be called.
    pub fn attach(&self, handler: &Arc<Handler>) {
        let _ = self.handler.set(Arc::downgrade(handler)); // an attached one stays
    }

    pub fn current(&self) -> Arc<Registry> {
        self.state.read().current.clone()
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Descriptor>> {
        self.state.read().current.find(group, version, plural).cloned()
    }

    pub fn find_kind(&self, group: &str, version: &str, kind: &str) -> Option<Arc<Descriptor>> {
        self.state.read().current.find_kind(group, version, kind).cloned()
    }

    /// Takes in a definition as of a revision; `None` if it is gone.
    pub fn observe(&self, name: &str, revision: Revision, definition: Option<&Bytes>) {
        let mut state = self.state.write();
        if state.observe(&self.handler, name, revision, definition) {
            state.rebuild(&self.builtin);
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// Takes in all definitions there are as of a revision.
    pub fn observe_all<'a>(&self, revision: Revision, all: impl Iterator<Item = (&'a str, Revision, &'a Bytes)>) {
        let mut state = self.state.write();
        let mut there = Vec::new();
        for (name, modified, bytes) in all {
            state.observe(&self.handler, name, modified, Some(bytes));
            there.push(name.to_owned());
        }
        let gone: Vec<String> = state.definitions.keys().filter(|name| !there.contains(name)).cloned().collect();
        for name in gone {
            state.observe(&self.handler, &name, revision, None);
        }
        state.rebuild(&self.builtin);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Names in a group that others than this definition have, built-in kinds included.
    pub fn taken_names(&self, group: &str, name: &str) -> TakenNames {
        let mut taken = TakenNames::default();
        for d in self.builtin.iter().filter(|d| d.group == group) {
            [&d.plural, &d.singular].into_iter().chain(&d.short_names).for_each(|name| taken.take_resource(name));
            [&d.kind, &d.list_kind].into_iter().for_each(|kind| taken.take_kind(kind));
        }
        let state = self.state.read();
        for (_, other) in state.definitions.iter().filter(|(own, known)| *own != name && known.group == group) {
            taken.take_accepted(&other.names);
        }
        taken
    }

    /// How a webhook converts objects of this kind, if one does.
    pub fn webhook_conversion(&self, d: &Descriptor) -> Option<Arc<WebhookConversion>> {
        let custom = d.custom.as_ref().filter(|custom| custom.conversion_webhook.is_some())?;
        let state = self.state.read();
        let known = state.definitions.get(&*custom.definition)?;
        known.webhooks.iter().find(|(id, _)| *id == custom.id).map(|(_, conversion)| conversion.clone())
    }

    /// Ends watches of this kind: with the server, or with the definition.
    pub fn watch_stop(&self, d: &Descriptor, server: &CancellationToken) -> CancellationToken {
        let Some(custom) = &d.custom else { return server.clone() };
        let mut state = self.state.write();
        match state.definitions.get_mut(&*custom.definition).filter(|known| !known.kinds.is_empty()) {
            Some(known) => known.watches.get_or_insert_with(|| server.child_token()).clone(),
            None => {
                // Deleted since the request found it: the watch ends as it begins.
                let over = CancellationToken::new();
                over.cancel();
                over
            }
        }
    }
}

impl State {
    /// Returns whether there is anything new.
    fn observe(&mut self, handler: &HandlerCell, name: &str, revision: Revision, definition: Option<&Bytes>) -> bool {
        if self.definitions.get(name).is_some_and(|known| known.revision >= revision) {
            return false;
        }
        let parsed: Option<Value> = definition.and_then(|bytes| match serde_json::from_slice(bytes) {
            Ok(parsed) => Some(parsed),
            Err(error) => {
                tracing::error!(definition = name, %error, "stored CustomResourceDefinition cannot be parsed");
                None
            }
        });
        let mut kinds = match (&parsed, definition) {
            (Some(parsed), Some(bytes)) => kind::served(parsed, bytes).unwrap_or_else(|error| {
                tracing::error!(definition = name, %error, "CustomResourceDefinition is not served");
                Vec::new()
            }),
            _ => Vec::new(),
        };
        let webhooks = kinds.iter_mut().filter_map(|d| convert_by_webhook(handler, d)).collect();
        let parsed = parsed.unwrap_or(Value::Null);
        let mut known = KnownDefinition {
            revision,
            kinds: kinds.into_iter().map(Arc::new).collect(),
            group: parsed["spec"]["group"].as_str().unwrap_or_default().to_owned(),
            names: parsed["status"]["acceptedNames"].clone(),
            watches: None,
            webhooks,
        };
        if let Some(old) = self.definitions.remove(name) {
            match old.watches {
                Some(watches) if same_for_watches(&old.kinds, &known.kinds) => known.watches = Some(watches),
                Some(watches) => watches.cancel(),
                None => {}
            }
        }
        self.definitions.insert(name.to_owned(), known);
        true
    }

    fn rebuild(&mut self, builtin: &Registry) {
        let custom = self.definitions.values().flat_map(|known| known.kinds.iter().cloned());
        self.current = Arc::new(builtin.with_custom(custom));
    }
}

/// Whether a watch that was opened with the old kinds shows the same as one opened with the new ones: a changed schema concerns what
/// is written, not what was. Where objects are stored in another form, or a version is gone, clients have to begin anew.
fn same_for_watches(old: &[Arc<Descriptor>], new: &[Arc<Descriptor>]) -> bool {
    let form = |d: &Arc<Descriptor>| {
        let webhook = d.custom.as_ref().and_then(|custom| custom.conversion_webhook.clone());
        (d.version.clone(), d.stored_as.clone(), webhook)
    };
    !new.is_empty() && old.iter().all(|old| new.iter().any(|new| form(old) == form(new)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(kind: &str, established: bool) -> Bytes {
        let plural = format!("{}s", kind.to_lowercase());
        let names =
            json!({"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")});
        let status = if established { "True" } else { "False" };
        let schema = json!({"openAPIV3Schema": {"type": "object"}});
        Bytes::from(
            json!({
                "metadata": {"name": format!("{plural}.example.com"), "uid": "u", "generation": 1},
                "spec": {
                    "group": "example.com", "scope": "Namespaced", "names": names,
                    "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
                },
                "status": {"acceptedNames": names, "conditions": [{"type": "Established", "status": status}]},
            })
            .to_string(),
        )
    }

    #[test]
    fn the_newer_revision_wins_whichever_comes_first() {
        let served = ServedKinds::new(Registry::builtin());
        let is_served = || served.find("example.com", "v1", "foos").is_some();
        served.observe("foos.example.com", Revision(5), Some(&definition("Foo", true)));
        assert!(is_served());
        served.observe("foos.example.com", Revision(4), None);
        assert!(is_served(), "old news");
        served.observe("foos.example.com", Revision(6), None);
        served.observe("foos.example.com", Revision(5), Some(&definition("Foo", true)));
        assert!(!is_served(), "deleted at 6");
        served.observe_all(Revision(9), [("foos.example.com", Revision(8), &definition("Foo", true))].into_iter());
        assert!(is_served());
        served.observe_all(Revision(10), [].into_iter());
        assert!(!is_served());
    }

    #[test]
    fn a_built_in_kind_is_never_replaced_and_its_names_are_taken() {
        let served = ServedKinds::new(Registry::builtin());
        let taken = served.taken_names("rbac.authorization.k8s.io", "roles.rbac.authorization.k8s.io");
        let crd = json!({
            "metadata": {"name": "roles.rbac.authorization.k8s.io"},
            "spec": {"group": "rbac.authorization.k8s.io", "names": {"plural": "roles", "singular": "role", "kind": "Role", "listKind": "RoleList"}},
        });
        let status = mainstay_api::crd::status::plan(&crd, &taken, jiff::Timestamp::UNIX_EPOCH);
        let reasons: Vec<&Value> = status["conditions"].as_array().unwrap().iter().map(|c| &c["status"]).collect();
        assert_eq!(reasons[..2], ["False", "False"], "{status}");
    }

    #[test]
    fn watches_end_with_their_definition_and_not_with_a_change_of_its_schema() {
        let served = ServedKinds::new(Registry::builtin());
        let server = CancellationToken::new();
        served.observe("foos.example.com", Revision(1), Some(&definition("Foo", true)));
        let d = served.find("example.com", "v1", "foos").unwrap();
        let watch = served.watch_stop(&d, &server);
        served.observe("foos.example.com", Revision(2), Some(&definition("Foo", true)));
        assert!(!watch.is_cancelled());
        served.observe("foos.example.com", Revision(3), None);
        assert!(watch.is_cancelled());
        assert!(served.watch_stop(&d, &server).is_cancelled(), "too late");
        assert!(!server.is_cancelled());
    }
}
