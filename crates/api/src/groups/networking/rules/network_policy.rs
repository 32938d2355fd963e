//! NetworkPolicy.

use k8s_openapi::{
    api::networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec},
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::{
    field::{Errors, FieldError, Path},
    ports::{SCTP, TCP, UDP},
    strategy::Rules,
    validation::{
        check::{self, fill, list, one_of, optional_one_of},
        labels, names,
    },
};

pub struct NetworkPolicyRules;

impl Rules for NetworkPolicyRules {
    type Object = NetworkPolicy;

    fn default(object: &mut NetworkPolicy) {
        let spec = object.spec.get_or_insert_default();
        spec.pod_selector.get_or_insert_default();
        let ingress = spec.ingress.iter_mut().flatten().flat_map(|rule| rule.ports.iter_mut().flatten());
        let egress = spec.egress.iter_mut().flatten().flat_map(|rule| rule.ports.iter_mut().flatten());
        for port in ingress.chain(egress) {
            fill(&mut port.protocol, TCP);
        }
        if list(&spec.policy_types).is_empty() {
            let egress = (!list(&spec.egress).is_empty()).then_some("Egress");
            spec.policy_types = Some(["Ingress"].into_iter().chain(egress).map(str::to_owned).collect());
        }
    }

    fn validate(object: &NetworkPolicy, errors: &mut Errors) {
        if let Some(spec) = &object.spec {
            validate_spec(spec, &Path::new("spec"), errors);
        }
    }
}

fn validate_spec(spec: &NetworkPolicySpec, path: &Path, errors: &mut Errors) {
    if let Some(selector) = &spec.pod_selector {
        labels::validate_selector(selector, &path.child("podSelector"), errors);
    }
    for (i, rule) in list(&spec.ingress).iter().enumerate() {
        let path = path.child("ingress").index(i);
        validate_ports(list(&rule.ports), &path.child("ports"), errors);
        validate_peers(list(&rule.from), &path.child("from"), errors);
    }
    for (i, rule) in list(&spec.egress).iter().enumerate() {
        let path = path.child("egress").index(i);
        validate_ports(list(&rule.ports), &path.child("ports"), errors);
        validate_peers(list(&rule.to), &path.child("to"), errors);
    }
    let (types, path) = (list(&spec.policy_types), path.child("policyTypes"));
    if types.len() > 2 {
        errors.push(FieldError::too_many(&path, types.len(), 2));
        return;
    }
    for (i, policy_type) in types.iter().enumerate() {
        one_of(policy_type, &["Ingress", "Egress"], &path.index(i), errors);
    }
}

fn validate_ports(ports: &[NetworkPolicyPort], path: &Path, errors: &mut Errors) {
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        optional_one_of(&port.protocol, &[TCP, UDP, SCTP], &path.child("protocol"), errors);
        if let Some(number) = &port.port {
            check::port(number, &path.child("port"), errors);
        }
        validate_end_port(port, &path.child("endPort"), errors);
    }
}

fn validate_end_port(port: &NetworkPolicyPort, path: &Path, errors: &mut Errors) {
    let Some(end) = port.end_port else { return };
    let mut refuse = |value: i32, words: &str| errors.push(FieldError::invalid(path, value, words));
    match &port.port {
        None => refuse(end, "may not be specified when `port` is not specified"),
        Some(IntOrString::String(_)) => refuse(end, "may not be specified when `port` is non-numeric"),
        Some(IntOrString::Int(start)) => {
            if end < *start {
                refuse(*start, "must be greater than or equal to `port`");
            }
            if end < 1 {
                refuse(end, "must be greater than or equal to 1");
            } else if end > 65535 {
                refuse(end, "must be less than or equal to 65535");
            }
        }
    }
}

fn validate_peers(peers: &[NetworkPolicyPeer], path: &Path, errors: &mut Errors) {
    for (i, peer) in peers.iter().enumerate() {
        let path = path.index(i);
        let selectors = [("podSelector", &peer.pod_selector), ("namespaceSelector", &peer.namespace_selector)];
        let mut selected = false;
        for (name, selector) in selectors {
            if let Some(selector) = selector {
                selected = true;
                labels::validate_selector(selector, &path.child(name), errors);
            }
        }
        match (&peer.ip_block, selected) {
            (None, true) => {}
            (None, false) => errors.push(FieldError::required(&path, "must specify a peer")),
            (Some(block), _) => {
                validate_block(block, &path.child("ipBlock"), errors);
                if selected {
                    errors.push(FieldError::forbidden(&path, "may not specify both ipBlock and another peer"));
                }
            }
        }
    }
}

