//! A StatefulSet as its plan sees it: its spec with everything defaulted.

use k8s_openapi::{api::apps::v1::StatefulSet, apimachinery::pkg::util::intstr::IntOrString};

use mainstay_api::wellknown::mainstay::REPLACE_UNREADY;

pub type Ordinal = i64;

/// Pods that one reconcile creates.
const BURST: Ordinal = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    pub name: String,
    pub generation: Option<i64>,
    pub start: Ordinal,
    pub replicas: i64,
    pub order: Order,
    pub update: Update,
    pub min_ready: i32,
    pub retention: Retention,
    /// Names of the templates of claims.
    pub claims: Vec<String>,
    /// Old revisions to keep.
    pub history: i32,
    /// Pods that are outdated and not ready are replaced without waiting for them (`mainstay.dev/replace-unready`).
    pub replace_unready: bool,
    /// Being deleted.
    pub leaving: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each pod waits for those before it, and goes after those behind it.
    OrderedReady,
    Parallel,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// Pods change when someone else deletes them.
    OnDelete,
    Rolling {
        /// Ordinals before it, counted from the first, stay as they are.
        partition: i64,
        /// One by default; if it is set, all pods count that are not available, not only those that change.
        unavailable: Option<IntOrString>,
    },
}

/// What becomes of claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// They go with the set.
    pub with_set: bool,
    /// They go with a pod that is scaled away.
    pub with_pod: bool,
}

impl Desired {
    pub fn from_set(set: &StatefulSet) -> Self {
        let spec = &set.spec;
        let strategy = spec.update_strategy.as_ref();
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let update = match strategy.and_then(|strategy| strategy.type_.as_deref()) {
            Some("OnDelete") => Update::OnDelete,
            _ => Update::Rolling {
                partition: rolling.and_then(|rolling| rolling.partition).unwrap_or(0).into(),
                unavailable: rolling.and_then(|rolling| rolling.max_unavailable.clone()),
            },
        };
        let retention = spec.persistent_volume_claim_retention_policy.as_ref();
        let deletes = |policy: Option<&String>| policy.is_some_and(|policy| policy == "Delete");
        let claims = spec.volume_claim_templates.iter().flatten();
        Self {
            name: set.metadata.name.clone().unwrap_or_default(),
            generation: set.metadata.generation,
            start: spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0).into(),
            replicas: spec.replicas.unwrap_or(1).into(),
            order: match spec.pod_management_policy.as_deref() {
                Some("Parallel") => Order::Parallel,
                _ => Order::OrderedReady,
            },
            update,
            min_ready: spec.min_ready_seconds.unwrap_or(0),
            retention: Retention {
                with_set: deletes(retention.and_then(|retention| retention.when_deleted.as_ref())),
                with_pod: deletes(retention.and_then(|retention| retention.when_scaled.as_ref())),
            },
            claims: claims.map(|claim| claim.metadata.name.clone().unwrap_or_default()).collect(),
            history: spec.revision_history_limit.unwrap_or(10),
            replace_unready: set
                .metadata
                .annotations
                .as_ref()
                .and_then(|annotations| annotations.get(REPLACE_UNREADY))
                .is_some_and(|value| value == "true"),
            leaving: set.metadata.deletion_timestamp.is_some(),
        }
    }

    pub fn ordinals(&self) -> std::ops::Range<Ordinal> {
        self.start..self.start.saturating_add(self.replicas)
    }

    /// The ordinals to look at where so many pods are there: however many are wanted, a reconcile creates only some.
    pub fn within_reach(&self, there: usize) -> std::ops::Range<Ordinal> {
        let reach = self.start.saturating_add(Ordinal::try_from(there).unwrap_or(Ordinal::MAX)).saturating_add(BURST);
        self.start..self.ordinals().end.min(reach)
    }

    pub fn pod(&self, ordinal: Ordinal) -> String {
        format!("{}-{ordinal}", self.name)
    }

    pub fn claim(&self, template: &str, ordinal: Ordinal) -> String {
        format!("{template}-{}-{ordinal}", self.name)
    }

    pub fn claims_of(&self, ordinal: Ordinal) -> impl Iterator<Item = String> {
        self.claims.iter().map(move |template| self.claim(template, ordinal))
    }

    /// The ordinal of a pod by its name, if it is such a name.
    pub fn ordinal(&self, pod: &str) -> Option<Ordinal> {
        let digits = pod.strip_prefix(&self.name)?.strip_prefix('-')?;
        let plain = digits == "0" || !digits.starts_with('0');
        let ordinal: i32 = digits.parse().ok().filter(|_| plain && digits.bytes().all(|b| b.is_ascii_digit()))?;
        Some(ordinal.into())
    }

    /// Ordinals that keep the old revision.
    pub fn is_held_back(&self, ordinal: Ordinal) -> bool {
        match self.update {
            Update::OnDelete => false,
            Update::Rolling { partition, .. } => ordinal < self.start.saturating_add(partition),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn desired(spec: serde_json::Value) -> Desired {
        let set = json!({ "metadata": { "name": "web" }, "spec": spec });
        Desired::from_set(&serde_json::from_value(set).unwrap())
    }

    #[test]
    fn pods_are_known_by_their_names() {
        let web = desired(json!({ "selector": {}, "template": {} }));
        for (name, ordinal) in [
            ("web-0", Some(0)),
            ("web-12", Some(12)),
            ("web-01", None),
            ("web-", None),
            ("web--1", None),
            ("web-+1", None),
            ("web-a-1", None),
            ("db-1", None),
            ("web-99999999999", None),
        ] {
            assert_eq!(web.ordinal(name), ordinal, "{name}");
        }
        assert_eq!(web.claim("data", 3), "data-web-3");
    }

    #[test]
    fn a_reconcile_looks_no_further_than_it_can_reach() {
        let web = desired(json!({ "selector": {}, "template": {}, "replicas": i32::MAX, "ordinals": { "start": 3 } }));
        assert_eq!(web.within_reach(7), 3..210);
        let web = desired(json!({ "selector": {}, "template": {}, "replicas": 2 }));
        assert_eq!(web.within_reach(7), 0..2);
    }

    #[test]
    fn ordinals_and_partitions_begin_where_the_set_says() {
        let web = desired(json!({
            "selector": {}, "template": {}, "replicas": 3, "ordinals": { "start": 5 },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": 2 } },
        }));
        assert_eq!(web.ordinals(), 5..8);
        let held: Vec<bool> = web.ordinals().map(|ordinal| web.is_held_back(ordinal)).collect();
        assert_eq!(held, [true, true, false]);
    }
}
