//! `events.k8s.io/v1`: the newer form of the core group's events, stored as `v1`.

use k8s_openapi::api::events::v1::Event;

use super::table;
use crate::{
    convert::NewEvent,
    descriptor::{Descriptor, SelectableField},
    groups::builder::{describe, field},
};

pub fn kinds() -> Vec<Descriptor> {
    vec![describe::<Event>().columns(&table::NEW_EVENTS).short("ev").stored_as("v1", NewEvent).select(FIELDS)]
}

/// The names of this version, as upstream has it: `regarding.name`, not `involvedObject.name`.
const FIELDS: &[SelectableField] = &[
    field("regarding.kind", &["regarding", "kind"]),
    field("regarding.namespace", &["regarding", "namespace"]),
    field("regarding.name", &["regarding", "name"]),
    field("regarding.uid", &["regarding", "uid"]),
    field("regarding.apiVersion", &["regarding", "apiVersion"]),
    field("regarding.resourceVersion", &["regarding", "resourceVersion"]),
    field("regarding.fieldPath", &["regarding", "fieldPath"]),
    field("reason", &["reason"]),
    field("reportingController", &["reportingController"]),
    field("type", &["type"]),
];
