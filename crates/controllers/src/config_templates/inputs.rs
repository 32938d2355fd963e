//! Objects of the cluster as templates see them.
//!
//! Lists are sorted, so that the same objects give the same bytes, whatever the order in which they were learned of.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
};

use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Node, Secret},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta},
};
use kube::Api;
use mainstay_api::{
    config_template::{ConfigTemplate, Input, ServiceInput},
    host_service,
    machine::{Machine, MachineAxis},
    validation::labels,
};
use mainstay_templates::version;
use serde_json::{Value, json};

use super::{
    renderer::InputText,
    service_values::{ServiceValue, ServiceValues},
};
use crate::{
    objects::service::Service,
    runtime::{ApiError, Caches, Context, ObjectKey},
    services::slice_index::SERVICE_NAME,
};

/// What the inputs of a template are now.
#[derive(Clone, Default)]
pub struct Inputs {
    pub values: BTreeMap<String, InputText>,
    /// An opaque text for each input that changes with it. Of a Secret it is the object's version: a digest could be guessed.
    pub digests: BTreeMap<String, String>,
    /// Who wrote an input last, where that is known.
    pub managers: BTreeMap<String, String>,
    /// Inputs that do not exist: the field, and what is missing.
    pub missing: Vec<String>,
}

/// Reads all inputs of a template.
pub async fn read(context: &Context, services: &ServiceValues, template: &ConfigTemplate) -> Result<Inputs, ApiError> {
    let mut inputs = Inputs::default();
    for (index, input) in template.spec.inputs.iter().enumerate() {
        let found = read_one(context, services, template.namespace(), input).await?;
        let missing = found.is_none() && !input.optional;
        if missing {
            inputs.missing.push(format!("spec.inputs[{index}] ({}): {} does not exist", input.name, subject(input)));
        }
        let found = found.unwrap_or_else(|| InputValue::from(&Value::Null));
        let digest = found.version.unwrap_or_else(|| version(&found.value.json()));
        inputs.digests.insert(input.name.clone(), digest);
        if let Some(manager) = found.manager {
            inputs.managers.insert(input.name.clone(), manager);
        }
        inputs.values.insert(input.name.clone(), found.value);
    }
    let own = json!({ "name": template.name(), "namespace": template.namespace() });
    inputs.values.insert("template".to_owned(), InputText::own(&own));
    Ok(inputs)
}

/// How messages name an input.
fn subject(input: &Input) -> String {
    let name = |kind: &str, name: &str| format!("{kind} {name:?}");
    match input {
        Input { service: Some(ServiceInput { name: Some(service), .. }), .. } => name("service", service),
        Input { config_map: Some(map), .. } => name("configmap", &map.name),
        Input { secret: Some(secret), .. } => name("secret", &secret.name),
        _ => "it".to_owned(),
    }
}

struct InputValue {
    value: InputText,
    version: Option<String>,
    manager: Option<String>,
}

impl From<&Value> for InputValue {
    fn from(value: &Value) -> Self {
        Self { value: InputText::own(value), version: None, manager: None }
    }
}

async fn read_one(
    context: &Context,
    services: &ServiceValues,
    namespace: &str,
    input: &Input,
) -> Result<Option<InputValue>, ApiError> {
    let client = &context.client;
    if let Some(service) = &input.service {
        return Ok(read_service(&context.caches, services, namespace, service));
    }
    if let Some(map) = &input.config_map {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let found = maps.get_opt(&map.name).await;
        let found = found.map_err(ApiError::when(format!("read configmap {namespace}/{}", map.name)))?;
        return Ok(found.map(|map| InputValue {
            manager: last_manager(&map.metadata),
            ..InputValue::from(&json!(map.data.unwrap_or_default()))
        }));
    }
    if let Some(secret) = &input.secret {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let found = secrets.get_opt(&secret.name).await;
        let found = found.map_err(ApiError::when(format!("read secret {namespace}/{}", secret.name)))?;
        return Ok(found.map(|secret| InputValue {
            manager: last_manager(&secret.metadata),
            version: Some(secret.metadata.resource_version.clone().unwrap_or_default()),
            value: InputText::own(&json!(secret_texts(&secret))),
        }));
    }
    let nodes = input.nodes.as_ref().map(|input| {
        let is_wanted = |node: &Node| {
            let own = node.metadata.labels.clone().unwrap_or_default();
            input.selector.as_ref().is_none_or(|selector| labels::matches(selector, &own))
        };
        let nodes: BTreeMap<String, Value> = context
            .caches
            .nodes
            .select(is_wanted)
            .iter()
            .map(|node| {
                let name = node.metadata.name.clone().unwrap_or_default();
                let machine = context.machine_caches.machines.get(&ObjectKey::new("", name.as_str()));
                let mut value = node_value(node);
                value["machine"] = json!(machine.as_deref().map(machine_value));
                (name, value)
            })
            .collect();
        InputValue::from(&nodes.into_values().collect::<Value>())
    });
    Ok(nodes)
}

