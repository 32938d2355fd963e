//! Kinds in which nodes report about themselves, each object under the name of its Node. They live in the server's memory.

use k8s_openapi::{
    ClusterResourceScope, ListableResource, Metadata, Resource, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Deserialize, Serialize};

/// The spec of such a kind, with its names and its documentation.
pub trait NodeObjectSpec {
    const KIND: &'static str;
    const LIST_KIND: &'static str;
    const PLURAL: &'static str;
    /// The words that `kubectl explain` shows, of the kind, of its `spec` and of what that is. The facts are those of
    /// the schema table.
    const WORDS: [&'static str; 3];
    /// And of the spec's fields, with their types.
    const FIELDS: &'static [(&'static str, &'static str, &'static str)];
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeObject<S: NodeObjectSpec> {
    #[serde(default = "api_version::<S>")]
    pub api_version: String,
    #[serde(default = "kind::<S>")]
    pub kind: String,
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: S,
}

fn api_version<S: NodeObjectSpec>() -> String {
    NodeObject::<S>::API_VERSION.to_owned()
}

fn kind<S: NodeObjectSpec>() -> String {
    S::KIND.to_owned()
}

impl<S: NodeObjectSpec> NodeObject<S> {
    pub fn new(node: &str, spec: S) -> Self {
        let metadata = ObjectMeta { name: Some(node.to_owned()), ..ObjectMeta::default() };
        Self { api_version: api_version::<S>(), kind: kind::<S>(), metadata, spec }
    }
}

impl<S: NodeObjectSpec> Resource for NodeObject<S> {
    const API_VERSION: &'static str = "mainstay.dev/v1";
    const GROUP: &'static str = "mainstay.dev";
    const KIND: &'static str = S::KIND;
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = S::PLURAL;
    type Scope = ClusterResourceScope;
}

impl<S: NodeObjectSpec> ListableResource for NodeObject<S> {
    const LIST_KIND: &'static str = S::LIST_KIND;
}

impl<S: NodeObjectSpec> Metadata for NodeObject<S> {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// What `kubectl explain` shows, from which the file of descriptions is written.
#[cfg(test)]
mod documentation {
    use std::{borrow::Cow, marker::PhantomData};

    use k8s_openapi::schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
    use serde_json::{Map, Value, json};

    use super::{NodeObject, NodeObjectSpec, ObjectMeta};

    impl<S: NodeObjectSpec> JsonSchema for NodeObject<S> {
        fn schema_name() -> Cow<'static, str> {
            format!("dev.mainstay.v1.{}", S::KIND).into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let [about, spec, _] = S::WORDS;
            json_schema!({
                "description": about,
                "type": "object",
                "properties": {
                    "apiVersion": {
                        "description": "The version of this representation of an object.",
                        "type": "string",
                    },
                    "kind": {"description": "What the object is.", "type": "string"},
                    "metadata": described(generator.subschema_for::<ObjectMeta>(), "Standard object's metadata."),
                    "spec": described(generator.subschema_for::<SpecOf<S>>(), spec),
                },
            })
        }
    }

    fn described(mut schema: Schema, words: &str) -> Schema {
        schema.insert("description".to_owned(), words.into());
        schema
    }

    /// The definition of a spec.
    struct SpecOf<S>(PhantomData<S>);

    impl<S: NodeObjectSpec> JsonSchema for SpecOf<S> {
        fn schema_name() -> Cow<'static, str> {
            format!("dev.mainstay.v1.{}Spec", S::KIND).into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            let field = |(name, type_, words): &(&str, &str, &str)| {
                ((*name).to_owned(), json!({"description": words, "type": type_}))
            };
            let properties: Map<String, Value> = S::FIELDS.iter().map(field).collect();
            let [_, _, about] = S::WORDS;
            json_schema!({"description": about, "type": "object", "properties": properties})
        }
    }
}
