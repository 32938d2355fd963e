//! The core group, `v1`.

use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Event, LimitRange, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    PodTemplate, ReplicationController, ResourceQuota, Secret, Service, ServiceAccount,
};

use super::{
    rules::{
        config_map::ConfigMaps, endpoints::EndpointsRules, event::EventRules, limit_range::LimitRangeRules,
        namespace::NamespaceRules, node::NodeRules, persistent_volume::PersistentVolumeRules,
        persistent_volume_claim::PersistentVolumeClaimRules, pod::PodRules, pod_template::PodTemplateRules,
        replication_controller::ReplicationControllerRules, resource_quota::ResourceQuotaRules, secret::SecretRules,
        service::ServiceRules, service_account::ServiceAccountRules,
    },
    table,
};
use crate::{
    descriptor::{Descriptor, NameRule, SelectableField, Subresource},
    groups::{
        apps::table as apps,
        builder::{REPLICAS, describe, field, field_or, field_or_field},
        events::table as events,
    },
    table::generic,
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<ConfigMap>().strategy(ConfigMaps).columns(&table::CONFIG_MAPS).short("cm"),
        describe::<Endpoints>()
            .rules::<EndpointsRules>()
            .columns(&table::ENDPOINTS)
            .short("ep")
            .stored_below("services/endpoints"),
        describe::<Event>()
            .rules::<EventRules>()
            .columns(&events::EVENTS)
            .short("ev")
            .named(NameRule::PathSegment)
            .select(EVENT_FIELDS),
        describe::<LimitRange>().rules::<LimitRangeRules>().columns(&generic::NAME_CREATED).short("limits"),
        describe::<Namespace>()
            .rules::<NamespaceRules>()
            .columns(&table::NAMESPACES)
            .short("ns")
            .named(NameRule::Label)
            .status()
            .subresources(&[Subresource::Finalize])
            .no_delete_collection()
            .select(NAMESPACE_FIELDS),
        describe::<Node>()
            .rules::<NodeRules>()
            .columns(&table::NODES)
            .short("no")
            .stored_below("minions")
            .status_from_create()
            .subresources(&[Subresource::Proxy])
            .select(NODE_FIELDS),
        describe::<PersistentVolume>()
            .rules::<PersistentVolumeRules>()
            .returns_deleted()
            .columns(&table::PERSISTENT_VOLUMES)
            .short("pv")
            .status(),
        describe::<PersistentVolumeClaim>()
            .rules::<PersistentVolumeClaimRules>()
            .returns_deleted()
            .columns(&table::PERSISTENT_VOLUME_CLAIMS)
            .short("pvc")
            .status(),
        describe::<Pod>()
            .rules::<PodRules>()
            .returns_deleted()
            .columns(&table::PODS)
            .short("po")
            .category("all")
            .status()
            .subresources(POD_SUBRESOURCES)
            .graceful_deletion()
            .generation()
            .select(POD_FIELDS),
        describe::<PodTemplate>()
            .rules::<PodTemplateRules>()
            .returns_deleted()
            .columns(&table::POD_TEMPLATES)
            .generation(),
        describe::<ReplicationController>()
            .orphans_by_default()
            .rules::<ReplicationControllerRules>()
            .columns(&apps::REPLICATION_CONTROLLERS)
            .short("rc")
            .category("all")
            .stored_below("controllers")
            .status()
            .scale(REPLICAS)
            .generation()
            .select(REPLICATION_CONTROLLER_FIELDS),
        describe::<ResourceQuota>()
            .rules::<ResourceQuotaRules>()
            .returns_deleted()
            .columns(&table::RESOURCE_QUOTAS)
            .short("quota")
            .status(),
        describe::<Secret>().rules::<SecretRules>().columns(&table::SECRETS).encrypted_at_rest().select(SECRET_FIELDS),
        describe::<Service>()
            .rules::<ServiceRules>()
            .columns(&table::SERVICES)
            .short("svc")
            .category("all")
            .named(NameRule::ServiceLabel)
            .stored_below("services/specs")
            .status()
            .subresources(&[Subresource::Proxy])
            .returns_deleted()
            .select(SERVICE_FIELDS),
        describe::<ServiceAccount>()
            .rules::<ServiceAccountRules>()
            .returns_deleted()
            .columns(&table::SERVICE_ACCOUNTS)
            .short("sa")
            .subresources(&[Subresource::Token]),
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
    field_or_field("source", &["source", "component"], &["reportingComponent"]),
    field("type", &["type"]),
];

const NAMESPACE_FIELDS: &[SelectableField] = &[field("status.phase", &["status", "phase"])];

const NODE_FIELDS: &[SelectableField] = &[field_or("spec.unschedulable", &["spec", "unschedulable"], "false")];

const POD_SUBRESOURCES: &[Subresource] = &[
    Subresource::Attach,
    Subresource::Binding,
    Subresource::EphemeralContainers,
    Subresource::Eviction,
    Subresource::Exec,
    Subresource::Log,
    Subresource::PortForward,
    Subresource::Proxy,
    Subresource::Refusal,
    Subresource::Resize,
];

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