/// Keys whose values are no text cannot be rendered and are left out.
fn secret_texts(secret: &Secret) -> BTreeMap<&str, &str> {
    let data = secret.data.iter().flatten();
    data.filter_map(|(key, value)| Some((key.as_str(), std::str::from_utf8(&value.0).ok()?))).collect()
}

/// The manager that set a field of the object itself last.
pub fn last_manager(meta: &ObjectMeta) -> Option<String> {
    let entries = meta.managed_fields.iter().flatten().filter(|entry| entry.subresource.is_none());
    let last = entries.max_by_key(|entry: &&ManagedFieldsEntry| entry.time.as_ref().map(|time| time.0));
    last.and_then(|entry| entry.manager.clone())
}

/// One Service, or the list of those that the selector matches.
fn read_service(
    caches: &Caches,
    services: &ServiceValues,
    own_namespace: &str,
    input: &ServiceInput,
) -> Option<InputValue> {
    let namespace = input.namespace.as_deref().unwrap_or(own_namespace);
    let read = |key: &ObjectKey| {
        services.get(key, || {
            let service = caches.services.get(key)?;
            Some(service_value(&service, &slices_of(caches, &service)))
        })
    };
    if let Some(name) = &input.name {
        let ServiceValue { json, digest } = read(&ObjectKey::new(namespace, name))?;
        return Some(InputValue { value: InputText::Shared(json), version: Some(digest), manager: None });
    }
    let selector = input.selector.as_ref()?;
    let is_wanted = |service: &Service| {
        (namespace == "*" || service.namespace() == namespace) && labels::matches(selector, &service.labels())
    };
    let selected = caches.services.select(is_wanted);
    let keys: BTreeSet<(&str, &str)> = selected.iter().map(|service| (service.namespace(), service.name())).collect();
    let all: Vec<ServiceValue> =
        keys.into_iter().filter_map(|(namespace, name)| read(&ObjectKey::new(namespace, name))).collect();
    let digests: String = all.iter().map(|own| format!("{} ", own.digest)).collect();
    let value = InputText::List(all.into_iter().map(|own| own.json).collect());
    Some(InputValue { value, version: Some(version(&digests)), manager: None })
}

fn slices_of(caches: &Caches, service: &Service) -> Vec<Arc<EndpointSlice>> {
    let mut slices = caches.slices.in_namespace(service.namespace());
    slices.retain(|slice| {
        let owner = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME));
        owner.is_some_and(|owner| owner == service.name())
    });
    slices
}

/// `{name, namespace, labels, clusterIP, ports, endpoints, ready, addressable, interfaces}`.
fn service_value(service: &Service, slices: &[impl AsRef<EndpointSlice>]) -> Value {
    let mut endpoints: BTreeMap<String, Value> = BTreeMap::new();
    let (mut ready, mut addressable) = (BTreeSet::new(), BTreeSet::new());
    for slice in slices.iter().map(AsRef::as_ref) {
        let ports: BTreeMap<String, i32> = slice
            .ports
            .iter()
            .flatten()
            .filter_map(|port| Some((port.name.clone().unwrap_or_default(), port.port?)))
            .collect();
        for endpoint in slice.endpoints.iter().flatten() {
            let conditions = endpoint.conditions.clone().unwrap_or_default();
            let is_ready = conditions.ready.unwrap_or(true);
            for address in &endpoint.addresses {
                let pod = endpoint.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"));
                let value = json!({
                    "address": address,
                    "ready": is_ready,
                    "node": endpoint.node_name,
                    "zone": endpoint.zone,
                    "pod": pod.and_then(|pod| pod.name.clone()),
                    "ports": ports,
                });
                endpoints.insert(sort_key(address), value);
                addressable.insert((sort_key(address), address.clone()));
                if is_ready {
                    ready.insert((sort_key(address), address.clone()));
                }
            }
        }
    }
    let ports = service.spec.ports.iter().map(
        |port| json!({ "name": port.name.clone().unwrap_or_default(), "port": port.port, "protocol": port.protocol }),
    );
    json!({
        "name": service.name(),
        "namespace": service.namespace(),
        "labels": service.labels(),
        "clusterIP": service.spec.cluster_ip,
        "ports": ports.collect::<Vec<_>>(),
        "endpoints": endpoints.into_values().collect::<Vec<_>>(),
        "ready": ready.into_iter().map(|(_, address)| address).collect::<Vec<_>>(),
        "addressable": addressable.into_iter().map(|(_, address)| address).collect::<Vec<_>>(),
        "interfaces": addresses_by_interface(slices),
    })
}

/// The addresses that the machines of a host service have at each interface.
fn addresses_by_interface(slices: &[impl AsRef<EndpointSlice>]) -> BTreeMap<&str, BTreeSet<Ipv4Addr>> {
    let mut all = BTreeMap::<&str, BTreeSet<Ipv4Addr>>::new();
    for meta in slices.iter().map(|slice| &slice.as_ref().metadata) {
        let manager = meta.labels.as_ref().and_then(|labels| labels.get(host_service::MANAGED_BY));
        let annotation = meta.annotations.as_ref().and_then(|own| own.get(host_service::INTERFACES));
        let is_of_host = manager.is_some_and(|manager| manager == host_service::MANAGER);
        for (interface, address) in
            annotation.filter(|_| is_of_host).into_iter().flat_map(|text| host_service::parse_interfaces(text))
        {
            all.entry(interface).or_default().insert(address);
        }
    }
    all
}

