//! Pod as far as controllers read it.
//!
//! Read straight from the API's bytes: what is not named here is neither parsed nor kept.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{self as core, Affinity, ContainerStatus, PodAffinityTerm, PodCondition},
    apimachinery::pkg::{
        api::resource::Quantity as ApiQuantity,
        apis::meta::v1::{ObjectMeta, Time},
    },
};
use mainstay_api::{matching, narrow, narrow::or_default, quantity::Quantity, wellknown::taint};
use serde::{Deserialize, Deserializer, de::IgnoredAny};

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Pod {
    #[serde(deserialize_with = "lean")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Spec,
    #[serde(default)]
    pub status: Status,
}

narrow!(Pod, core::Pod);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// Empty while it is not placed.
    #[serde(default)]
    pub node_name: String,
    #[serde(default)]
    pub restart_policy: String,
    #[serde(default, deserialize_with = "affinity")]
    pub affinity: RequiredAffinity,
    /// The name it has below its subdomain, which is a Service's name.
    #[serde(default)]
    pub hostname: String,
    #[serde(default)]
    pub subdomain: String,
    #[serde(default)]
    pub host_network: bool,
    #[serde(default, deserialize_with = "no_execute_tolerations")]
    pub tolerations: Box<[NoExecuteToleration]>,
    /// The claims that it mounts by name; those of its ephemeral volumes are named after the pod.
    #[serde(default, rename = "volumes", deserialize_with = "claim_volumes")]
    pub claim_volumes: Box<[ClaimVolume]>,
    #[serde(default, deserialize_with = "or_default")]
    pub resource_claims: Box<[PodResourceClaim]>,
    #[serde(default, deserialize_with = "or_default")]
    pub init_containers: Vec<Container>,
    #[serde(default, deserialize_with = "or_default")]
    pub containers: Vec<Container>,
}

/// What its affinity requires.
#[derive(Clone, Debug, Default)]
pub struct RequiredAffinity {
    /// The node it is meant for before it is placed, if exactly one is named.
    pub pinned_to: Option<String>,
    /// Pods that it has to be near of.
    pub required_pods: Box<[PodAffinityTerm]>,
}

/// A ResourceClaim that it uses: by name, or made of a template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodResourceClaim {
    /// By which its containers call it.
    pub name: String,
    pub resource_claim_name: Option<String>,
    pub resource_claim_template_name: Option<String>,
}

/// The claim that was made of a template; without a name, none is needed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodResourceClaimStatus {
    pub name: String,
    pub resource_claim_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodExtendedResourceClaimStatus {
    pub resource_claim_name: String,
}

/// A toleration of NoExecute taints. There are two or more of them in every pod: their usual keys take no memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoExecuteToleration {
    pub key: TolerationKey,
    /// `None`: every value.
    pub value: Option<Box<str>>,
    /// How long after the taint came it is tolerated; `None`: for ever.
    pub seconds: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TolerationKey {
    Every,
    NotReady,
    Unreachable,
    Other(Box<str>),
}

