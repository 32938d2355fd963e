//! Migrations of Klusters: numbered steps that bring an object that an older version wrote to what this one expects.
//!
//! `status.specVersion` is the last step that was done. Steps are done one at a time and in order; one that fails is tried again, and no later
//! one is done before it. Until all are done, `status.migrationsPending` is set and nothing else happens to the Kluster. A new Kluster needs none.

use mainstay_api::cloud::kluster::{ACCOUNT_LABEL, GROUND_FINALIZER, Kluster, KlusterPhase, SECURITY_GROUP};
use serde_json::{Value, json};

pub struct Migration {
    pub number: i64,
    /// What it does, for events.
    pub title: &'static str,
    /// A merge patch of metadata and spec; nothing if the object is as it should be.
    pub patch: fn(&Kluster) -> Option<Value>,
}

pub const MIGRATIONS: [Migration; 2] = [
    Migration { number: 1, title: "label the Kluster with its project", patch: label_account },
    Migration { number: 2, title: "name the security group in the spec", patch: name_security_group },
];

pub const LATEST: i64 = 2;

/// The step that a Kluster needs next.
pub fn next(kluster: &Kluster) -> Option<&'static Migration> {
    let done = kluster.status.as_ref().and_then(|status| status.spec_version);
    let done = match done {
        Some(done) => done,
        None if is_new(kluster) => LATEST,
        None => 0,
    };
    MIGRATIONS.iter().find(|step| step.number > done)
}

/// Nothing was done for it yet.
pub fn is_new(kluster: &Kluster) -> bool {
    kluster.phase() == KlusterPhase::Pending && !kluster.has_finalizer(GROUND_FINALIZER)
}

/// Klusters are found by the label of their project; those that were not made by the façade may lack it.
fn label_account(kluster: &Kluster) -> Option<Value> {
    let project = &kluster.spec.openstack.project_id;
    let label = kluster.metadata.labels.as_ref().and_then(|labels| labels.get(ACCOUNT_LABEL));
    (!project.is_empty() && label.is_none()).then(|| json!({"metadata": {"labels": {ACCOUNT_LABEL: project}}}))
}

/// Which one is meant no longer depends on the version that reads it.
fn name_security_group(kluster: &Kluster) -> Option<Value> {
    let is_unnamed = kluster.spec.openstack.security_group_name.is_empty() && !kluster.spec.no_cloud;
    is_unnamed.then(|| json!({"spec": {"openstack": {"securityGroupName": SECURITY_GROUP}}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kluster(object: Value) -> Kluster {
        let mut base =
            json!({"apiVersion": "mainstay.dev/v1", "kind": "Kluster", "metadata": {"name": "k"}, "spec": {}});
        for (field, value) in object.as_object().into_iter().flatten() {
            base[field] = value.clone();
        }
        serde_json::from_value(base).expect("a Kluster")
    }

    #[test]
    fn numbers_are_in_order_and_end_with_the_latest() {
        let numbers: Vec<i64> = MIGRATIONS.iter().map(|step| step.number).collect();
        assert_eq!(numbers, (1..=LATEST).collect::<Vec<_>>());
    }

    #[test]
    fn an_old_object_takes_one_step_after_the_other() {
        let with = |version: Option<i64>| kluster(json!({"status": {"phase": "Running", "specVersion": version}}));
        assert_eq!(next(&with(None)).map(|step| step.number), Some(1));
        assert_eq!(next(&with(Some(1))).map(|step| step.number), Some(2));
        assert_eq!(next(&with(Some(2))).map(|step| step.number), None);
        assert_eq!(next(&with(Some(99))).map(|step| step.number), None, "a newer version wrote it");
        assert_eq!(next(&kluster(json!({}))).map(|step| step.number), None, "a new one");
    }

    #[test]
    fn a_step_changes_what_is_missing_alone() {
        let spec = json!({"openstack": {"projectID": "p"}});
        let plain = kluster(json!({"spec": spec}));
        assert_eq!(label_account(&plain), Some(json!({"metadata": {"labels": {"account": "p"}}})));
        let labelled = kluster(json!({"metadata": {"name": "k", "labels": {"account": "q"}}, "spec": spec}));
        assert_eq!(label_account(&labelled), None);
        assert!(name_security_group(&plain).is_some());
        let named = kluster(json!({"spec": {"openstack": {"securityGroupName": "x"}}}));
        assert_eq!(name_security_group(&named), None);
    }
}
