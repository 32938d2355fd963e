//! Descriptors of the versions that a CustomResourceDefinition serves.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use serde_json::Value;

use super::{
    cel,
    columns::CustomColumns,
    conversion::NoneConversion,
    embedded,
    status::{self, condition_is_true},
    strategy::CustomStrategy,
    structural::{MAX_NODES, Structural, TooLarge},
};
use crate::{
    descriptor::{
        Conversion, Descriptor, FieldPath, NameRule, Scale, Scope, SelectableField, StatusRule, Volatile, Writer,
    },
    table::PrinterColumns,
};

/// What is known of a custom kind besides what every kind has.
pub struct CustomKind {
    /// Of the definition: `<plural>.<group>`.
    pub definition: Box<str>,
    /// The definition as stored, from which OpenAPI takes descriptions. Shared with the store, not copied.
    bytes: Bytes,
    /// Uid and generation of the definition: they change whenever the schema may have.
    pub revision: Box<str>,
    /// Unique among all descriptors of this process.
    pub id: u64,
    pub schema: Arc<Structural>,
    /// Being deleted: nothing new is created.
    pub is_terminating: bool,
    /// What clients of a deprecated version are told.
    pub deprecation: Option<Box<str>>,
    /// The webhook that converts between versions, as `spec.conversion.webhook`.
    pub conversion_webhook: Option<Arc<Value>>,
    /// The version that objects are stored as.
    pub storage_version: Box<str>,
}

impl CustomKind {
    /// The `openAPIV3Schema` of a version, with all its descriptions.
    pub fn openapi_schema(&self, version: &str) -> Option<Value> {
        let mut definition: Value = serde_json::from_slice(&self.bytes).ok()?;
        let versions = definition["spec"]["versions"].as_array_mut()?;
        let version = versions.iter_mut().find(|own| own["name"] == version)?;
        Some(version["schema"]["openAPIV3Schema"].take()).filter(Value::is_object)
    }
}

/// The descriptors of all served versions; none before the definition is established.
pub fn served(definition: &Value, bytes: &Bytes) -> Result<Vec<Descriptor>, TooLarge> {
    if !condition_is_true(definition, status::ESTABLISHED) {
        return Ok(Vec::new());
    }
    let parsed = Parsed::new(definition, bytes)?;
    Ok(parsed.versions.iter().filter(|version| version.raw["served"] == true).map(|v| parsed.descriptor(v)).collect())
}

/// The descriptor of the stored version, served or not: for who deletes all objects of the kind.
pub fn stored(definition: &Value, bytes: &Bytes) -> Result<Option<Descriptor>, TooLarge> {
    let parsed = Parsed::new(definition, bytes)?;
    Ok(parsed.versions.iter().find(|version| version.raw["storage"] == true).map(|version| parsed.descriptor(version)))
}

struct Parsed<'a> {
    definition: &'a Value,
    bytes: &'a Bytes,
    versions: Vec<ParsedVersion<'a>>,
    storage: (Box<str>, Arc<Structural>),
}

struct ParsedVersion<'a> {
    name: &'a str,
    raw: &'a Value,
    schema: Arc<Structural>,
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

impl<'a> Parsed<'a> {
    fn new(definition: &'a Value, bytes: &'a Bytes) -> Result<Self, TooLarge> {
        let mut room = MAX_NODES;
        let mut versions = Vec::new();
        for raw in definition["spec"]["versions"].as_array().into_iter().flatten() {
            let schema = Arc::new(Structural::parse(&raw["schema"]["openAPIV3Schema"], &mut room)?);
            versions.push(ParsedVersion { name: text(raw, "name"), raw, schema });
        }
        let storage = versions.iter().find(|version| version.raw["storage"] == true);
        let storage = storage.map(|version| (version.name.into(), version.schema.clone())).unwrap_or_default();
        Ok(Self { definition, bytes, versions, storage })
    }

