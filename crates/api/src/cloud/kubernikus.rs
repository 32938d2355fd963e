//! Klusters as `kubernikus.sap.cc/v1`: the same objects in the form of Kubernikus, so that its manifests and clients go on working.
//!
//! Objects are stored as `mainstay.dev/v1`. The forms differ in pools alone: labels are a list of `key=value` and taints one of
//! `key=value:Effect` here. [`crate::convert::KubernikusKluster`] converts; this type says what is served, and is never decoded.

use k8s_openapi::{ListableResource, NamespaceResourceScope, Resource};

pub const GROUP: &str = "kubernikus.sap.cc";
pub const API_VERSION: &str = "kubernikus.sap.cc/v1";

pub struct KubernikusKluster;

impl Resource for KubernikusKluster {
    const API_VERSION: &'static str = API_VERSION;
    const GROUP: &'static str = GROUP;
    const KIND: &'static str = "Kluster";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "klusters";
    type Scope = NamespaceResourceScope;
}

impl ListableResource for KubernikusKluster {
    const LIST_KIND: &'static str = "KlusterList";
}

/// What `kubectl explain` shows, from which the file of descriptions is written.
#[cfg(test)]
mod documentation {
    use std::borrow::Cow;

    use k8s_openapi::{
        apimachinery::pkg::apis::meta::v1::ObjectMeta,
        schemars::{JsonSchema, Schema, SchemaGenerator, json_schema},
    };
    use serde_json::{Map, Value, json};

    use super::KubernikusKluster;
    use crate::{
        cloud::{
            kluster::{KlusterSpec, TERMINATION_PROTECTION},
            node_pool::NodePoolSpec,
        },
        own_object::{DefinitionDoc, OwnKind},
    };

    const PACKAGE: &str = "cc.sap.kubernikus.v1";

    /// The words of a definition of `mainstay.dev`, with other ones for some fields.
    fn described(definitions: &[DefinitionDoc], name: &str, others: &[(&str, &str)]) -> Value {
        let definition = definitions.iter().find(|definition| definition.name == name);
        let fields = definition.iter().flat_map(|definition| definition.fields).map(|(field, words)| {
            let other = others.iter().find(|(other, _)| other == field).map(|(_, words)| words);
            ((*field).to_owned(), json!({"description": other.unwrap_or(words)}))
        });
        let fields: Map<String, Value> = fields.collect();
        json!({"description": definition.map(|own| own.about), "type": "object", "properties": fields})
    }

    impl JsonSchema for KubernikusKluster {
        fn schema_name() -> Cow<'static, str> {
            format!("{PACKAGE}.Kluster").into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let pool_words = [
                ("labels", "Labels that nodes have when they register, each as key=value."),
                ("taints", "Taints that nodes have when they register, each as key=value:Effect."),
            ];
            let spec = described(KlusterSpec::DEFINITIONS, "KlusterSpec", &[]);
            let pool = described(NodePoolSpec::DEFINITIONS, "KlusterNodePool", &pool_words);
            generator.definitions_mut().insert(format!("{PACKAGE}.KlusterSpec"), spec);
            generator.definitions_mut().insert(format!("{PACKAGE}.NodePool"), pool);
            let mut metadata = generator.subschema_for::<ObjectMeta>();
            let words =
                format!("Standard object's metadata. The annotation {TERMINATION_PROTECTION} forbids deletion.");
            metadata.insert("description".to_owned(), words.into());
            json_schema!({
                "description": "Kluster is a Kluster of mainstay.dev in the form of Kubernikus.",
                "type": "object",
                "properties": {
                    "apiVersion": {"description": "The version of this representation of an object.", "type": "string"},
                    "kind": {"description": "What the object is.", "type": "string"},
                    "metadata": metadata,
                    "spec": {"description": "What is wanted."},
                    "status": {"description": "What was found. Written through the status subresource alone."},
                },
            })
        }
    }
}
