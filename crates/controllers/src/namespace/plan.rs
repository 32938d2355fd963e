//! What becomes of a namespace that is being deleted, given what is in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Namespace;

use super::conditions::{self, Obstacles};
use crate::{catalogue::Resource, shell::Plan};

/// In `spec.finalizers` as long as there may be content.
pub const FINALIZER: &str = "kubernetes";
/// Look again after deleting; what is heard of the deleted objects usually comes sooner.
const AFTER_DELETING: SignedDuration = SignedDuration::from_millis(500);
/// Look again while something blocks, in case nothing is heard of it.
const WHILE_BLOCKED: SignedDuration = SignedDuration::from_secs(30);
/// Look again while the server does not answer for some groups.
const WHILE_UNSURE: SignedDuration = SignedDuration::from_secs(5);

pub struct World {
    pub namespace: Namespace,
    /// Groups that did not say which resources they have, and why.
    pub silent: Vec<(String, String)>,
    /// Resources with objects in the namespace.
    pub content: Vec<Content>,
    /// Resources that could not be listed, and why.
    pub unlisted: Vec<String>,
    /// Resources that could not be deleted the last time, and why.
    pub undeletable: BTreeSet<String>,
}

pub struct Content {
    pub resource: Arc<Resource>,
    pub count: usize,
    /// How many of them are not being deleted yet.
    pub fresh: usize,
    pub finalizers: BTreeMap<String, usize>,
}

pub enum Action {
    Empty { resources: Vec<Arc<Resource>> },
    Finalize { namespace: Box<Namespace> },
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { resources } => f.debug_list().entries(resources.iter().map(|r| r.to_string())).finish(),
            Self::Finalize { .. } => f.write_str("Finalize"),
        }
    }
}

pub fn plan(world: &World, now: Timestamp) -> Plan<Action, Namespace> {
    let unsure = !world.silent.is_empty() || !world.unlisted.is_empty();
    if world.content.is_empty() && !unsure {
        return Plan::act([Action::Finalize { namespace: Box::new(finalized(&world.namespace)) }]);
    }
    let fresh: Vec<_> = world.content.iter().filter(|c| c.fresh > 0).map(|c| c.resource.clone()).collect();
    let deleting = !fresh.is_empty();
    let failed = unsure || (deleting && !world.undeletable.is_empty());
    // What is about to be deleted blocks nothing yet: say so only once it has had its chance.
    let status = (!deleting || failed).then(|| reported(world, now)).flatten();
    let pause = match (deleting, unsure) {
        (true, _) => AFTER_DELETING,
        (false, true) => WHILE_UNSURE,
        (false, false) => WHILE_BLOCKED,
    };
    let actions = if deleting { vec![Action::Empty { resources: fresh }] } else { Vec::new() };
    Plan { actions, status, wake_at: now.checked_add(pause).ok() }
}

fn finalized(namespace: &Namespace) -> Namespace {
    let mut namespace = namespace.clone();
    if let Some(finalizers) = namespace.spec.as_mut().and_then(|spec| spec.finalizers.as_mut()) {
        finalizers.retain(|finalizer| finalizer != FINALIZER);
    }
    namespace
}

