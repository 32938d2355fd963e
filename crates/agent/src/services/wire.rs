//! Decodes the fields of Services, EndpointSlices and Nodes that the network needs, straight from JSON.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    api::{core, discovery},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use mainstay_api::{
    host_service, narrow,
    narrow::or_default,
    ports::{SCTP, UDP},
    service::{self, DataPath},
    wellknown::kubernetes::HEADLESS_SERVICE,
};
use mainstay_network::{
    Protocol, Range,
    catalogue::{self, HOLD, ServiceKind},
};
use serde::{Deserialize, Serialize};

narrow!(Service, core::v1::Service);
narrow!(EndpointSlice, discovery::v1::EndpointSlice);
narrow!(Node, core::v1::Node);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "or_default")]
    pub spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    r#type: String,
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    external_name: String,
    #[serde(deserialize_with = "or_default")]
    ports: Vec<ServicePort>,
    #[serde(rename = "externalIPs", deserialize_with = "or_default")]
    external_ips: Vec<String>,
    session_affinity: String,
    #[serde(deserialize_with = "or_default")]
    session_affinity_config: AffinityConfig,
    internal_traffic_policy: String,
    external_traffic_policy: String,
    publish_not_ready_addresses: bool,
    #[serde(deserialize_with = "or_default")]
    pub selector: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServicePort {
    name: String,
    protocol: String,
    port: u16,
    node_port: u16,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AffinityConfig {
    #[serde(rename = "clientIP", deserialize_with = "or_default")]
    client_ip: ClientIp,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClientIp {
    timeout_seconds: Option<u64>,
}

/// Labels, whatever their value, of Services that kube-proxy leaves alone.
const OTHER_PROXY: [&str; 2] = ["service.kubernetes.io/service-proxy-name", HEADLESS_SERVICE];
/// Upstream's three hours.
const AFFINITY: u64 = 10_800;

impl From<&Service> for catalogue::Service {
    fn from(service: &Service) -> Self {
        let spec = &service.spec;
        let nothing = BTreeMap::new();
        let annotations = service::ServiceAnnotations::parse(service.metadata.annotations.as_ref().unwrap_or(&nothing));
        let kind = match spec.cluster_ip.parse() {
            _ if spec.r#type == "ExternalName" => {
                ServiceKind::ExternalName(spec.external_name.trim_end_matches('.').into())
            }
            Ok(address) => ServiceKind::ClusterIp(address),
            Err(_) => ServiceKind::Headless,
        };
        let timeout = spec.session_affinity_config.client_ip.timeout_seconds.unwrap_or(AFFINITY);
        Self {
            kind,
            ports: spec.ports.iter().map(catalogue::ServicePort::from).collect(),
            external_ips: spec.external_ips.iter().filter_map(|ip| ip.parse().ok()).collect(),
            affinity: (spec.session_affinity == "ClientIP").then(|| Duration::from_secs(timeout)),
            internal_local: spec.internal_traffic_policy == "Local",
            external_local: spec.external_traffic_policy == "Local",
            hold: annotations.hold.unwrap_or(HOLD),
            through_user_space: annotations.path == DataPath::User,
            publish_not_ready: spec.publish_not_ready_addresses,
            has_other_proxy: service.metadata.labels.iter().flatten().any(|(key, _)| OTHER_PROXY.contains(&&**key)),
            tags: annotations.tags.iter().map(|tag| tag.as_str().into()).collect(),
        }
    }
}

impl From<&ServicePort> for catalogue::ServicePort {
    fn from(port: &ServicePort) -> Self {
        Self {
            name: port.name.as_str().into(),
            protocol: protocol(&port.protocol),
            port: port.port,
            node_port: (port.node_port > 0).then_some(port.node_port),
        }
    }
}

fn protocol(name: &str) -> Protocol {
    match name {
        UDP => Protocol::Udp,
        SCTP => Protocol::Sctp,
        _ => Protocol::Tcp,
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    pub metadata: ObjectMeta,
    address_type: String,
    #[serde(deserialize_with = "or_default")]
    endpoints: Vec<Endpoint>,
    #[serde(deserialize_with = "or_default")]
    ports: Vec<SlicePort>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Endpoint {
    addresses: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    conditions: Conditions,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hints: Option<Hints>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Hints {
    #[serde(deserialize_with = "or_default")]
    for_zones: Vec<Hint>,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    for_nodes: Vec<Hint>,
}

/// The name of a zone or of a node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Hint {
    name: String,
}

impl Hints {
    fn to_catalogue(&self, names: &mut Names) -> Option<Box<catalogue::TopologyHints>> {
        let mut shared = |hints: &[Hint]| hints.iter().map(|hint| names.get(&hint.name)).collect();
        let hints = catalogue::TopologyHints { zones: shared(&self.for_zones), nodes: shared(&self.for_nodes) };
        (hints != catalogue::TopologyHints::default()).then(|| Box::new(hints))
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SlicePort {
    name: Option<String>,
    protocol: Option<String>,
    port: Option<u16>,
}

/// The label that says in which zone a machine is.
const ZONE: &str = mainstay_api::wellknown::kubernetes::ZONE;
/// The label that says whose backends these are.
const SERVICE_NAME: &str = mainstay_api::wellknown::kubernetes::SERVICE_NAME;

impl EndpointSlice {
    /// Nothing for slices of no Service, or of addresses we have none of.
    pub fn to_catalogue(&self, names: &mut Names) -> Option<catalogue::Slice> {
        let service = self.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
        (self.address_type == "IPv4").then(|| catalogue::Slice {
            service: names.get(service),
            ports: self.ports.iter().filter_map(|port| port.to_catalogue(names)).collect(),
            endpoints: self.endpoints.iter().filter_map(|endpoint| endpoint.to_catalogue(names)).collect(),
            host: self.host_instance(names),
        })
    }

    /// Of slices that agents write for programs of their machines. Annotations of other slices mean nothing.
    fn host_instance(&self, names: &mut Names) -> Option<Box<catalogue::HostInstance>> {
        let manager = self.metadata.labels.as_ref()?.get(host_service::MANAGED_BY)?;
        let annotations = self.metadata.annotations.as_ref().filter(|_| manager == host_service::MANAGER)?;
        let tags = annotations.get(service::TAGS).and_then(|text| service::parse_tags(text)).unwrap_or_default();
        let interfaces = annotations.get(host_service::INTERFACES).map(String::as_str).unwrap_or_default();
        Some(Box::new(catalogue::HostInstance {
            tags: tags.iter().map(|tag| names.get(tag)).collect(),
            interfaces: host_service::parse_interfaces(interfaces)
                .map(|(name, address)| (names.get(name), address))
                .collect(),
        }))
    }
}

impl SlicePort {
    fn to_catalogue(&self, names: &mut Names) -> Option<catalogue::SlicePort> {
        Some(catalogue::SlicePort {
            name: names.get(self.name.as_deref().unwrap_or_default()),
            protocol: protocol(self.protocol.as_deref().unwrap_or_default()),
            port: self.port?,
        })
    }
}

impl Endpoint {
    /// A condition that is not set is as upstream reads it: ready, serving if ready, not terminating.
    fn to_catalogue(&self, names: &mut Names) -> Option<catalogue::Endpoint> {
        let ready = self.conditions.ready.unwrap_or(true);
        Some(catalogue::Endpoint {
            address: self.addresses.first()?.parse().ok()?,
            ready,
            serving: self.conditions.serving.unwrap_or(ready),
            terminating: self.conditions.terminating.unwrap_or(false),
            node: self.node_name.as_deref().map(|name| names.get(name)),
            hostname: self.hostname.as_deref().filter(|name| !name.is_empty()).map(Arc::from),
            hints: self.hints.as_ref().and_then(|hints| hints.to_catalogue(names)),
        })
    }
}

/// Names that many endpoints share, each in memory once.
#[derive(Default)]
pub struct Names {
    known: std::collections::HashSet<Arc<str>>,
}

impl Names {
    /// When to forget those that nobody uses any more.
    const MANY: usize = 4_096;

    fn get(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        if self.known.len().is_multiple_of(Self::MANY) {
            self.known.retain(|name| Arc::strong_count(name) > 1);
        }
        let name: Arc<str> = name.into();
        self.known.insert(name.clone());
        name
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "or_default")]
    spec: NodeSpec,
    #[serde(deserialize_with = "or_default")]
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct NodeSpec {
    #[serde(rename = "podCIDR")]
    pod_cidr: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct NodeStatus {
    #[serde(deserialize_with = "or_default")]
    addresses: Vec<NodeAddress>,
    #[serde(deserialize_with = "or_default")]
    conditions: Vec<NodeCondition>,
    #[serde(rename = "daemonEndpoints", deserialize_with = "or_default")]
    daemon_endpoints: DaemonEndpoints,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct NodeCondition {
    r#type: String,
    status: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct DaemonEndpoints {
    #[serde(rename = "kubeletEndpoint", deserialize_with = "or_default")]
    kubelet_endpoint: DaemonEndpoint,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct DaemonEndpoint {
    #[serde(rename = "Port")]
    port: u16,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct NodeAddress {
    r#type: String,
    address: String,
}

impl Node {
    /// The addresses of its pods.
    pub fn range(&self) -> Option<Range> {
        self.spec.pod_cidr.parse().ok()
    }

    /// Where its agent answers.
    pub fn agent(&self) -> Option<SocketAddr> {
        let port = Some(self.status.daemon_endpoints.kubelet_endpoint.port).filter(|port| *port != 0)?;
        Some(SocketAddr::from((self.address()?, port)))
    }

    pub fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|condition| condition.r#type == "Ready" && condition.status == "True")
    }

    pub fn zone(&self) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(ZONE).map(String::as_str).filter(|zone| !zone.is_empty())
    }

    pub fn address(&self) -> Option<Ipv4Addr> {
        let mut internal = self.status.addresses.iter().filter(|address| address.r#type == "InternalIP");
        internal.find_map(|address| address.address.parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_service_is_read_with_its_wishes() {
        let service: Service = serde_json::from_value(json!({
            "metadata": { "name": "a", "annotations": {
                "mainstay.dev/hold": "500ms", "mainstay.dev/proxy": "user", "mainstay.dev/tags": "blue, v2",
            } },
            "spec": {
                "type": "NodePort", "clusterIP": "10.96.1.2", "sessionAffinity": "ClientIP", "selector": null,
                "externalIPs": ["192.0.2.1"], "externalTrafficPolicy": "Local",
                "ports": [{ "name": "web", "port": 80, "nodePort": 30080, "targetPort": "http" }, { "port": 53, "protocol": "UDP" }],
            },
        }))
        .unwrap();
        let read = catalogue::Service::from(&service);
        assert_eq!(read.kind, ServiceKind::ClusterIp(Ipv4Addr::new(10, 96, 1, 2)));
        assert_eq!((read.hold, read.through_user_space), (Duration::from_millis(500), true));
        assert_eq!(read.affinity, Some(Duration::from_secs(AFFINITY)));
        assert_eq!(read.tags.iter().map(|tag| &**tag).collect::<Vec<_>>(), ["blue", "v2"]);
        assert!(read.external_local && !read.internal_local);
        let ports: Vec<_> = read.ports.iter().map(|p| (&*p.name, p.protocol, p.port, p.node_port)).collect();
        assert_eq!(ports, [("web", Protocol::Tcp, 80, Some(30080)), ("", Protocol::Udp, 53, None)]);
    }

    #[test]
    fn a_service_without_an_address_is_headless_or_another_name() {
        let kind = |spec| {
            let service: Service = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
            catalogue::Service::from(&service).kind
        };
        assert_eq!(kind(json!({ "type": "ClusterIP", "clusterIP": "None" })), ServiceKind::Headless);
        let alias = json!({ "type": "ExternalName", "externalName": "db.example.org." });
        assert_eq!(kind(alias), ServiceKind::ExternalName("db.example.org".into()));
    }

    #[test]
    fn conditions_that_are_not_set_have_upstreams_defaults() {
        let hints = json!({ "forZones": [{ "name": "z1" }], "forNodes": [{ "name": "n" }] });
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": { "labels": { SERVICE_NAME: "a" } }, "addressType": "IPv4",
            "endpoints": [
                { "addresses": ["10.244.0.2"], "nodeName": "n", "hints": hints },
                { "addresses": ["10.244.0.3"], "conditions": { "ready": false }, "hints": { "forZones": null } },
                { "addresses": ["10.244.0.4"], "conditions": { "ready": false, "serving": true, "terminating": true } },
            ],
            "ports": [{ "port": 8080 }],
        }))
        .unwrap();
        let slice = slice.to_catalogue(&mut Names::default()).unwrap();
        let observed: Vec<_> = slice.endpoints.iter().map(|e| (e.ready, e.serving, e.terminating)).collect();
        assert_eq!(observed, [(true, true, false), (false, false, false), (false, true, true)]);
        assert_eq!((&*slice.ports[0].name, slice.ports[0].protocol), ("", Protocol::Tcp));
        let hints = catalogue::TopologyHints { zones: ["z1".into()].into(), nodes: ["n".into()].into() };
        let found: Vec<_> = slice.endpoints.iter().map(|e| e.hints.as_deref()).collect();
        assert_eq!(found, [Some(&hints), None, None]);
    }

    #[test]
    fn slices_of_no_service_or_of_other_addresses_are_none() {
        let stray: EndpointSlice = serde_json::from_value(json!({ "metadata": {}, "addressType": "IPv4" })).unwrap();
        assert!(stray.to_catalogue(&mut Names::default()).is_none());
        let labels = json!({ SERVICE_NAME: "a" });
        let v6: EndpointSlice =
            serde_json::from_value(json!({ "metadata": { "labels": labels }, "addressType": "IPv6" })).unwrap();
        assert!(v6.to_catalogue(&mut Names::default()).is_none());
    }
}
