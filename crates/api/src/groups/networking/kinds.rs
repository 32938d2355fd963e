//! `networking.k8s.io/v1`.

use k8s_openapi::api::networking::v1::{IPAddress, Ingress, IngressClass, NetworkPolicy, ServiceCIDR};

use super::{
    rules::{IPAddressRules, IngressClassRules, IngressRules, NetworkPolicyRules, ServiceCIDRRules},
    table,
};
use crate::{
    descriptor::{Descriptor, NameRule},
    groups::builder::of,
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        of::<Ingress>()
            .rules::<IngressRules>()
            .columns(&table::INGRESSES)
            .short("ing")
            .stored_below("ingress")
            .status()
            .generation(),
        of::<IngressClass>().rules::<IngressClassRules>().columns(&table::INGRESS_CLASSES).generation(),
        // The name is the address itself, colons included.
        of::<IPAddress>()
            .rules::<IPAddressRules>()
            .columns(&table::IP_ADDRESSES)
            .short("ip")
            .named(NameRule::PathSegment),
        of::<NetworkPolicy>()
            .rules::<NetworkPolicyRules>()
            .columns(&table::NETWORK_POLICIES)
            .short("netpol")
            .generation(),
        of::<ServiceCIDR>().rules::<ServiceCIDRRules>().columns(&table::SERVICE_CIDRS).status(),
    ]
}
