//! Service tables: how far a machine has come in sending where Services now end.
//!
//! The agent of a machine writes one, named like its Node, at its start and whenever a change that took a ready
//! endpoint away has come into force there. From all of them together follows that nobody sends to a pod any
//! longer, and that it may be stopped; and that nobody routes to the addresses of a machine that is gone, and
//! that they may be given to another. It lives in the server's memory.

use std::borrow::Cow;

use k8s_openapi::{
    ClusterResourceScope, ListableResource, Metadata, Resource,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    schemars::{JsonSchema, Schema, SchemaGenerator, json_schema},
};
use serde::{Deserialize, Serialize};

use crate::offer::described;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTable {
    #[serde(default = "ServiceTable::api_version")]
    pub api_version: String,
    #[serde(default = "ServiceTable::kind")]
    pub kind: String,
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: ServiceTableSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceTableSpec {
    /// The newest resourceVersion of an EndpointSlice change that is in force on the machine.
    pub endpoints: String,
    /// The newest resourceVersion of a change of Nodes that the machine's routes follow.
    pub nodes: String,
}

impl ServiceTable {
    fn api_version() -> String {
        Self::API_VERSION.to_owned()
    }

    fn kind() -> String {
        Self::KIND.to_owned()
    }

    pub fn new(node: &str, spec: ServiceTableSpec) -> Self {
        let metadata = ObjectMeta { name: Some(node.to_owned()), ..ObjectMeta::default() };
        Self { api_version: Self::api_version(), kind: Self::kind(), metadata, spec }
    }
}

impl Resource for ServiceTable {
    const API_VERSION: &'static str = "mainstay.dev/v1";
    const GROUP: &'static str = "mainstay.dev";
    const KIND: &'static str = "ServiceTable";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "servicetables";
    type Scope = ClusterResourceScope;
}

impl ListableResource for ServiceTable {
    const LIST_KIND: &'static str = "ServiceTableList";
}

impl Metadata for ServiceTable {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The words that `kubectl explain` shows. The facts are those of the schema table.
impl JsonSchema for ServiceTable {
    fn schema_name() -> Cow<'static, str> {
        "dev.mainstay.v1.ServiceTable".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "ServiceTable is how far a machine has come in sending where Services now end. The agent of \
                the machine writes it under the name of the Node. A pod is stopped once no machine sends to it.",
            "type": "object",
            "properties": {
                "apiVersion": {
                    "description": "The version of this representation of an object.",
                    "type": "string",
                },
                "kind": {"description": "What the object is.", "type": "string"},
                "metadata": described(generator.subschema_for::<ObjectMeta>(), "Standard object's metadata."),
                "spec": described(generator.subschema_for::<ServiceTableSpec>(), "What is in force on the machine."),
            },
        })
    }
}

impl JsonSchema for ServiceTableSpec {
    fn schema_name() -> Cow<'static, str> {
        "dev.mainstay.v1.ServiceTableSpec".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "ServiceTableSpec says which changes are in force on a machine.",
            "type": "object",
            "properties": {
                "endpoints": {
                    "description": "The newest resourceVersion of a change of EndpointSlices that is in force: the \
                        machine sends to no pod that was taken out up to then.",
                    "type": "string",
                },
                "nodes": {
                    "description": "The newest resourceVersion of a change of Nodes that the machine's routes follow.",
                    "type": "string",
                },
            },
        })
    }
}