fn validate_block(block: &IPBlock, path: &Path, errors: &mut Errors) {
    names::require(&block.cidr, &path.child("cidr"), names::cidr, errors);
    let Some(whole) = names::parse_cidr(&block.cidr) else { return };
    for (i, except) in list(&block.except).iter().enumerate() {
        let path = path.child("except").index(i);
        names::refuse(except, &path, names::cidr, errors);
        if let Some(part) = names::parse_cidr(except)
            && !is_strictly_within(part, whole)
        {
            errors.push(FieldError::invalid(&path, except.as_str(), "must be a strict subset of `cidr`"));
        }
    }
}

type Range = (std::net::IpAddr, u8);

fn is_strictly_within((part, part_bits): Range, (whole, whole_bits): Range) -> bool {
    use std::net::IpAddr::{V4, V6};
    let within = |part: u128, whole: u128, width: u32| {
        let host_bits = width.saturating_sub(whole_bits.into());
        part.checked_shr(host_bits).unwrap_or(0) == whole.checked_shr(host_bits).unwrap_or(0)
    };
    let inside = match (part, whole) {
        (V4(part), V4(whole)) => within(part.to_bits().into(), whole.to_bits().into(), 32),
        (V6(part), V6(whole)) => within(part.to_bits(), whole.to_bits(), 128),
        _ => false,
    };
    inside && part_bits > whole_bits
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, with};

    fn policy() -> Value {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "deny"}, "spec": {},
        })
    }

    #[test]
    fn the_types_follow_from_the_rules() {
        assert_completes::<NetworkPolicyRules>(
            policy(),
            with(&policy(), json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}})),
        );
        assert_completes::<NetworkPolicyRules>(
            with(&policy(), json!({"spec": {"egress": [{"ports": [{"port": 53}]}]}})),
            with(
                &policy(),
                json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
                                "egress": [{"ports": [{"port": 53, "protocol": "TCP"}]}]}}),
            ),
        );
    }

    #[test]
    fn bad_policies_are_refused_with_upstreams_messages() {
        let block = |cidr: &str, except: &str| json!({"ingress": [{"from": [{"ipBlock": {"cidr": cidr, "except": [except]}}]}]});
        let outside = r#"spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: "10.1.0.0/16": must be a strict subset of `cidr`"#;
        let cases: &[(Value, &[&str])] = &[
            (block("10.0.0.0/8", "10.1.0.0/16"), &[]),
            (block("10.1.0.0/16", "10.1.0.0/16"), &[outside]),
            (block("192.168.0.0/8", "10.1.0.0/16"), &[outside]),
            (block("0.0.0.0/0", "10.1.0.0/16"), &[]),
            (
                json!({"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0"}}]}]}),
                &[
                    r#"spec.ingress[0].from[0].ipBlock.cidr: Invalid value: "10.0.0.0": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"#,
                ],
            ),
            (json!({"ingress": [{"from": [{}]}]}), &["spec.ingress[0].from[0]: Required value: must specify a peer"]),
            (
                json!({"egress": [{"to": [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]}]}),
                &["spec.egress[0].to[0]: Forbidden: may not specify both ipBlock and another peer"],
            ),
            (
                json!({"egress": [{"ports": [{"endPort": 5}, {"port": "http", "endPort": 5}, {"port": 10, "endPort": 5}]}]}),
                &[
                    "spec.egress[0].ports[0].endPort: Invalid value: 5: may not be specified when `port` is not specified",
                    "spec.egress[0].ports[1].endPort: Invalid value: 5: may not be specified when `port` is non-numeric",
                    "spec.egress[0].ports[2].endPort: Invalid value: 10: must be greater than or equal to `port`",
                ],
            ),
            (
                json!({"ingress": [{"ports": [{"protocol": "ICMP", "port": 70000}]}]}),
                &[
                    r#"spec.ingress[0].ports[0].protocol: Unsupported value: "ICMP": supported values: "TCP", "UDP", "SCTP""#,
                    "spec.ingress[0].ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive",
                ],
            ),
            (
                json!({"policyTypes": ["Both"]}),
                &[r#"spec.policyTypes[0]: Unsupported value: "Both": supported values: "Ingress", "Egress""#],
            ),
        ];
        for (change, expected) in cases {
            assert_refused::<NetworkPolicyRules>(with(&policy(), json!({"spec": change})), expected);
        }
    }
}
