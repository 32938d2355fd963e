//! `kubernikus.sap.cc/v1` Klusters as a view of stored `mainstay.dev/v1` ones.
//!
//! Labels and taints of pools are lists of texts there. A text that is neither stays behind when an object is stored;
//! [`list_errors`] finds it first.

use serde_json::{Map, Value, json};

use crate::{
    cloud::kubernikus,
    descriptor::Conversion,
    field::{Errors, FieldError, Path},
    wellknown::mainstay,
};

pub struct KubernikusKluster;

impl Conversion for KubernikusKluster {
    fn to_stored(&self, object: &mut Value) {
        convert(object, mainstay::API_VERSION, |pool| {
            if let Some(Value::Array(labels)) = pool.get("labels") {
                let pairs = labels.iter().filter_map(|label| parse_label(label.as_str()?));
                let labels: Map<String, Value> =
                    pairs.map(|(key, value)| (key.to_owned(), Value::from(value))).collect();
                pool.insert("labels".to_owned(), labels.into());
            }
            if let Some(Value::Array(taints)) = pool.get("taints") {
                let taints = taints.iter().filter_map(|taint| parse_taint(taint.as_str()?)).collect();
                pool.insert("taints".to_owned(), Value::Array(taints));
            }
        });
    }

    fn to_served(&self, object: &mut Value) {
        convert(object, kubernikus::API_VERSION, |pool| {
            if let Some(Value::Object(labels)) = pool.get("labels") {
                let text = |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or_default());
                let labels: Vec<String> = labels.iter().map(text).collect();
                pool.insert("labels".to_owned(), labels.into());
            }
            if let Some(Value::Array(taints)) = pool.get("taints") {
                let taints = taints.iter().map(taint_text).collect();
                pool.insert("taints".to_owned(), Value::Array(taints));
            }
        });
    }
}

fn convert(object: &mut Value, api_version: &str, mut pool: impl FnMut(&mut Map<String, Value>)) {
    let Some(fields) = object.as_object_mut() else { return };
    fields.insert("apiVersion".to_owned(), api_version.into());
    let pools = fields.get_mut("spec").and_then(|spec| spec.get_mut("nodePools")).and_then(Value::as_array_mut);
    pools.into_iter().flatten().filter_map(Value::as_object_mut).for_each(&mut pool);
}

/// `key=value`.
fn parse_label(text: &str) -> Option<(&str, &str)> {
    text.split_once('=').filter(|(key, _)| !key.is_empty())
}

/// `key=value:Effect`, the value being optional.
fn parse_taint(text: &str) -> Option<Value> {
    let (pair, effect) = text.rsplit_once(':')?;
    let taint = match pair.split_once('=') {
        Some((key, value)) => json!({"key": key, "value": value, "effect": effect}),
        None => json!({"key": pair, "effect": effect}),
    };
    (!pair.is_empty()).then_some(taint)
}

fn taint_text(taint: &Value) -> Value {
    if !taint.is_object() {
        return taint.clone();
    }
    let text = |field: &str| taint[field].as_str().unwrap_or_default();
    let (key, effect) = (text("key"), text("effect"));
    match taint["value"].as_str() {
        Some(value) => format!("{key}={value}:{effect}").into(),
        None => format!("{key}:{effect}").into(),
    }
}

/// What of the lists of texts is no label or taint.
pub fn list_errors(object: &Value) -> Errors {
    let mut errors = Errors::new();
    let path = Path::new("spec").child("nodePools");
    let pools = object.pointer("/spec/nodePools").and_then(Value::as_array);
    for (i, pool) in pools.into_iter().flatten().enumerate() {
        let mut check = |list: &str, why: &str, is_good: fn(&str) -> bool| {
            for (j, text) in pool[list].as_array().into_iter().flatten().enumerate() {
                if !text.as_str().is_some_and(is_good) {
                    errors.push(FieldError::invalid(&path.index(i).child(list).index(j), text.clone(), why));
                }
            }
        };
        check("labels", "must be a label such as key=value", |text| parse_label(text).is_some());
        check("taints", "must be a taint such as key=value:NoSchedule", |text| parse_taint(text).is_some());
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served() -> Value {
        json!({
            "apiVersion": "kubernikus.sap.cc/v1", "kind": "Kluster", "metadata": {"name": "k"},
            "spec": {"nodePools": [
                {"name": "a", "flavor": "m1", "labels": ["a=b", "c="], "taints": ["x=y:NoSchedule", "z:NoExecute"]},
                {"name": "b"},
            ]},
        })
    }

    #[test]
    fn labels_and_taints_are_texts_there_and_objects_here() {
        let mut object = served();
        KubernikusKluster.to_stored(&mut object);
        assert_eq!(object["apiVersion"], "mainstay.dev/v1");
        let pool = &object["spec"]["nodePools"][0];
        assert_eq!(pool["labels"], json!({"a": "b", "c": ""}));
        let taints = json!([{"key": "x", "value": "y", "effect": "NoSchedule"}, {"key": "z", "effect": "NoExecute"}]);
        assert_eq!(pool["taints"], taints);
        KubernikusKluster.to_served(&mut object);
        assert_eq!(object, served());
    }

    #[test]
    fn a_text_that_is_neither_is_named() {
        let mut object = served();
        object["spec"]["nodePools"][1] = json!({"labels": ["novalue", "=x"], "taints": ["a=b", ":NoSchedule"]});
        let errors: Vec<String> = list_errors(&object).iter().map(ToString::to_string).collect();
        assert_eq!(errors.len(), 4, "{errors:?}");
        assert_eq!(
            errors[0],
            "spec.nodePools[1].labels[0]: Invalid value: \"novalue\": must be a label such as key=value"
        );
        assert!(list_errors(&served()).is_empty());
    }
}
