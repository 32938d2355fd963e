//! Conversion between the versions of a custom kind, with the strategy `None`: `apiVersion` changes and nothing else.
//!
//! A stored object may be older than the schema. So what is read is pruned and completed by the schema of the version that is
//! served, as upstream does, and what is written by that of the version that is stored.

use std::sync::Arc;

use serde_json::Value;

use super::{default::apply_defaults, prune::prune_resource, structural::Structural};
use crate::descriptor::Conversion;

pub struct NoneConversion {
    pub served: Arc<Structural>,
    pub stored: Arc<Structural>,
    pub served_version: Box<str>,
    pub stored_version: Box<str>,
}

impl Conversion for NoneConversion {
    fn to_stored(&self, object: &mut Value) {
        if self.served_version != self.stored_version {
            prune_resource(&self.stored, object);
            set_version(object, &self.stored_version);
        }
    }

    fn to_served(&self, object: &mut Value) {
        prune_resource(&self.served, object);
        let _ = apply_defaults(&self.served, object); // of too many some are missing: it can be read, and made smaller
        set_version(object, &self.served_version);
    }
}

fn set_version(object: &mut Value, version: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert("apiVersion".to_owned(), version.into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::crd::testing::schema;

    #[test]
    fn each_version_has_its_own_fields_and_defaults() {
        let version = |fields: Value| {
            Arc::new(schema(
                json!({"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}),
            ))
        };
        let conversion = NoneConversion {
            served: version(json!({"a": {}, "new": {"type": "integer", "default": 1}})),
            stored: version(json!({"a": {}, "b": {}})),
            served_version: "x.io/v2".into(),
            stored_version: "x.io/v1".into(),
        };
        let mut object =
            json!({"apiVersion": "x.io/v1", "kind": "X", "metadata": {"name": "x"}, "spec": {"a": 1, "b": 2}});
        conversion.to_served(&mut object);
        assert_eq!(object["spec"], json!({"a": 1, "new": 1}));
        assert_eq!(object["apiVersion"], "x.io/v2");
        conversion.to_stored(&mut object);
        assert_eq!((&object["spec"], &object["apiVersion"]), (&json!({"a": 1}), &json!("x.io/v1")));
        assert_eq!(object["metadata"]["name"], "x");
    }
}
