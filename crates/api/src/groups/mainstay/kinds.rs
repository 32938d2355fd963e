//! `mainstay.dev/v1`: kinds of our own.

use super::{
    rules::{
        config_template::ConfigTemplateRules, machine::MachineRules, offer::OfferRules, release::ReleaseRules,
        service_table::ServiceTableRules,
    },
    table,
};
use crate::{
    config_template::ConfigTemplate,
    descriptor::{Descriptor, SelectableField, Volatile, Writer},
    groups::builder::{describe, field},
    machine::Machine,
    offer::Offer,
    release::Release,
    service_table::ServiceTable,
};

const MACHINE_FIELDS: &[SelectableField] =
    &[field("spec.version", &["spec", "version"]), field("status.version.running", &["status", "version", "running"])];

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
        describe::<Release>()
            .rules::<ReleaseRules>()
            .columns(&table::RELEASES)
            .short("rel")
            .stored_below("mainstay.dev/releases")
            .status()
            .generation(),
    ]
}
