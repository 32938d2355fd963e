//! Pods.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use super::{
    affinity::{WireAffinity, WireSpread},
    needs::{WireContainer, WireResources, ports, requests},
    or_default,
};
use crate::core::{
    ports::{GivenPort, PortMapping, PortWish},
    selector::Labels,
    view::{MachineRules, PodKey, PodView, Rules, Shape, Tags, Toleration},
};

const PORT_MAPPING: &str = "k8s.mesosphere.io/portMapping";
const GIVEN_PORT: &str = "k8s.mesosphere.io/port_";
const REFUSED_BY: &str = "mainstay.dev/refused-by";

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
    annotations: Notes,
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

/// The few annotations that are of interest.
#[derive(Default)]
struct Notes(BTreeMap<String, String>);

struct Interesting(Option<String>);

impl<'de> Deserialize<'de> for Interesting {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Key;
        impl Visitor<'_> for Key {
            type Value = Interesting;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an annotation's name")
            }

            fn visit_str<E>(self, text: &str) -> Result<Interesting, E> {
                let wanted = text.starts_with(GIVEN_PORT) || text == REFUSED_BY;
                Ok(Interesting(wanted.then(|| text.to_owned())))
            }
        }
        from.deserialize_str(Key)
    }
}

impl<'de> Deserialize<'de> for Notes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Notes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Notes, A::Error> {
                let mut notes = BTreeMap::new();
                while let Some(Interesting(key)) = map.next_key()? {
                    match key {
                        Some(key) => drop(notes.insert(key, map.next_value()?)),
                        None => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(Notes(notes))
            }
        }
        from.deserialize_map(All)
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
        let mut notes = metadata.annotations.0;
        let refused_by = notes.remove(REFUSED_BY);
        let mapping = metadata.labels.get(PORT_MAPPING).map(String::as_str);
        let odd_port_mapping = mapping.filter(|value| !matches!(*value, "wildcard" | "fixed")).map(str::to_owned);
        let mapping = match mapping {
            Some("wildcard") => PortMapping::Always,
            Some("fixed") => PortMapping::Never,
            _ => PortMapping::AsNeeded,
        };
        let claims = claims(&metadata.name, &spec.volumes);
        let tolerated = |wire: WireToleration| {
            Toleration::read(wire.key, wire.operator.as_deref(), wire.value, wire.effect.as_deref())
        };
        let mut machine = MachineRules {
            selector: spec.node_selector,
            tolerations: spec.tolerations.into_iter().filter_map(tolerated).collect(),
            ..MachineRules::default()
        };
        let together = spec.affinity.split(&metadata.namespace, &metadata.labels, &mut machine);
        let spread = spec.topology_spread_constraints.into_iter();
        let (ports, mut wishes) = ports(&spec.init_containers, &spec.containers, spec.host_network == Some(true));
        if mapping == PortMapping::Never {
            wishes.clear();
        }
        // Pods without wishes are of one kind, whatever they say of them.
        let mapping = if wishes.is_empty() { PortMapping::default() } else { mapping };
        let rules = Rules {
            priority: spec.priority.unwrap_or(0),
            never_preempts: spec.preemption_policy.as_deref() == Some("Never"),
            requests: requests(&spec.init_containers, &spec.containers, &spec.resources, &spec.overhead),
            ports,
            wishes,
            mapping,
            machine,
            together,
            spread: spread.map(|wire| wire.rule(&metadata.namespace, &metadata.labels)).collect(),
            missing: vec![],
        };
        let mut unplaced = status.conditions.into_iter().filter(|c| c.type_ == "PodScheduled" && c.status == "False");
        Self {
            tags: Tags::new(&metadata.namespace, metadata.labels),
            key: PodKey { namespace: metadata.namespace, name: metadata.name },
            uid: metadata.uid,
            version: metadata.resource_version.parse().unwrap_or(0),
            node: filled(spec.node_name),
            nominated: filled(status.nominated_node_name),
            scheduler: filled(spec.scheduler_name).unwrap_or_else(|| "default-scheduler".to_owned()),
            gates: spec.scheduling_gates.into_iter().map(|gate| gate.name).collect(),
            terminating: metadata.deletion_timestamp.is_some(),
            ended: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            created: metadata.creation_timestamp.map_or(0, Timestamp::as_microsecond),
            started: status.start_time.map(Timestamp::as_microsecond),
            given: given(&rules.wishes, &notes),
            odd_port_mapping,
            refused_by,
            complaint: unplaced.next().map(|c| (c.reason.unwrap_or_default(), c.message.unwrap_or_default())),
            claims,
            shape: Shape::new(rules),
        }
    }
}

fn claims(pod: &str, volumes: &[WireVolume]) -> Vec<String> {
    let claim = |volume: &WireVolume| match &volume.persistent_volume_claim {
        Some(claim) => Some(claim.claim_name.clone()),
        None => volume.ephemeral.map(|_| format!("{pod}-{}", volume.name)),
    };
    volumes.iter().filter_map(claim).collect()
}

fn given(wishes: &[PortWish], notes: &BTreeMap<String, String>) -> Vec<GivenPort> {
    let port = |wish: &PortWish| {
        let note = notes.get(&format!("{GIVEN_PORT}{}_{}", wish.protocol, wish.container_port))?;
        Some(GivenPort { wish: wish.clone(), host_port: note.parse().ok()? })
    };
    wishes.iter().filter_map(port).collect()
}
