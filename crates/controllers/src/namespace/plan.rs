//! What is deleted next in a namespace that is terminating, given its content, and what its conditions say. Pure.

use std::{collections::BTreeMap, fmt, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Namespace;

use super::conditions::{self, Obstacles};
use crate::runtime::{Plan, discovery::ServerResource};

/// In `spec.finalizers` as long as there may be content.
pub const FINALIZER: &str = "kubernetes";
/// Reconcile again after deleting; a change of the deleted objects usually comes sooner.
const AFTER_DELETING: SignedDuration = SignedDuration::from_millis(500);
/// Reconcile again while something blocks, in case no change tells.
const WHILE_BLOCKED: SignedDuration = SignedDuration::from_secs(30);
/// Reconcile again while discovery or a list fails.
const WHILE_UNSURE: SignedDuration = SignedDuration::from_secs(5);

pub struct World {
    pub namespace: Namespace,
    /// Groups that failed discovery, and why.
    pub failed_groups: Vec<(String, String)>,
    /// Resources with objects in the namespace.
    pub content: Vec<Content>,
    /// Resources that could not be listed, and why.
    pub unlisted: Vec<String>,
}

#[derive(Clone)]
pub struct Content {
    pub resource: Arc<ServerResource>,
    pub count: usize,
    /// How many of them are not being deleted yet.
    pub not_deleted: usize,
    pub finalizers: BTreeMap<String, usize>,
}

pub enum Action {
    DeleteContent { resources: Vec<Arc<ServerResource>> },
    Finalize { namespace: Box<Namespace> },
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DeleteContent { resources } => {
                f.write_str("DeleteContent ")?;
                f.debug_list().entries(resources.iter().map(|r| r.to_string())).finish()
            }
            Self::Finalize { .. } => f.write_str("Finalize"),
        }
    }
}

pub fn plan(world: &World, now: Timestamp) -> Plan<Action, NamespaceReport> {
    let unsure = !world.failed_groups.is_empty() || !world.unlisted.is_empty();
    if world.content.is_empty() && !unsure {
        return Plan::act([Action::Finalize { namespace: Box::new(finalized(&world.namespace)) }]);
    }
    let next = next_content(world);
    let resources: Vec<_> = next.iter().filter(|c| c.not_deleted > 0).map(|c| c.resource.clone()).collect();
    let deleting = !resources.is_empty();
    let report = NamespaceReport {
        namespace: world.namespace.clone(),
        failed_groups: world.failed_groups.clone(),
        unlisted: world.unlisted.clone(),
        remaining: next.into_iter().cloned().collect(),
        // What is about to be deleted blocks nothing yet: conditions name it once it has had its chance.
        only_failures: deleting && !unsure,
        now,
    };
    let pause = match (deleting, unsure) {
        (true, _) => AFTER_DELETING,
        (false, true) => WHILE_UNSURE,
        (false, false) => WHILE_BLOCKED,
    };
    let actions = if deleting { vec![Action::DeleteContent { resources }] } else { Vec::new() };
    Plan { actions, status: Some(report), requeue_at: now.checked_add(pause).ok() }
}

/// The content that goes next: pods as long as there are any, and then everything.
fn next_content(world: &World) -> Vec<&Content> {
    let pods: Vec<&Content> = world.content.iter().filter(|c| c.resource.is_named("", "pods")).collect();
    let unlisted = world.unlisted.iter().any(|failure| failure.starts_with("pods:"));
    if pods.is_empty() && !unlisted { world.content.iter().collect() } else { pods }
}

fn finalized(namespace: &Namespace) -> Namespace {
    let mut namespace = namespace.clone();
    if let Some(finalizers) = namespace.spec.as_mut().and_then(|spec| spec.finalizers.as_mut()) {
        finalizers.retain(|finalizer| finalizer != FINALIZER);
    }
    namespace
}

/// What was observed, for the conditions of the namespace.
pub struct NamespaceReport {
    namespace: Namespace,
    failed_groups: Vec<(String, String)>,
    unlisted: Vec<String>,
    remaining: Vec<Content>,
    /// Nothing is reported unless something could not be deleted.
    only_failures: bool,
    now: Timestamp,
}

