//! The core group, `v1`.

use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Event, LimitRange, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    PodTemplate, ReplicationController, ResourceQuota, Secret, Service, ServiceAccount,
};

use super::builder::{REPLICAS, field, field_or, of};
use crate::{
    descriptor::{Descriptor, NameRule, SelectableField},
    table::{apps, core as table, events, generic},
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<ConfigMap>().columns(&table::CONFIG_MAPS).short("cm"),
        of::<Endpoints>().columns(&table::ENDPOINTS).short("ep").stored_below("services/endpoints"),
        of::<Event>().columns(&events::EVENTS).short("ev").named(NameRule::PathSegment).select(EVENT_FIELDS),
        of::<LimitRange>().columns(&generic::NAME_CREATED).short("limits"),
        of::<Namespace>()
            .columns(&table::NAMESPACES)
            .short("ns")
            .named(NameRule::Label)
            .status()
            .select(NAMESPACE_FIELDS),
        of::<Node>()
            .columns(&table::NODES)
            .short("no")
            .stored_below("minions")
            .status_from_create()
            .select(NODE_FIELDS),
        of::<PersistentVolume>().returns_deleted().columns(&table::PERSISTENT_VOLUMES).short("pv").status(),
        of::<PersistentVolumeClaim>().returns_deleted().columns(&table::PERSISTENT_VOLUME_CLAIMS).short("pvc").status(),
        of::<Pod>()
            .returns_deleted()
            .columns(&table::PODS)
            .short("po")
            .category("all")
            .status()
            .generation()
            .select(POD_FIELDS),
        of::<PodTemplate>().returns_deleted().columns(&table::POD_TEMPLATES).generation(),
        of::<ReplicationController>()
            .columns(&apps::REPLICATION_CONTROLLERS)
            .short("rc")
            .category("all")
            .stored_below("controllers")
            .status()
            .scale(REPLICAS)
            .generation()
            .select(REPLICATION_CONTROLLER_FIELDS),
        of::<ResourceQuota>().returns_deleted().columns(&table::RESOURCE_QUOTAS).short("quota").status(),
        of::<Secret>().columns(&table::SECRETS).select(SECRET_FIELDS),
        of::<Service>()
            .columns(&table::SERVICES)
            .short("svc")
            .category("all")
            .named(NameRule::ServiceLabel)
            .stored_below("services/specs")
            .status()
            .returns_deleted()
            .select(SERVICE_FIELDS),
        of::<ServiceAccount>().returns_deleted().columns(&table::SERVICE_ACCOUNTS).short("sa"),
    ]
}

/// `source` is upstream's label for the component that reports, wherever the event names it.
const EVENT_FIELDS: &[SelectableField] = &[
    field("involvedObject.kind", &["involvedObject", "kind"]),
    field("involvedObject.namespace", &["involvedObject", "namespace"]),
    field("involvedObject.name", &["involvedObject", "name"]),
    field("involvedObject.uid", &["involvedObject", "uid"]),
    field("involvedObject.apiVersion", &["involvedObject", "apiVersion"]),
    field("involvedObject.resourceVersion", &["involvedObject", "resourceVersion"]),
    field("involvedObject.fieldPath", &["involvedObject", "fieldPath"]),
    field("reason", &["reason"]),
    field("reportingComponent", &["reportingComponent"]),
    SelectableField { or: &["reportingComponent"], ..field("source", &["source", "component"]) },
    field("type", &["type"]),
];

const NAMESPACE_FIELDS: &[SelectableField] = &[field("status.phase", &["status", "phase"])];

const NODE_FIELDS: &[SelectableField] = &[field_or("spec.unschedulable", &["spec", "unschedulable"], "false")];

/// `spec.host` is what the oldest clients call the node.
const POD_FIELDS: &[SelectableField] = &[
    field("spec.nodeName", &["spec", "nodeName"]),
    field("spec.host", &["spec", "nodeName"]),
    field("spec.restartPolicy", &["spec", "restartPolicy"]),
    field("spec.schedulerName", &["spec", "schedulerName"]),
    field("spec.serviceAccountName", &["spec", "serviceAccountName"]),
    field_or("spec.hostNetwork", &["spec", "hostNetwork"], "false"),
    field("status.phase", &["status", "phase"]),
    field("status.podIP", &["status", "podIP"]),
    field("status.nominatedNodeName", &["status", "nominatedNodeName"]),
];

const REPLICATION_CONTROLLER_FIELDS: &[SelectableField] = &[field_or("status.replicas", &["status", "replicas"], "0")];

const SECRET_FIELDS: &[SelectableField] = &[field("type", &["type"])];

const SERVICE_FIELDS: &[SelectableField] =
    &[field("spec.clusterIP", &["spec", "clusterIP"]), field("spec.type", &["spec", "type"])];