/// The namespace with conditions that say what blocks; nothing if they already do.
fn reported(world: &World, now: Timestamp) -> Option<Namespace> {
    let mut finalizers = BTreeMap::new();
    for (finalizer, count) in world.content.iter().flat_map(|c| &c.finalizers) {
        *finalizers.entry(finalizer.as_str()).or_default() += count;
    }
    let remaining = world.content.iter().map(|c| (&*c.resource, c.count));
    // What could not be deleted the last time is history once it is being deleted.
    let undeletable = world.undeletable.iter().filter(|_| world.content.iter().any(|c| c.fresh > 0));
    let failures = world.unlisted.iter().chain(undeletable).map(String::as_str);
    let obstacles = Obstacles {
        silent: world.silent.iter().map(|(group, why)| (group.as_str(), why.as_str())).collect(),
        failures: failures.collect(),
        remaining: remaining.map(|(r, n)| ((r.api.plural.as_str(), r.api.group.as_str()), n)).collect(),
        finalizers,
    };
    let mut namespace = world.namespace.clone();
    let status = namespace.status.get_or_insert_default();
    let changed = conditions::set(status.conditions.get_or_insert_default(), &obstacles.conditions(), now);
    changed.then_some(namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::api::ApiResource;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn world(content: Vec<Content>) -> World {
        let namespace = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "n", "deletionTimestamp": "1970-01-01T00:00:00Z"},
            "spec": {"finalizers": ["kubernetes", "example.com/other"]},
        }));
        let (silent, unlisted, undeletable) = Default::default();
        World { namespace: namespace.unwrap(), silent, content, unlisted, undeletable }
    }

    fn config_maps(count: usize, fresh: usize, finalizers: &[(&str, usize)]) -> Content {
        let api = ApiResource {
            group: String::new(),
            version: "v1".into(),
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            plural: "configmaps".into(),
        };
        let resource = Arc::new(Resource { api, namespaced: true, verbs: Vec::new() });
        let finalizers = finalizers.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Content { resource, count, fresh, finalizers }
    }

    fn condition(namespace: &Namespace, kind: &str) -> (String, String, String) {
        let conditions = namespace.status.as_ref().unwrap().conditions.as_ref().unwrap();
        let found = conditions.iter().find(|c| c.type_ == kind).unwrap();
        (found.status.clone(), found.reason.clone().unwrap(), found.message.clone().unwrap())
    }

    #[test]
    fn an_empty_namespace_loses_our_finalizer_and_no_other() {
        let plan = plan(&world(vec![]), NOW);
        let [Action::Finalize { namespace }] = &plan.actions[..] else { panic!("{:?}", plan.actions) };
        assert_eq!(namespace.spec.as_ref().unwrap().finalizers, Some(vec!["example.com/other".to_owned()]));
    }

    #[test]
    fn content_is_deleted_before_anything_is_said_about_it() {
        let plan = plan(&world(vec![config_maps(2, 1, &[])]), NOW);
        assert!(matches!(&plan.actions[..], [Action::Empty { resources }] if resources.len() == 1));
        assert!(plan.status.is_none());
        assert_eq!(plan.wake_at, Some(NOW + AFTER_DELETING));
    }

    #[test]
    fn what_stays_is_named_once() {
        let mut world = world(vec![config_maps(1, 0, &[("x/y", 1)])]);
        let first = plan(&world, NOW);
        assert!(first.actions.is_empty());
        let namespace = first.status.unwrap();
        let expected = |status: &str, reason: &str, message: &str| (status.into(), reason.into(), message.into());
        assert_eq!(
            condition(&namespace, "NamespaceContentRemaining"),
            expected(
                "True",
                "SomeResourcesRemain",
                "Some resources are remaining: configmaps. has 1 resource instances"
            )
        );
        assert_eq!(
            condition(&namespace, "NamespaceFinalizersRemaining"),
            expected(
                "True",
                "SomeFinalizersRemain",
                "Some content in the namespace has finalizers remaining: x/y in 1 resource instances"
            )
        );
        assert_eq!(condition(&namespace, "NamespaceDeletionContentFailure").0, "False");
        world.namespace = namespace;
        let again = plan(&world, NOW);
        assert!(again.actions.is_empty() && again.status.is_none());
    }

    #[test]
    fn a_group_that_does_not_answer_keeps_the_namespace() {
        let silent = vec![("metrics.example.com/v1".to_owned(), "unavailable".to_owned())];
        let plan = plan(&World { silent, ..world(vec![]) }, NOW);
        assert!(plan.actions.is_empty());
        let (status, reason, message) = condition(&plan.status.unwrap(), "NamespaceDeletionDiscoveryFailure");
        assert_eq!((&*status, &*reason), ("True", "DiscoveryFailed"));
        assert!(message.contains("metrics.example.com/v1: unavailable"), "{message}");
    }

    #[test]
    fn what_cannot_be_listed_or_deleted_keeps_the_namespace_too() {
        let unlisted = plan(&World { unlisted: vec!["pods: no".into()], ..world(vec![]) }, NOW);
        assert!(unlisted.actions.is_empty());
        assert_eq!(condition(&unlisted.status.unwrap(), "NamespaceDeletionContentFailure").1, "ContentDeletionFailed");
        let undeletable = ["configmaps: no".to_owned()].into();
        let plan = plan(&World { undeletable, ..world(vec![config_maps(1, 1, &[])]) }, NOW);
        assert_eq!(plan.actions.len(), 1);
        assert_eq!(
            condition(&plan.status.unwrap(), "NamespaceDeletionContentFailure").2,
            "Failed to delete all resource types, 1 remaining: configmaps: no"
        );
    }
}
