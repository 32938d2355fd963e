//! `networking.k8s.io/v1`.

use k8s_openapi::api::networking::v1::{IPAddress, Ingress, IngressClass, NetworkPolicy, ServiceCIDR};

use super::builder::of;
use crate::{
    descriptor::{Descriptor, NameRule},
    table::networking as table,
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<Ingress>().columns(&table::INGRESSES).short("ing").stored_below("ingress").status().generation(),
        of::<IngressClass>().columns(&table::INGRESS_CLASSES).generation(),
        // The name is the address itself, colons included.
        of::<IPAddress>().columns(&table::IP_ADDRESSES).short("ip").named(NameRule::PathSegment),
        of::<NetworkPolicy>().columns(&table::NETWORK_POLICIES).short("netpol").generation(),
        of::<ServiceCIDR>().columns(&table::SERVICE_CIDRS).status(),
    ]
}