impl NamespaceReport {
    /// The namespace with conditions that say what blocks, given what could not be deleted; nothing if they already do.
    pub fn with_failures(&self, failures: &[&str]) -> Option<Namespace> {
        if self.only_failures && failures.is_empty() {
            return None;
        }
        let mut finalizers = BTreeMap::new();
        for (finalizer, count) in self.remaining.iter().flat_map(|c| &c.finalizers) {
            *finalizers.entry(finalizer.as_str()).or_default() += count;
        }
        let remaining = self.remaining.iter().map(|c| (&c.resource.api, c.count));
        let obstacles = Obstacles {
            failed_groups: self.failed_groups.iter().map(|(group, why)| (group.as_str(), why.as_str())).collect(),
            failures: self.unlisted.iter().map(String::as_str).chain(failures.iter().copied()).collect(),
            remaining: remaining.map(|(api, n)| ((api.plural.as_str(), api.group.as_str()), n)).collect(),
            finalizers,
        };
        let mut namespace = self.namespace.clone();
        let status = namespace.status.get_or_insert_default();
        let conditions = status.conditions.get_or_insert_default();
        conditions::set(conditions, &obstacles.conditions(), self.now).then_some(namespace)
    }
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
        let (failed_groups, unlisted) = Default::default();
        World { namespace: namespace.unwrap(), failed_groups, content, unlisted }
    }

    fn config_maps(count: usize, not_deleted: usize, finalizers: &[(&str, usize)]) -> Content {
        content("configmaps", count, not_deleted, finalizers)
    }

    fn content(plural: &str, count: usize, not_deleted: usize, finalizers: &[(&str, usize)]) -> Content {
        let api = ApiResource {
            group: String::new(),
            version: "v1".into(),
            api_version: "v1".into(),
            kind: plural.into(),
            plural: plural.into(),
        };
        let resource = Arc::new(ServerResource { api, namespaced: true, verbs: Vec::new() });
        let finalizers = finalizers.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Content { resource, count, not_deleted, finalizers }
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

    fn deleted(plan: &Plan<Action, NamespaceReport>) -> Vec<&str> {
        match &plan.actions[..] {
            [] => Vec::new(),
            [Action::DeleteContent { resources }] => resources.iter().map(|r| r.api.plural.as_str()).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn reported(plan: &Plan<Action, NamespaceReport>, failures: &[&'static str]) -> Option<Namespace> {
        plan.status.as_ref()?.with_failures(failures)
    }

    #[test]
    fn content_is_deleted_before_conditions_name_it() {
        let plan = plan(&world(vec![config_maps(2, 1, &[])]), NOW);
        assert_eq!(deleted(&plan), ["configmaps"]);
        assert!(reported(&plan, &[]).is_none());
        assert_eq!(plan.requeue_at, Some(NOW + AFTER_DELETING));
    }

    #[test]
    fn pods_are_deleted_first_and_everything_else_waits_until_they_are_gone() {
        let terminating = content("pods", 2, 0, &[]);
        let first = plan(&world(vec![config_maps(1, 1, &[]), content("pods", 2, 2, &[])]), NOW);
        assert_eq!(deleted(&first), ["pods"]);
        let waits = plan(&world(vec![config_maps(1, 1, &[]), terminating]), NOW);
        assert_eq!(deleted(&waits), [""; 0]);
        let (status, reason, message) = condition(&reported(&waits, &[]).unwrap(), "NamespaceContentRemaining");
        assert_eq!((&*status, &*reason), ("True", "SomeResourcesRemain"));
        assert_eq!(message, "Some resources are remaining: pods. has 2 resource instances");
        let unlisted = World { unlisted: vec!["pods: no".into()], ..world(vec![config_maps(1, 1, &[])]) };
        assert_eq!(deleted(&plan(&unlisted, NOW)), [""; 0], "whether there are pods is not known");
        assert_eq!(deleted(&plan(&world(vec![config_maps(1, 1, &[])]), NOW)), ["configmaps"]);
    }

    #[test]
    fn what_stays_is_named_once() {
        let mut world = world(vec![config_maps(1, 0, &[("x/y", 1)])]);
        let first = plan(&world, NOW);
        assert!(first.actions.is_empty());
        let namespace = reported(&first, &[]).unwrap();
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
        assert!(again.actions.is_empty() && reported(&again, &[]).is_none());
    }

    #[test]
    fn a_group_that_fails_discovery_keeps_the_namespace() {
        let failed_groups = vec![("metrics.example.com/v1".to_owned(), "unavailable".to_owned())];
        let plan = plan(&World { failed_groups, ..world(vec![]) }, NOW);
        assert!(plan.actions.is_empty());
        let namespace = reported(&plan, &[]).unwrap();
        let (status, reason, message) = condition(&namespace, "NamespaceDeletionDiscoveryFailure");
        assert_eq!((&*status, &*reason), ("True", "DiscoveryFailed"));
        assert!(message.contains("metrics.example.com/v1: unavailable"), "{message}");
    }

    #[test]
    fn what_cannot_be_listed_or_deleted_keeps_the_namespace_too() {
        let unlisted = plan(&World { unlisted: vec!["pods: no".into()], ..world(vec![]) }, NOW);
        assert!(unlisted.actions.is_empty());
        let namespace = reported(&unlisted, &[]).unwrap();
        assert_eq!(condition(&namespace, "NamespaceDeletionContentFailure").1, "ContentDeletionFailed");
        let plan = plan(&world(vec![config_maps(1, 1, &[])]), NOW);
        assert_eq!(
            condition(&reported(&plan, &["configmaps: no"]).unwrap(), "NamespaceDeletionContentFailure").2,
            "Failed to delete all resource types, 1 remaining: configmaps: no"
        );
    }
}
