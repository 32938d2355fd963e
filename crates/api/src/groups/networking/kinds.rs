//! `networking.k8s.io/v1`.

use k8s_openapi::api::networking::v1::{IPAddress, Ingress, IngressClass, NetworkPolicy, ServiceCIDR};

use super::{
    rules::{IPAddressRules, IngressClassRules, IngressRules, NetworkPolicyRules, ServiceCIDRRules},
    table,
};
use crate::{
    descriptor::{Descriptor, NameRule},
    groups::builder::describe,
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<Ingress>()
            .rules::<IngressRules>()
            .columns(&table::INGRESSES)
            .short("ing")
            .stored_below("ingress")
            .status()
            .generation(),
        describe::<IngressClass>().rules::<IngressClassRules>().columns(&table::INGRESS_CLASSES).generation(),
        // The name is the address itself, colons included.
        describe::<IPAddress>()
            .rules::<IPAddressRules>()
            .columns(&table::IP_ADDRESSES)
            .short("ip")
            .named(NameRule::PathSegment),
        describe::<NetworkPolicy>()
            .rules::<NetworkPolicyRules>()
            .columns(&table::NETWORK_POLICIES)
            .short("netpol")
            .generation(),
        describe::<ServiceCIDR>().rules::<ServiceCIDRRules>().columns(&table::SERVICE_CIDRS).status(),
    ]
}
