//! The EndpointSlice of an instance. Pure.

use std::{collections::BTreeMap, net::Ipv4Addr};

use k8s_openapi::{
    api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use mainstay_api::{
    host_service::{
        CRITICAL, HEALTH, ID, INTERFACES, MANAGED_BY, MANAGER, META, NAMESPACE, NODE, format_interfaces, node_label,
        slice_name,
    },
    service::{TAGS, parse_tags},
    validation::names::dns1123_label,
    wellknown::kubernetes::SERVICE_NAME,
};

use super::definition::{AddressSource, ServiceDefinition};

/// What all instances of a machine share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineFacts {
    pub node_name: String,
    /// The address of the Node.
    pub address: Option<Ipv4Addr>,
    pub interfaces: Vec<(String, Ipv4Addr)>,
}

impl MachineFacts {
    /// Where an instance is reached; nothing if its interface has no address now.
    pub fn address_of(&self, definition: &ServiceDefinition) -> Option<Ipv4Addr> {
        match &definition.address {
            AddressSource::Node => self.address,
            AddressSource::Fixed(address) => Some(*address),
            AddressSource::Interface(name) => {
                self.interfaces.iter().find(|(own, _)| own == name).map(|(_, address)| *address)
            }
        }
    }
}

/// Nothing while the instance has no address.
pub fn endpoint_slice(definition: &ServiceDefinition, is_ready: bool, facts: &MachineFacts) -> Option<EndpointSlice> {
    let address = facts.address_of(definition)?;
    let node = &facts.node_name;
    let labels = [(MANAGED_BY, MANAGER), (NODE, &node_label(node)), (SERVICE_NAME, &definition.name)];
    let health = (!is_ready).then_some((HEALTH, CRITICAL));
    let labels = labels.into_iter().chain(health).map(|(key, value)| (key.to_owned(), value.to_owned()));
    let port = definition.port.map(|port| EndpointPort {
        port: Some(port.into()),
        protocol: Some("TCP".to_owned()),
        name: Some(String::new()),
        ..EndpointPort::default()
    });
    Some(EndpointSlice {
        metadata: ObjectMeta {
            namespace: Some(NAMESPACE.to_owned()),
            name: Some(slice_name(&definition.name, node, &definition.id)),
            labels: Some(labels.collect()),
            annotations: Some(annotations(definition, facts)),
            ..ObjectMeta::default()
        },
        address_type: "IPv4".to_owned(),
        endpoints: Some(vec![Endpoint {
            addresses: vec![address.to_string()],
            conditions: Some(EndpointConditions {
                ready: Some(is_ready),
                serving: Some(is_ready),
                terminating: Some(false),
            }),
            // The same name for all services of the machine: `<node>.<service>.host-services.svc…`.
            hostname: Some(node.clone()).filter(|name| dns1123_label(name).is_empty()),
            node_name: Some(node.clone()),
            ..Endpoint::default()
        }]),
        ports: Some(port.into_iter().collect()),
    })
}

fn annotations(definition: &ServiceDefinition, facts: &MachineFacts) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::from([(ID.to_owned(), definition.id.clone())]);
    // Those that can be part of a name; others are only in the file.
    let tags = definition.tags.iter().map(|tag| tag.to_lowercase()).filter(|tag| parse_tags(tag).is_some());
    let tags: Vec<String> = tags.filter(|tag| !tag.contains(',')).collect();
    if !tags.is_empty() {
        annotations.insert(TAGS.to_owned(), tags.join(","));
    }
    let interfaces = format_interfaces(facts.interfaces.iter().map(|(name, address)| (name.as_str(), *address)));
    if !interfaces.is_empty() {
        annotations.insert(INTERFACES.to_owned(), interfaces);
    }
    if !definition.meta.is_empty()
        && let Ok(meta) = serde_json::to_string(&definition.meta)
    {
        annotations.insert(META.to_owned(), meta);
    }
    annotations
}

/// Whether a slice of the API says what it should.
pub fn is_same(stored: &EndpointSlice, desired: &EndpointSlice) -> bool {
    let meta = |slice: &EndpointSlice| {
        let labels: BTreeMap<String, String> = slice.metadata.labels.clone().unwrap_or_default();
        let own = [MANAGED_BY, NODE, SERVICE_NAME, HEALTH].map(|key| labels.get(key).cloned());
        (own, slice.metadata.annotations.clone().unwrap_or_default())
    };
    meta(stored) == meta(desired)
        && stored.endpoints == desired.endpoints
        && stored.ports.clone().unwrap_or_default() == desired.ports.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use mainstay_api::host_service::ownership_violation;

    use super::*;
    use crate::host_services::definition::parse_definitions;

    fn facts(node: &str) -> MachineFacts {
        let interfaces = vec![("eth0".to_owned(), [10, 0, 0, 1].into()), ("eth1".to_owned(), [10, 1, 0, 1].into())];
        MachineFacts { node_name: node.to_owned(), address: Some([10, 0, 0, 1].into()), interfaces }
    }

    fn definition(text: &str) -> ServiceDefinition {
        parse_definitions(text.as_bytes()).unwrap().remove(0)
    }

    #[test]
    fn a_slice_is_one_that_its_node_may_write() {
        let mysql = definition(
            r#"{"name": "mysql", "id": "db:1", "port": 3306, "tags": ["Master", "a b"], "meta": {"k": "v"}}"#,
        );
        for node in ["a", "rack.example", &"x".repeat(100)] {
            let slice = endpoint_slice(&mysql, true, &facts(node)).unwrap();
            let name = slice.metadata.name.clone().unwrap();
            let json = serde_json::to_value(&slice).unwrap();
            assert_eq!(ownership_violation(node, Some(NAMESPACE), &name, &json), None);
        }
        let slice = endpoint_slice(&mysql, true, &facts("a")).unwrap();
        let annotations = slice.metadata.annotations.as_ref().unwrap();
        assert_eq!((annotations[TAGS].as_str(), annotations[META].as_str()), ("master", r#"{"k":"v"}"#));
        assert_eq!(annotations[INTERFACES], "eth0=10.0.0.1,eth1=10.1.0.1");
        assert_eq!(slice.endpoints.as_ref().unwrap()[0].hostname.as_deref(), Some("a"));
        assert!(is_same(&slice, &slice.clone()));
        let failing = endpoint_slice(&mysql, false, &facts("a")).unwrap();
        let health = |slice: &EndpointSlice| slice.metadata.labels.as_ref().unwrap().get(HEALTH).cloned();
        assert_eq!((health(&slice), health(&failing).as_deref()), (None, Some(CRITICAL)));
        assert!(!is_same(&slice, &endpoint_slice(&mysql, false, &facts("a")).unwrap()));
    }

    #[test]
    fn an_instance_may_be_at_an_interface() {
        let at = |text: &str| facts("a").address_of(&definition(text));
        assert_eq!(at(r#"{"name": "w", "interface": "eth1"}"#), Some([10, 1, 0, 1].into()));
        assert_eq!(at(r#"{"name": "w", "interface": "eth7"}"#), None);
        assert_eq!(at(r#"{"name": "w", "address": "192.0.2.9"}"#), Some([192, 0, 2, 9].into()));
        assert_eq!(at(r#"{"name": "w"}"#), Some([10, 0, 0, 1].into()));
        let nowhere = definition(r#"{"name": "w", "interface": "eth7"}"#);
        assert_eq!(endpoint_slice(&nowhere, true, &facts("a")), None);
    }
}
