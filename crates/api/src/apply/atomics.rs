//! Which lists, maps and structs of a configuration are replaced as a whole: a mutation that sets one would drop what it does not say.

use serde_json::Value;

use super::typed::{Structure, TypeRef};

/// Their paths, as upstream prints them: `.spec.selector`, `.spec.containers[0].command`.
pub fn atomic_paths<'s, T: TypeRef<'s>>(ty: T, config: &Value) -> Vec<String> {
    let mut found = Vec::new();
    visit(ty, config, &mut String::new(), &mut found);
    found
}

fn visit<'s, T: TypeRef<'s>>(ty: T, value: &Value, path: &mut String, found: &mut Vec<String>) {
    let length = path.len();
    match (ty.structure(), value) {
        (Structure::Atomic, Value::Object(_) | Value::Array(_)) | (Structure::Deduced, Value::Array(_)) => {
            found.push(path.clone());
        }
        (Structure::Map | Structure::Deduced, Value::Object(fields)) => {
            for (name, value) in fields {
                if let Some(field) = ty.field(name) {
                    path.push('.');
                    path.push_str(name);
                    visit(field.ty, value, path, found);
                    path.truncate(length);
                }
            }
        }
        (Structure::ListMap { item, .. }, Value::Array(items)) => {
            for (index, value) in items.iter().enumerate() {
                path.push_str(&format!("[{index}]"));
                visit(item, value, path, found);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{apply::builtin::BuiltinType, schema::Schema};

    #[test]
    fn what_is_replaced_as_a_whole_is_named_by_its_path() {
        let ty = BuiltinType::root(Schema::builtin(), "io.k8s.api.apps.v1.Deployment").unwrap();
        let config = json!({ "spec": { "replicas": 2, "selector": { "matchLabels": { "a": "b" } }, "template": { "spec": {
            "containers": [{ "name": "a", "image": "b", "command": ["c"], "ports": [{ "containerPort": 1 }] }],
        } } } });
        let found = atomic_paths(ty, &config);
        assert_eq!(found, [".spec.selector", ".spec.template.spec.containers[0].command"]);
        assert!(atomic_paths(ty, &json!({ "metadata": { "labels": { "a": "b" } } })).is_empty());
    }
}