    fn descriptor(&self, version: &ParsedVersion<'_>) -> Descriptor {
        let spec = &self.definition["spec"];
        let accepted = &self.definition["status"]["acceptedNames"];
        let names = if text(accepted, "plural").is_empty() { &spec["names"] } else { accepted };
        let group = text(spec, "group").to_owned();
        let (kind, plural) = (text(names, "kind").to_owned(), text(names, "plural").to_owned());
        let list = |name: &str| {
            let listed = names[name].as_array().into_iter().flatten().filter_map(Value::as_str);
            listed.map(|name| name.to_owned().into()).collect()
        };
        let subresources = &version.raw["subresources"];
        let has_status = subresources["status"].is_object();
        let scale = scale(&subresources["scale"]);
        let (storage_version, _) = &self.storage;
        let stored_as = (**storage_version != *version.name).then(|| format!("{group}/{storage_version}").into());
        let strategy = CustomStrategy {
            schema: version.schema.clone(),
            has_status,
            scale: scale.clone(),
            has_embedded: embedded::has_embedded(&version.schema),
            has_rules: cel::has_rules(&version.schema),
        };
        Descriptor {
            version: version.name.to_owned().into(),
            list_kind: text(names, "listKind").to_owned().into(),
            singular: text(names, "singular").to_owned().into(),
            scope: if spec["scope"] == "Cluster" { Scope::Cluster } else { Scope::Namespaced },
            short_names: list("shortNames"),
            categories: list("categories"),
            name_rule: NameRule::Subdomain,
            storage: format!("{group}/{plural}").into(),
            stored_as,
            conversion: self.conversion(version, &group),
            status: if has_status { StatusRule::Separate } else { StatusRule::Absent },
            scale,
            subresources: &[],
            volatile: Volatile::None,
            writer: Writer::Authorized,
            delete_collection: true,
            graceful_deletion: false,
            generation: true,
            returns_deleted: false,
            orphans_by_default: false,
            deletion_finalizer: None,
            encrypted_at_rest: false,
            is_review: false,
            selectable: selectable(version.raw).into(),
            schema: definition_name(&group, version.name, &kind).into(),
            columns: PrinterColumns::Custom(Arc::new(CustomColumns::parse(&version.raw["additionalPrinterColumns"]))),
            strategy: Arc::new(strategy),
            custom: Some(Arc::new(self.custom(version, &group, &kind))),
            group: group.into(),
            kind: kind.into(),
            plural: plural.into(),
        }
    }