/// Orders addresses as numbers: 10.0.0.9 before 10.0.0.10, IPv4 before IPv6.
fn sort_key(address: &str) -> String {
    match address.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(address)) => format!("4{:08x}", u32::from(address)),
        Ok(std::net::IpAddr::V6(address)) => format!("6{:032x}", u128::from(address)),
        Err(_) => format!("n{address}"),
    }
}

/// `{version, wanted, provisioned, configured, validated}`: what a machine says of itself.
pub fn machine_value(machine: &Machine) -> Value {
    let version = machine.status.as_ref().and_then(|status| status.version.clone()).unwrap_or_default();
    let state = |axis: MachineAxis| machine.state(axis).map(|own| own.state).unwrap_or_default().text();
    json!({
        "version": machine.running_version(),
        "wanted": version.wanted,
        "provisioned": state(MachineAxis::Provisioned),
        "configured": state(MachineAxis::Configured),
        "validated": state(MachineAxis::Validated),
    })
}

/// `{name, labels, addresses, ready, unschedulable, capacity, facts}`.
pub fn node_value(node: &Node) -> Value {
    let (spec, status) = (node.spec.clone().unwrap_or_default(), node.status.clone().unwrap_or_default());
    let mut addresses: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for address in status.addresses.into_iter().flatten() {
        addresses.entry(address.type_).or_default().push(address.address);
    }
    let ready = status.conditions.iter().flatten().any(|own| own.type_ == "Ready" && own.status == "True");
    json!({
        "name": node.metadata.name,
        "labels": node.metadata.labels.clone().unwrap_or_default(),
        "addresses": addresses,
        "ready": ready,
        "unschedulable": spec.unschedulable.unwrap_or_default(),
        "capacity": status.capacity.unwrap_or_default(),
        "facts": status.node_info,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(endpoints: Value) -> Box<EndpointSlice> {
        let slice =
            json!({ "addressType": "IPv4", "endpoints": endpoints, "ports": [{ "name": "sql", "port": 3306 }] });
        serde_json::from_value(slice).unwrap()
    }

    #[test]
    fn endpoints_are_in_the_order_of_their_addresses_whatever_slice_they_are_in() {
        let service: Service =
            serde_json::from_value(json!({ "metadata": { "name": "db", "namespace": "shop" } })).unwrap();
        let a = slice(json!([{ "addresses": ["10.0.0.10"], "conditions": { "ready": false } }]));
        let b = slice(json!([
            { "addresses": ["10.0.0.9"], "nodeName": "n1", "targetRef": { "kind": "Pod", "name": "db-0" } },
        ]));
        let value = service_value(&service, &[a.clone(), b.clone()]);
        assert_eq!(value, service_value(&service, &[b, a]));
        assert_eq!(value["ready"], json!(["10.0.0.9"]));
        assert_eq!(value["addressable"], json!(["10.0.0.9", "10.0.0.10"]));
        let expected = json!({
            "address": "10.0.0.9", "ready": true, "node": "n1", "zone": null, "pod": "db-0", "ports": { "sql": 3306 },
        });
        assert_eq!(value["endpoints"][0], expected);
    }

    #[test]
    fn a_service_of_machines_has_their_addresses_by_interface() {
        let service: Service =
            serde_json::from_value(json!({ "metadata": { "name": "db", "namespace": "host-services" } })).unwrap();
        let of_machine = |interfaces: &str, manager: &str| {
            let mut slice = slice(json!([{ "addresses": ["10.0.0.9"] }]));
            slice.metadata.labels = Some([(host_service::MANAGED_BY.to_owned(), manager.to_owned())].into());
            slice.metadata.annotations = Some([(host_service::INTERFACES.to_owned(), interfaces.to_owned())].into());
            slice
        };
        let slices = [
            of_machine("eth0=10.0.0.10,eth1=10.1.0.10", host_service::MANAGER),
            of_machine("eth0=10.0.0.9", host_service::MANAGER),
            of_machine("eth0=192.0.2.1", "somebody-else"),
        ];
        let expected = json!({ "eth0": ["10.0.0.9", "10.0.0.10"], "eth1": ["10.1.0.10"] });
        assert_eq!(service_value(&service, &slices)["interfaces"], expected);
    }

    #[test]
    fn the_last_manager_of_an_object_is_known_but_not_who_wrote_its_status() {
        let meta: ObjectMeta = serde_json::from_value(json!({ "managedFields": [
            { "manager": "kubectl-create", "time": "2026-01-01T00:00:00Z" },
            { "manager": "kubectl-edit", "time": "2026-01-02T00:00:00Z" },
            { "manager": "controller", "subresource": "status", "time": "2026-01-03T00:00:00Z" },
        ]}))
        .unwrap();
        assert_eq!(last_manager(&meta).as_deref(), Some("kubectl-edit"));
    }
}
