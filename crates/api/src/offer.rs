//! Offers: what a machine can take right now, in its own words.
//!
//! An agent publishes one per machine, named like its Node, and renews it before its time is over and
//! whenever it changes. It lives in the server's memory. Who places pods believes an offer for its time to live
//! *from when it was received*, so that clocks need not agree, and subtracts from it what was bound
//! to the machine after [`OfferSpec::seen`].

mod ports;

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::{
    ClusterResourceScope, ListableResource, Metadata, Resource,
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{MicroTime, ObjectMeta},
    },
    schemars::{JsonSchema, Schema, SchemaGenerator, json_schema},
};
pub use ports::{PortRangeError, Ports};
use serde::{Deserialize, Serialize};

/// The ports a machine gives to pods that ask for any, unless it says otherwise.
pub const AUTOMATIC_PORTS: &str = "31000-32000";
/// The ports a pod may ask for by number, unless the machine says otherwise.
pub const EXPLICIT_PORTS: &str = "1-65535";

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Offer {
    #[serde(default = "Offer::api_version")]
    pub api_version: String,
    #[serde(default = "Offer::kind")]
    pub kind: String,
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: OfferSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OfferSpec {
    /// What is free: `cpu`, `memory`, `ephemeral-storage`, `pods` and extended resources.
    pub free: BTreeMap<String, Quantity>,
    /// Ports for pods that ask for any, free ones only: `["31000-31007", "31009-32000"]`.
    pub automatic_ports: Vec<String>,
    /// Where ports that pods ask for by number may lie, taken or not: `["1-65535"]`.
    pub explicit_ports: Vec<String>,
    /// How long the offer is good for.
    pub ttl_seconds: i32,
    /// When the machine made it, by the machine's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_time: Option<MicroTime>,
    /// The newest version of a pod on the machine that this takes into account.
    pub seen: String,
}

impl Offer {
    fn api_version() -> String {
        Self::API_VERSION.to_owned()
    }

    fn kind() -> String {
        Self::KIND.to_owned()
    }

    pub fn new(node: &str, spec: OfferSpec) -> Self {
        let metadata = ObjectMeta { name: Some(node.to_owned()), ..ObjectMeta::default() };
        Self { api_version: Self::api_version(), kind: Self::kind(), metadata, spec }
    }
}

impl Resource for Offer {
    const API_VERSION: &'static str = "mainstay.dev/v1";
    const GROUP: &'static str = "mainstay.dev";
    const KIND: &'static str = "Offer";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "offers";
    type Scope = ClusterResourceScope;
}

impl ListableResource for Offer {
    const LIST_KIND: &'static str = "OfferList";
}

impl Metadata for Offer {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The words that `kubectl explain` shows. The facts are those of the schema table.
impl JsonSchema for Offer {
    fn schema_name() -> Cow<'static, str> {
        "dev.mainstay.v1.Offer".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Offer is what a machine can take right now, in its own words. The agent of the machine \
                publishes it under the name of the Node and renews it before its time is over and whenever it changes.",
            "type": "object",
            "properties": {
                "apiVersion": {
                    "description": "The version of this representation of an object.",
                    "type": "string",
                },
                "kind": {"description": "What the object is.", "type": "string"},
                "metadata": described(generator.subschema_for::<ObjectMeta>(), "Standard object's metadata."),
                "spec": described(generator.subschema_for::<OfferSpec>(), "What is offered, and for how long."),
            },
        })
    }
}

impl JsonSchema for OfferSpec {
    fn schema_name() -> Cow<'static, str> {
        "dev.mainstay.v1.OfferSpec".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "OfferSpec says what is free on a machine.",
            "type": "object",
            "properties": {
                "automaticPorts": {
                    "description": "Ranges of host ports that are free for pods that ask for any port: 31000-31999.",
                    "type": "array",
                },
                "explicitPorts": {
                    "description": "Ranges in which host ports that pods ask for by number may lie, taken or not.",
                    "type": "array",
                },
                "free": {
                    "description": "What is free: cpu, memory, ephemeral-storage, pods and extended resources. It is \
                        what the machine has for pods less what the pods it holds ask for.",
                    "type": "object",
                },
                "renewTime": {
                    "description": "When the machine made the offer, by its own clock.",
                    "type": "string",
                },
                "seen": {
                    "description": "The newest resourceVersion of the machine's pods that the offer takes into \
                        account. What was placed there later is to be subtracted from what is free.",
                    "type": "string",
                },
                "ttlSeconds": {
                    "description": "How long the offer is good for, counted from when it is received. A machine \
                        without a good offer gets no new pods.",
                    "type": "integer",
                },
            },
        })
    }
}

pub(crate) fn described(mut schema: Schema, words: &str) -> Schema {
    schema.insert("description".to_owned(), words.into());
    schema
}
