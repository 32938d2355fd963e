//! Decodes Pods.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use mainstay_api::{
    pod::is_terminal_phase,
    ports::parse_assigned_host_port,
    roles::{PodRoles, RoleShares},
    wellknown::mainstay::{ASSIGNED_HOST_PORT, MESOS_ROLES, REFUSED_BY, ROLE_RESOURCES, ROLES},
};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use super::{
    affinity::{WireAffinity, WireSpread},
    containers::{WireContainer, WireResources, extended_requests, pod_ports, pod_requests},
    or_default,
};
use crate::core::{
    selector::Labels,
    view::{
        AssignedHostPort, AutomaticPort, LabelSet, NodeRules, PodClaim, PodKey, PodView, PortMapping, SchedulingRules,
        SchedulingSpec, Toleration,
    },
};

const PORT_MAPPING: &str = "k8s.mesosphere.io/portMapping";

#[derive(Default, Deserialize)]
#[serde(default)]
struct WirePod {
    metadata: WireMeta,
    #[serde(deserialize_with = "or_default")]
    spec: WireSpec,
    #[serde(deserialize_with = "or_default")]
    status: WireStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireMeta {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
    #[serde(deserialize_with = "or_default")]
    labels: Labels,
    #[serde(deserialize_with = "or_default")]
    annotations: Annotations,
    creation_timestamp: Option<Timestamp>,
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireSpec {
    node_name: Option<String>,
    scheduler_name: Option<String>,
    priority: Option<i32>,
    preemption_policy: Option<String>,
    host_network: Option<bool>,
    #[serde(deserialize_with = "or_default")]
    scheduling_gates: Vec<WireGate>,
    #[serde(deserialize_with = "or_default")]
    node_selector: Labels,
    #[serde(deserialize_with = "or_default")]
    affinity: WireAffinity,
    #[serde(deserialize_with = "or_default")]
    tolerations: Vec<WireToleration>,
    #[serde(deserialize_with = "or_default")]
    topology_spread_constraints: Vec<WireSpread>,
    #[serde(deserialize_with = "or_default")]
    init_containers: Vec<WireContainer>,
    #[serde(deserialize_with = "or_default")]
    containers: Vec<WireContainer>,
    #[serde(deserialize_with = "or_default")]
    resources: WireResources,
    #[serde(deserialize_with = "or_default")]
    overhead: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    volumes: Vec<WireVolume>,
    #[serde(deserialize_with = "or_default")]
    resource_claims: Vec<WirePodClaim>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WirePodClaim {
    name: String,
    resource_claim_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WirePodClaimStatus {
    name: String,
    resource_claim_name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireGate {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireToleration {
    key: Option<String>,
    operator: Option<String>,
    value: Option<String>,
    effect: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireVolume {
    name: String,
    persistent_volume_claim: Option<WireClaim>,
    ephemeral: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireClaim {
    claim_name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireStatus {
    phase: Option<String>,
    nominated_node_name: Option<String>,
    start_time: Option<Timestamp>,
    #[serde(deserialize_with = "or_default")]
    conditions: Vec<WireCondition>,
    #[serde(deserialize_with = "or_default")]
    resource_claim_statuses: Vec<WirePodClaimStatus>,
    #[serde(deserialize_with = "or_default")]
    extended_resource_claim_status: WireExtendedStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireExtendedStatus {
    #[serde(deserialize_with = "or_default")]
    request_mappings: Vec<WireRequestMapping>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireRequestMapping {
    resource_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: Option<String>,
    message: Option<String>,
}

/// The few annotations that the scheduler reads; the others are skipped.
#[derive(Default)]
struct Annotations(BTreeMap<String, String>);

struct AnnotationKey(Option<String>);

impl<'de> Deserialize<'de> for AnnotationKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl Visitor<'_> for KeyVisitor {
            type Value = AnnotationKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an annotation's name")
            }

            fn visit_str<E>(self, text: &str) -> Result<AnnotationKey, E> {
                let wanted = text.starts_with(ASSIGNED_HOST_PORT)
                    || [REFUSED_BY, ROLES, MESOS_ROLES, ROLE_RESOURCES].contains(&text);
                Ok(AnnotationKey(wanted.then(|| text.to_owned())))
            }
        }
        from.deserialize_str(KeyVisitor)
    }
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct AnnotationsVisitor;
        impl<'de> Visitor<'de> for AnnotationsVisitor {
            type Value = Annotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
                let mut annotations = BTreeMap::new();
                while let Some(AnnotationKey(key)) = map.next_key()? {
                    match key {
                        Some(key) => drop(annotations.insert(key, map.next_value()?)),
                        None => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(Annotations(annotations))
            }
        }
        from.deserialize_map(AnnotationsVisitor)
    }
}

impl<'de> Deserialize<'de> for PodView {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        WirePod::deserialize(from).map(Self::from)
    }
}

impl From<WirePod> for PodView {
    fn from(wire: WirePod) -> Self {
        let WirePod { metadata, spec, status } = wire;
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let mut annotations = metadata.annotations.0;
        let refused_by = annotations.remove(REFUSED_BY);
        let port_mapping = metadata.labels.get(PORT_MAPPING).map(String::as_str);
        let unknown_port_mapping =
            port_mapping.filter(|value| !matches!(*value, "wildcard" | "fixed")).map(str::to_owned);
        let port_mapping = match port_mapping {
            Some("wildcard") => PortMapping::Always,
            Some("fixed") => PortMapping::Never,
            _ => PortMapping::AsNeeded,
        };
        let claims = claim_names(&metadata.name, &spec.volumes);
        let tolerated = |wire: WireToleration| {
            Toleration::parse(wire.key, wire.operator.as_deref(), wire.value, wire.effect.as_deref())
        };
        let mut node = NodeRules {
            selector: spec.node_selector,
            tolerations: spec.tolerations.into_iter().filter_map(tolerated).collect(),
            ..NodeRules::default()
        };
        let pod_affinity = spec.affinity.split(&metadata.namespace, &metadata.labels, &mut node);
        let spread = spec.topology_spread_constraints.into_iter();
        let (ports, mut automatic_ports) =
            pod_ports(&spec.init_containers, &spec.containers, spec.host_network == Some(true));
        if port_mapping == PortMapping::Never {
            automatic_ports.clear();
        }
        // Without automatic ports the mapping does not matter; equal pods must get equal specs.
        let port_mapping = if automatic_ports.is_empty() { PortMapping::default() } else { port_mapping };
        let mut requests = pod_requests(&spec.init_containers, &spec.containers, &spec.resources, &spec.overhead);
        let extended_requests = extended_requests(&spec.init_containers, &spec.containers);
        let extended = extended_requests.iter().flat_map(|container| &container.requests).map(|own| &own.resource);
        let extended_amounts = extended.filter_map(|name| Some((name.clone(), requests.get(name).copied()?))).collect();
        // What it has of devices is not the node's.
        for mapping in &status.extended_resource_claim_status.request_mappings {
            requests.remove(&mapping.resource_name);
        }
        let rules = SchedulingRules {
            priority: spec.priority.unwrap_or(0),
            never_preempts: spec.preemption_policy.as_deref() == Some("Never"),
            requests,
            ports,
            automatic_ports,
            port_mapping,
            roles: PodRoles::from_annotations(Some(&annotations)),
            node,
            pod_affinity,
            spread: spread.map(|wire| wire.constraint(&metadata.namespace, &metadata.labels)).collect(),
            missing: vec![],
            claims_devices: !spec.resource_claims.is_empty(),
        };
        let resource_claims = resource_claims(spec.resource_claims, &status.resource_claim_statuses);
        let mut unscheduled =
            status.conditions.into_iter().filter(|c| c.type_ == "PodScheduled" && c.status == "False");
        Self {
            label_set: LabelSet::new(&metadata.namespace, metadata.labels),
            key: PodKey { namespace: metadata.namespace, name: metadata.name },
            uid: metadata.uid,
            version: metadata.resource_version.parse().unwrap_or(0),
            node: filled(spec.node_name),
            nominated_node: filled(status.nominated_node_name),
            scheduler: filled(spec.scheduler_name).unwrap_or_else(|| "default-scheduler".to_owned()),
            gates: spec.scheduling_gates.into_iter().map(|gate| gate.name).collect(),
            resource_claims,
            extended_requests,
            extended_amounts,
            has_extended_claim: !status.extended_resource_claim_status.request_mappings.is_empty(),
            extended_claim: None,
            terminating: metadata.deletion_timestamp.is_some(),
            finished: status.phase.as_deref().is_some_and(is_terminal_phase),
            created: metadata.creation_timestamp.map_or(0, Timestamp::as_microsecond),
            started: status.start_time.map(Timestamp::as_microsecond),
            assigned_ports: assigned_ports(&rules.automatic_ports, &annotations),
            role_shares: RoleShares::from_annotations(Some(&annotations)),
            unknown_port_mapping,
            refused_by,
            unscheduled_condition: unscheduled
                .next()
                .map(|c| (c.reason.unwrap_or_default(), c.message.unwrap_or_default())),
            claims,
            spec: SchedulingSpec::new(rules),
        }
    }
}

/// The claim of a template is named in the pod's status once it was made; without a name there, none is needed.
fn resource_claims(claims: Vec<WirePodClaim>, statuses: &[WirePodClaimStatus]) -> Vec<PodClaim> {
    let claim = |own: WirePodClaim| {
        if let Some(claim) = own.resource_claim_name {
            return Some(PodClaim::Named { claim });
        }
        match statuses.iter().find(|status| status.name == own.name) {
            Some(status) => status.resource_claim_name.clone().map(|claim| PodClaim::OfTemplate { claim }),
            None => Some(PodClaim::NotCreated { name: own.name }),
        }
    };
    claims.into_iter().filter_map(claim).collect()
}

fn claim_names(pod: &str, volumes: &[WireVolume]) -> Vec<String> {
    let claim = |volume: &WireVolume| match &volume.persistent_volume_claim {
        Some(claim) => Some(claim.claim_name.clone()),
        None => volume.ephemeral.map(|_| format!("{pod}-{}", volume.name)),
    };
    volumes.iter().filter_map(claim).collect()
}

fn assigned_ports(automatic_ports: &[AutomaticPort], annotations: &BTreeMap<String, String>) -> Vec<AssignedHostPort> {
    let port = |port: &AutomaticPort| {
        let number = parse_assigned_host_port(annotations, &port.protocol, i32::from(port.container_port))?;
        Some(port.assign(number))
    };
    automatic_ports.iter().filter_map(port).collect()
}
