//! `mainstay.dev/v1`: kinds of our own.

use super::builder::of;
use crate::{
    descriptor::Descriptor,
    offer::Offer,
    rules::{offer::OfferRules, service_table::ServiceTableRules},
    service_table::ServiceTable,
    table::mainstay as table,
};

/// Kinds of groups outside Kubernetes are stored below their group's name, as upstream stores them.
pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<Offer>().rules::<OfferRules>().columns(&table::OFFERS).short("of").stored_below("mainstay.dev/offers"),
        of::<ServiceTable>()
            .rules::<ServiceTableRules>()
            .columns(&table::SERVICE_TABLES)
            .stored_below("mainstay.dev/servicetables"),
    ]
}