impl NoExecuteToleration {
    pub fn tolerates(&self, key: &str, value: &str) -> bool {
        let has_key = match &self.key {
            TolerationKey::Every => true,
            TolerationKey::NotReady => key == taint::NOT_READY,
            TolerationKey::Unreachable => key == taint::UNREACHABLE,
            TolerationKey::Other(own) => **own == *key,
        };
        has_key && self.value.as_ref().is_none_or(|own| **own == *value)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimVolume {
    Named(Box<str>),
    /// The name of the volume.
    Ephemeral(Box<str>),
}

/// What of a container can be reached, and what it requests.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    /// By resource, in thousandths of its unit.
    #[serde(rename = "resources", deserialize_with = "requests")]
    pub requests: BTreeMap<String, i64>,
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<Port>,
    /// `Always` if an init container goes on running.
    pub restart_policy: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Port {
    pub name: String,
    pub protocol: String,
    pub container_port: i32,
    pub host_port: i32,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(default)]
    pub phase: String,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub conditions: Vec<PodCondition>,
    #[serde(default)]
    pub init_container_statuses: Vec<ContainerStatus>,
    #[serde(default)]
    pub container_statuses: Vec<ContainerStatus>,
    pub start_time: Option<Time>,
    #[serde(default, deserialize_with = "or_default")]
    pub resource_claim_statuses: Box<[PodResourceClaimStatus]>,
    pub extended_resource_claim_status: Option<Box<PodExtendedResourceClaimStatus>>,
    #[serde(default, rename = "podIP")]
    pub pod_ip: String,
    #[serde(default, rename = "hostIP")]
    pub host_ip: String,
}

fn no_execute_tolerations<'de, D: Deserializer<'de>>(all: D) -> Result<Box<[NoExecuteToleration]>, D::Error> {
    let all = Option::<Vec<core::Toleration>>::deserialize(all)?.unwrap_or_default();
    let read = all.into_iter().filter_map(|own| {
        let parsed = matching::Toleration::parse(own.key, own.operator.as_deref(), own.value, own.effect.as_deref())?;
        let key = match parsed.key {
            None => TolerationKey::Every,
            Some(key) if key == taint::NOT_READY => TolerationKey::NotReady,
            Some(key) if key == taint::UNREACHABLE => TolerationKey::Unreachable,
            Some(key) => TolerationKey::Other(key.into()),
        };
        let covers = parsed.effect.is_none_or(|effect| effect == matching::Effect::NoExecute);
        let value = parsed.value.map(String::into_boxed_str);
        covers.then_some(NoExecuteToleration { key, value, seconds: own.toleration_seconds })
    });
    Ok(read.collect())
}

/// Volumes without a claim are passed over.
fn claim_volumes<'de, D: Deserializer<'de>>(volumes: D) -> Result<Box<[ClaimVolume]>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Volume {
        #[serde(default)]
        name: String,
        persistent_volume_claim: Option<Claim>,
        ephemeral: Option<IgnoredAny>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Claim {
        #[serde(default)]
        claim_name: String,
    }
    let volumes = Option::<Vec<Volume>>::deserialize(volumes)?.unwrap_or_default();
    let claims = volumes.into_iter().filter_map(|volume| match (volume.persistent_volume_claim, volume.ephemeral) {
        (Some(claim), _) => Some(ClaimVolume::Named(claim.claim_name.into())),
        (None, Some(_)) => Some(ClaimVolume::Ephemeral(volume.name.into())),
        (None, None) => None,
    });
    Ok(claims.collect())
}

/// The requests of a container's resources. An amount that cannot be read is none.
fn requests<'de, D: Deserializer<'de>>(resources: D) -> Result<BTreeMap<String, i64>, D::Error> {
    #[derive(Deserialize)]
    struct Resources {
        #[serde(default, deserialize_with = "or_default")]
        requests: BTreeMap<String, ApiQuantity>,
    }
    let Some(resources) = Option::<Resources>::deserialize(resources)? else { return Ok(BTreeMap::new()) };
    let milli = |amount: ApiQuantity| i64::try_from(Quantity::parse(&amount.0).ok()?.as_milli()).ok();
    Ok(resources.requests.into_iter().filter_map(|(name, amount)| Some((name, milli(amount)?))).collect())
}

/// The one node that an affinity names, and the pods. Whatever else it says is passed over.
fn affinity<'de, D: Deserializer<'de>>(affinity: D) -> Result<RequiredAffinity, D::Error> {
    let Some(affinity) = Option::<Affinity>::deserialize(affinity)? else { return Ok(RequiredAffinity::default()) };
    let pods = affinity.pod_affinity.and_then(|pods| pods.required_during_scheduling_ignored_during_execution);
    let required = affinity.node_affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution);
    let mut fields = required.into_iter().flat_map(|required| required.node_selector_terms).filter_map(|term| {
        let mut fields = term.match_fields?.into_iter().filter(|field| field.key == "metadata.name");
        fields.next()?.values?.into_iter().next()
    });
    Ok(RequiredAffinity { pinned_to: fields.next(), required_pods: pods.unwrap_or_default().into() })
}

/// Metadata without who wrote which field: there are many pods, and nobody here asks.
pub(crate) fn lean<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let metadata = ObjectMeta::deserialize(deserializer)?;
    Ok(ObjectMeta { managed_fields: None, ..metadata })
}

impl Pod {
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Names of the claims that it mounts.
    pub fn claims(&self) -> impl Iterator<Item = String> {
        self.spec.claim_volumes.iter().map(|volume| match volume {
            ClaimVolume::Named(claim) => claim.to_string(),
            ClaimVolume::Ephemeral(volume) => format!("{}-{volume}", self.name()),
        })
    }

    /// The name of the object behind one of its ResourceClaims, if there is one yet.
    pub fn resource_claim_name<'a>(&'a self, own: &'a PodResourceClaim) -> Option<&'a str> {
        let status = || self.status.resource_claim_statuses.iter().find(|status| status.name == own.name);
        own.resource_claim_name.as_deref().or_else(|| status()?.resource_claim_name.as_deref())
    }

    /// The name of the claim that stands for its extended resources.
    pub fn extended_resource_claim(&self) -> Option<&str> {
        self.status.extended_resource_claim_status.as_ref().map(|own| own.resource_claim_name.as_str())
    }

    /// Whether it has ResourceClaims, of its own or for extended resources.
    pub fn uses_resource_claims(&self) -> bool {
        !self.spec.resource_claims.is_empty() || self.extended_resource_claim().is_some()
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// Being deleted.
    pub fn is_being_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Ended, well or badly.
    pub fn is_finished(&self) -> bool {
        mainstay_api::pod::is_terminal_phase(&self.status.phase)
    }

    /// Neither ended nor being deleted.
    pub fn is_active(&self) -> bool {
        !self.is_being_deleted() && !self.is_finished()
    }

    pub fn condition(&self, type_: &str) -> Option<&PodCondition> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_)
    }

    pub fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(|ready| ready.status == "True")
    }

    /// Since when it is ready, if it is.
    pub fn ready_since(&self) -> Option<Timestamp> {
        let ready = self.condition("Ready").filter(|ready| ready.status == "True")?;
        ready.last_transition_time.as_ref().map(|Time(at)| *at)
    }

    /// When it will have been ready for `min_ready` seconds; nothing if it is not ready.
    pub fn available_at(&self, min_ready: i32) -> Option<Timestamp> {
        if min_ready <= 0 {
            return self.is_ready().then_some(Timestamp::MIN);
        }
        Some(self.ready_since()? + jiff::SignedDuration::from_secs(min_ready.into()))
    }

    pub fn created(&self) -> Timestamp {
        self.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |Time(at)| *at)
    }
}
