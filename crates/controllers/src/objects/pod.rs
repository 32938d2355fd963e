//! Pod as far as controllers read it.
//!
//! Read straight from the API's bytes: what is not named here is neither parsed nor kept.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{self as core, Affinity, ContainerStatus, PodCondition},
    apimachinery::pkg::{
        api::resource::Quantity as ApiQuantity,
        apis::meta::v1::{ObjectMeta, Time},
    },
};
use mainstay_api::{narrow, narrow::or_default, quantity::Quantity};
use serde::{Deserialize, Deserializer};

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
    /// The node it is meant for before it is placed, if its affinity names exactly one.
    #[serde(default, rename = "affinity", deserialize_with = "pinned_to")]
    pub pinned_to: Option<String>,
    /// The name it has below its subdomain, which is a Service's name.
    #[serde(default)]
    pub hostname: String,
    #[serde(default)]
    pub subdomain: String,
    #[serde(default)]
    pub host_network: bool,
    #[serde(default, deserialize_with = "or_default")]
    pub init_containers: Vec<Container>,
    #[serde(default, deserialize_with = "or_default")]
    pub containers: Vec<Container>,
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
    #[serde(default, rename = "podIP")]
    pub pod_ip: String,
    #[serde(default, rename = "hostIP")]
    pub host_ip: String,
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

/// The one node that an affinity names. Whatever else it says is passed over.
fn pinned_to<'de, D: Deserializer<'de>>(affinity: D) -> Result<Option<String>, D::Error> {
    let Some(affinity) = Option::<Affinity>::deserialize(affinity)? else { return Ok(None) };
    let required = affinity.node_affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution);
    let mut fields = required.into_iter().flat_map(|required| required.node_selector_terms).filter_map(|term| {
        let mut fields = term.match_fields?.into_iter().filter(|field| field.key == "metadata.name");
        fields.next()?.values?.into_iter().next()
    });
    Ok(fields.next())
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
