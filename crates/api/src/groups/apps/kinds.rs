//! `apps/v1`.

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};

use super::{
    rules::{ControllerRevisionRules, DaemonSetRules, DeploymentRules, ReplicaSetRules, StatefulSetRules},
    table,
};
use crate::{
    descriptor::{Descriptor, NameRule, SelectableField},
    groups::builder::{REPLICAS, describe, field_or},
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<ControllerRevision>().rules::<ControllerRevisionRules>().columns(&table::CONTROLLER_REVISIONS),
        describe::<DaemonSet>()
            .rules::<DaemonSetRules>()
            .columns(&table::DAEMON_SETS)
            .short("ds")
            .category("all")
            .status()
            .generation(),
        describe::<Deployment>()
            .rules::<DeploymentRules>()
            .columns(&table::DEPLOYMENTS)
            .short("deploy")
            .category("all")
            .status()
            .scale(REPLICAS)
            .generation(),
        describe::<ReplicaSet>()
            .rules::<ReplicaSetRules>()
            .columns(&table::REPLICA_SETS)
            .short("rs")
            .category("all")
            .status()
            .scale(REPLICAS)
            .generation()
            .select(REPLICA_SET_FIELDS),
        // Its name becomes a prefix of its pods' host names.
        describe::<StatefulSet>()
            .rules::<StatefulSetRules>()
            .columns(&table::STATEFUL_SETS)
            .short("sts")
            .category("all")
            .named(NameRule::Label)
            .status()
            .scale(REPLICAS)
            .generation(),
    ]
}

const REPLICA_SET_FIELDS: &[SelectableField] = &[field_or("status.replicas", &["status", "replicas"], "0")];
