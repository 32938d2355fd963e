//! `apps/v1`.

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};

use super::builder::{REPLICAS, field_or, of};
use crate::{
    descriptor::{Descriptor, NameRule, SelectableField},
    rules::apps::{ControllerRevisionRules, DaemonSetRules, DeploymentRules, ReplicaSetRules, StatefulSetRules},
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<ControllerRevision>().rules::<ControllerRevisionRules>(),
        of::<DaemonSet>().rules::<DaemonSetRules>().short("ds").category("all").status().generation(),
        of::<Deployment>()
            .rules::<DeploymentRules>()
            .short("deploy")
            .category("all")
            .status()
            .scale(REPLICAS)
            .generation(),
        of::<ReplicaSet>()
            .rules::<ReplicaSetRules>()
            .short("rs")
            .category("all")
            .status()
            .scale(REPLICAS)
            .generation()
            .select(REPLICA_SET_FIELDS),
        // Its name becomes a prefix of its pods' host names.
        of::<StatefulSet>()
            .rules::<StatefulSetRules>()
            .short("sts")
            .category("all")
            .named(NameRule::Label)
            .status()
            .scale(REPLICAS)
            .generation(),
    ]
}

const REPLICA_SET_FIELDS: &[SelectableField] = &[field_or("status.replicas", &["status", "replicas"], "0")];
