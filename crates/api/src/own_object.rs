//! Kinds of our own. With a spec and a status: [`machine`](crate::machine), [`release`](crate::release), [`cloud`](crate::cloud),
//! [`config_template`](crate::config_template), [`machine_file`](crate::machine_file); with a spec alone, in which nodes report about
//! themselves: [`offer`](crate::offer), [`service_table`](crate::service_table).

use k8s_openapi::{ListableResource, Metadata, Resource, ResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};

/// The names and the documentation of a kind, as an implementation on its spec.
pub trait OwnKind {
    /// `ClusterResourceScope` or `NamespaceResourceScope`.
    type Scope: ResourceScope;
    const KIND: &'static str;
    const LIST_KIND: &'static str;
    const PLURAL: &'static str;
    /// What `kubectl explain` shows of the kind itself.
    const ABOUT: &'static str;
    const SPEC_ABOUT: &'static str = "What is wanted.";
    /// Empty for kinds without a status.
    const STATUS_ABOUT: &'static str = "What was found. Written through the status subresource alone.";
    /// And of everything in it.
    const DEFINITIONS: &'static [DefinitionDoc];
}

/// The documentation of a definition of `dev.mainstay.v1`; its facts are those of the schema table.
pub struct DefinitionDoc {
    pub name: &'static str,
    pub about: &'static str,
    /// Field and words, in the order of their names.
    pub fields: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnObject<S: OwnKind, T> {
    #[serde(default = "api_version")]
    pub api_version: String,
    #[serde(default = "kind::<S>")]
    pub kind: String,
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: S,
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    pub status: Option<T>,
}

/// The status of a kind that has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoStatus {}

/// A kind in which nodes report about themselves, each object under the name of its Node. They live in the server's memory.
pub type NodeObject<S> = OwnObject<S, NoStatus>;

fn api_version() -> String {
    crate::wellknown::mainstay::API_VERSION.to_owned()
}

fn kind<S: OwnKind>() -> String {
    S::KIND.to_owned()
}

impl<S: OwnKind, T> OwnObject<S, T> {
    pub fn new(name: &str, spec: S) -> Self {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        Self { api_version: api_version(), kind: kind::<S>(), metadata, spec, status: None }
    }

    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Empty for kinds without one.
    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }
}

impl<S: OwnKind, T> Resource for OwnObject<S, T> {
    const API_VERSION: &'static str = "mainstay.dev/v1";
    const GROUP: &'static str = "mainstay.dev";
    const KIND: &'static str = S::KIND;
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = S::PLURAL;
    type Scope = S::Scope;
}

impl<S: OwnKind, T> ListableResource for OwnObject<S, T> {
    const LIST_KIND: &'static str = S::LIST_KIND;
}

impl<S: OwnKind, T> Metadata for OwnObject<S, T> {
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
    use std::borrow::Cow;

    use k8s_openapi::schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
    use serde_json::{Map, Value, json};

    use super::{ObjectMeta, OwnKind, OwnObject};

    impl<S: OwnKind, T> JsonSchema for OwnObject<S, T> {
        fn schema_name() -> Cow<'static, str> {
            format!("dev.mainstay.v1.{}", S::KIND).into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            for definition in S::DEFINITIONS {
                let field = |(name, words): &(&str, &str)| ((*name).to_owned(), json!({"description": words}));
                let fields: Map<String, Value> = definition.fields.iter().map(field).collect();
                let schema = json!({"description": definition.about, "type": "object", "properties": fields});
                generator.definitions_mut().insert(format!("dev.mainstay.v1.{}", definition.name), schema);
            }
            let mut metadata = generator.subschema_for::<ObjectMeta>();
            metadata.insert("description".to_owned(), "Standard object's metadata.".into());
            let mut properties = json!({
                "apiVersion": {"description": "The version of this representation of an object.", "type": "string"},
                "kind": {"description": "What the object is.", "type": "string"},
                "metadata": metadata,
                "spec": {"description": S::SPEC_ABOUT},
            });
            if !S::STATUS_ABOUT.is_empty() {
                properties["status"] = json!({"description": S::STATUS_ABOUT});
            }
            json_schema!({"description": S::ABOUT, "type": "object", "properties": properties})
        }
    }
}
