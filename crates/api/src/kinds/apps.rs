//! `apps/v1`.

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};

use super::builder::{REPLICAS, field_or, of};
use crate::descriptor::{Descriptor, NameRule, SelectableField};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<ControllerRevision>(),
        of::<DaemonSet>().short("ds").category("all").status().generation(),
        of::<Deployment>().short("deploy").category("all").status().scale(REPLICAS).generation(),
        of::<ReplicaSet>().short("rs").category("all").status().scale(REPLICAS).generation().select(REPLICA_SET_FIELDS),
        // Its name becomes a prefix of its pods' host names.
        of::<StatefulSet>().short("sts").category("all").named(NameRule::Label).status().scale(REPLICAS).generation(),
    ]
}

const REPLICA_SET_FIELDS: &[SelectableField] = &[field_or("status.replicas", &["status", "replicas"], "0")];
