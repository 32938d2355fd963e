//! `kubernikus.sap.cc/v1`: Kluster, stored as `mainstay.dev/v1`.

use super::view_strategy::KlusterView;
use crate::{
    cloud::kubernikus::KubernikusKluster,
    convert,
    descriptor::{Descriptor, NameRule},
    groups::{
        builder::describe,
        mainstay::{KLUSTER_FIELDS, table},
    },
    wellknown::mainstay,
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<KubernikusKluster>()
            .strategy(KlusterView)
            .columns(&table::KLUSTERS)
            .stored_as(mainstay::API_VERSION, convert::KubernikusKluster)
            .stored_below("mainstay.dev/klusters")
            .named(NameRule::ServiceLabel)
            .status()
            .generation()
            .select(KLUSTER_FIELDS),
    ]
}
