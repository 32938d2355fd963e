//! `mainstay.dev/v1`: kinds of our own.

use super::{
    rules::{config_template::ConfigTemplateRules, offer::OfferRules, service_table::ServiceTableRules},
    table,
};
use crate::{
    config_template::ConfigTemplate,
    descriptor::{Descriptor, Volatile, Writer},
    groups::builder::describe,
    offer::Offer,
    service_table::ServiceTable,
};

/// Kinds of groups outside Kubernetes are stored below their group's name, as upstream stores them.
pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<ConfigTemplate>()
            .rules::<ConfigTemplateRules>()
            .columns(&table::CONFIG_TEMPLATES)
            .short("ct")
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
    ]
}
