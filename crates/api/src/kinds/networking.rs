//! `networking.k8s.io/v1`.

use k8s_openapi::api::networking::v1::{IPAddress, Ingress, IngressClass, NetworkPolicy, ServiceCIDR};

use super::builder::of;
use crate::descriptor::{Descriptor, NameRule};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<Ingress>().short("ing").stored_below("ingress").status().generation(),
        of::<IngressClass>().generation(),
        // The name is the address itself, colons included.
        of::<IPAddress>().short("ip").named(NameRule::PathSegment),
        of::<NetworkPolicy>().short("netpol").generation(),
        of::<ServiceCIDR>().status(),
    ]
}