    fn custom(&self, version: &ParsedVersion<'_>, group: &str, kind: &str) -> CustomKind {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let metadata = &self.definition["metadata"];
        let conversion = &self.definition["spec"]["conversion"];
        let deprecation = (version.raw["deprecated"] == true).then(|| match text(version.raw, "deprecationWarning") {
            "" => format!("{group}/{} {kind} is deprecated", version.name).into(),
            given => given.into(),
        });
        CustomKind {
            definition: text(metadata, "name").into(),
            bytes: self.bytes.clone(),
            revision: format!("{}/{}", text(metadata, "uid"), metadata["generation"]).into(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            schema: version.schema.clone(),
            is_terminating: metadata["deletionTimestamp"].is_string(),
            deprecation,
            conversion_webhook: (conversion["strategy"] == "Webhook").then(|| Arc::new(conversion["webhook"].clone())),
            storage_version: self.storage.0.clone(),
        }
    }

    /// None for what is stored exactly as it is served: one version, and a schema that never changed.
    fn conversion(&self, version: &ParsedVersion<'_>, group: &str) -> Option<Arc<dyn Conversion>> {
        let (stored_version, stored) = &self.storage;
        let is_first_schema = self.definition["metadata"]["generation"].as_i64().unwrap_or(1) <= 1;
        if **stored_version == *version.name && is_first_schema {
            return None;
        }
        Some(Arc::new(NoneConversion {
            served: version.schema.clone(),
            stored: stored.clone(),
            served_version: format!("{group}/{}", version.name).into(),
            stored_version: format!("{group}/{stored_version}").into(),
        }))
    }
}

/// A path in dot notation: `.spec.replicas`.
pub(super) fn field_path(dotted: &str) -> FieldPath {
    FieldPath::Owned(dotted.trim_start_matches('.').split('.').map(Box::from).collect())
}

fn scale(scale: &Value) -> Option<Scale> {
    if !scale.is_object() {
        return None;
    }
    Some(Scale {
        spec_replicas: field_path(text(scale, "specReplicasPath")),
        status_replicas: field_path(text(scale, "statusReplicasPath")),
        selector: Some(text(scale, "labelSelectorPath")).filter(|path| !path.is_empty()).map(field_path),
    })
}

fn selectable(version: &Value) -> Vec<SelectableField> {
    let listed = version["selectableFields"].as_array().into_iter().flatten();
    let field = |field: &Value| {
        let path = text(field, "jsonPath");
        SelectableField {
            label: path.trim_start_matches('.').to_owned().into(),
            path: field_path(path),
            or: FieldPath::Static(&[]),
            absent: "",
        }
    };
    listed.map(field).collect()
}

/// `com.example.stable.v1.CronTab`: the name of the kind's definition in OpenAPI.
pub fn definition_name(group: &str, version: &str, kind: &str) -> String {
    let reversed: Vec<&str> = group.split('.').rev().collect();
    format!("{}.{version}.{kind}", reversed.join("."))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition() -> Value {
        json!({
            "metadata": {"name": "crontabs.stable.example.com", "uid": "u", "generation": 1},
            "spec": {
                "group": "stable.example.com", "scope": "Namespaced",
                "names": {"plural": "crontabs", "singular": "crontab", "kind": "CronTab", "listKind": "CronTabList", "shortNames": ["ct"], "categories": ["all"]},
                "versions": [
                    {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "description": "D"}}}},
                     "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                     "selectableFields": [{"jsonPath": ".spec.color"}]},
                    {"name": "v1beta1", "served": true, "storage": false, "deprecated": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
                    {"name": "v1alpha1", "served": false, "storage": false, "schema": {"openAPIV3Schema": {"type": "object"}}},
                ],
            },
            "status": {"conditions": [{"type": "Established", "status": "True"}]},
        })
    }

    #[test]
    fn served_versions_of_an_established_definition_are_kinds() {
        let definition = definition();
        let bytes = Bytes::from(definition.to_string());
        let kinds = served(&definition, &bytes).unwrap();
        let [v1, beta] = &kinds[..] else { panic!("{} versions", kinds.len()) };
        assert_eq!((v1.api_version().as_str(), &*v1.storage), ("stable.example.com/v1", "stable.example.com/crontabs"));
        assert_eq!((&*v1.schema, v1.short_names.join(",")), ("com.example.stable.v1.CronTab", "ct".to_owned()));
        assert!(v1.conversion.is_none() && v1.stored_as.is_none(), "stored as it is served");
        assert!(v1.scale.is_some() && v1.status == StatusRule::Separate);
        assert_eq!(&*v1.selectable[0].label, "spec.color");
        assert_eq!(beta.stored_api_version(), "stable.example.com/v1");
        assert!(beta.conversion.is_some());
        let beta = beta.custom.as_ref().unwrap();
        assert_eq!(beta.deprecation.as_deref(), Some("stable.example.com/v1beta1 CronTab is deprecated"));
        let schema = v1.custom.as_ref().unwrap().openapi_schema("v1").unwrap();
        assert_eq!(schema["properties"]["spec"]["description"], "D");
    }

    #[test]
    fn an_unestablished_definition_serves_nothing() {
        let mut definition = definition();
        definition["status"] = json!({});
        let bytes = Bytes::from(definition.to_string());
        assert!(served(&definition, &bytes).unwrap().is_empty());
        assert_eq!(&*stored(&definition, &bytes).unwrap().unwrap().version, "v1");
    }

    #[test]
    fn after_a_change_of_the_schema_stored_objects_are_read_by_the_new_one() {
        let mut definition = definition();
        definition["metadata"]["generation"] = json!(2);
        let kinds = served(&definition, &Bytes::from(definition.to_string())).unwrap();
        assert!(kinds[0].conversion.is_some());
    }
}
