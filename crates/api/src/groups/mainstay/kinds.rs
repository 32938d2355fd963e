//! `mainstay.dev/v1`: kinds of our own.

use super::{
    rules::{
        cloud_resource::{CloudResourceRules, TeardownReceiptRules},
        config_template::ConfigTemplateRules,
        kluster::KlusterRules,
        machine::MachineRules,
        machine_file::MachineFileRules,
        node_pool::NodePoolRules,
        offer::OfferRules,
        release::ReleaseRules,
        service_table::ServiceTableRules,
    },
    table,
};
use crate::{
    cloud::{cloud_resource::CloudResource, kluster::Kluster, node_pool::NodePool, teardown_receipt::TeardownReceipt},
    config_template::ConfigTemplate,
    descriptor::{Descriptor, FieldPath, NameRule, Scale, SelectableField, Volatile, Writer},
    groups::builder::{describe, field, field_or},
    machine::Machine,
    machine_file::MachineFile,
    offer::Offer,
    release::Release,
    service_table::ServiceTable,
};

/// Questions about thousands of machines are about few of them. A state that nobody has reported is `pending`.
const MACHINE_FIELDS: &[SelectableField] = &[
    field("spec.version", &["spec", "version"]),
    field("status.version.running", &["status", "version", "running"]),
    field_or("status.provisioned.state", &["status", "provisioned", "state"], "pending"),
    field_or("status.seen.state", &["status", "seen", "state"], "pending"),
    field_or("status.configured.state", &["status", "configured", "state"], "pending"),
    field_or("status.validated.state", &["status", "validated", "state"], "pending"),
];

/// A node follows those that name it.
const MACHINE_FILE_FIELDS: &[SelectableField] = &[field("spec.nodeName", &["spec", "nodeName"])];
pub const KLUSTER_FIELDS: &[SelectableField] = &[field_or("status.phase", &["status", "phase"], "Pending")];
const NODE_POOL_FIELDS: &[SelectableField] = &[field("spec.kluster", &["spec", "kluster"])];
const CLOUD_RESOURCE_FIELDS: &[SelectableField] = &[
    field("spec.cloud", &["spec", "cloud"]),
    field("spec.owner.uid", &["spec", "owner", "uid"]),
    field("spec.resource", &["spec", "resource"]),
];

/// `kubectl scale nodepool` sets how many machines it has.
const NODE_POOL_SCALE: Scale = Scale {
    spec_replicas: FieldPath::Static(&["spec", "size"]),
    status_replicas: FieldPath::Static(&["status", "running"]),
    selector: None,
};

/// Kinds of groups outside Kubernetes are stored below their group's name, as upstream stores them.
pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<ConfigTemplate>()
            .rules::<ConfigTemplateRules>()
            .columns(&table::CONFIG_TEMPLATES)
            .short("cfgt")
            .status()
            .generation()
            .stored_below("mainstay.dev/configtemplates"),
        describe::<Offer>()
            .rules::<OfferRules>()
            .columns(&table::OFFERS)
            .short("of")
            .stored_below("mainstay.dev/offers")
            .volatile(Volatile::All)
            .written_by(Writer::SameNamedNode),
        describe::<ServiceTable>()
            .rules::<ServiceTableRules>()
            .columns(&table::SERVICE_TABLES)
            .stored_below("mainstay.dev/servicetables")
            .volatile(Volatile::All)
            .written_by(Writer::SameNamedNode),
        describe::<Machine>()
            .rules::<MachineRules>()
            .columns(&table::MACHINES)
            .short("mc")
            .stored_below("mainstay.dev/machines")
            .status()
            .generation()
            .select(MACHINE_FIELDS)
            .written_by(Writer::SameNamedNodeStatus),
        describe::<MachineFile>()
            .rules::<MachineFileRules>()
            .columns(&table::MACHINE_FILES)
            .short("mf")
            .stored_below("mainstay.dev/machinefiles")
            .status()
            .generation()
            .select(MACHINE_FILE_FIELDS),
        describe::<Release>()
            .rules::<ReleaseRules>()
            .columns(&table::RELEASES)
            .short("rel")
            .stored_below("mainstay.dev/releases")
            .status()
            .generation(),
        describe::<Kluster>()
            .rules::<KlusterRules>()
            .columns(&table::KLUSTERS)
            .stored_below("mainstay.dev/klusters")
            .named(NameRule::ServiceLabel)
            .status()
            .generation()
            .select(KLUSTER_FIELDS),
        describe::<NodePool>()
            .rules::<NodePoolRules>()
            .columns(&table::NODE_POOLS)
            .stored_below("mainstay.dev/nodepools")
            .status()
            .generation()
            .scale(NODE_POOL_SCALE)
            .select(NODE_POOL_FIELDS),
        describe::<CloudResource>()
            .rules::<CloudResourceRules>()
            .columns(&table::CLOUD_RESOURCES)
            .stored_below("mainstay.dev/cloudresources")
            .status()
            .select(CLOUD_RESOURCE_FIELDS),
        describe::<TeardownReceipt>()
            .rules::<TeardownReceiptRules>()
            .columns(&table::TEARDOWN_RECEIPTS)
            .stored_below("mainstay.dev/teardownreceipts")
            .status(),
    ]
}
