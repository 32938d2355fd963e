//! Services as templates see them, each made once per change: thousands of templates may read the same Service, and each of them looks at it several times
//! while it brings a version to its consumers.

use std::{collections::HashMap, sync::Arc};

use mainstay_templates::version;
use parking_lot::Mutex;
use serde_json::Value;

use crate::runtime::ObjectKey;

/// What templates see of a Service, as JSON, and a text that changes with it.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceValue {
    pub json: Arc<str>,
    pub digest: String,
}

impl ServiceValue {
    pub fn new(value: &Value) -> Self {
        let json: Arc<str> = value.to_string().into();
        Self { digest: version(&json), json }
    }
}

#[derive(Default)]
pub struct ServiceValues(Mutex<Known>);

#[derive(Default)]
struct Known {
    values: HashMap<ObjectKey, ServiceValue>,
    /// Counts changes of Services.
    changes: u64,
}

impl ServiceValues {
    /// The Service or its endpoints changed.
    pub fn forget(&self, service: &ObjectKey) {
        let mut known = self.0.lock();
        known.changes += 1;
        known.values.remove(service);
    }

    /// What is known of a Service, or what `read` makes of it; nothing if there is no such Service.
    pub fn get(&self, service: &ObjectKey, read: impl FnOnce() -> Option<Value>) -> Option<ServiceValue> {
        let changes = {
            let known = self.0.lock();
            if let Some(value) = known.values.get(service) {
                return Some(value.clone());
            }
            known.changes
        };
        let value = ServiceValue::new(&read()?);
        let mut known = self.0.lock();
        // What changed meanwhile may not be in it.
        if known.changes == changes {
            known.values.insert(service.clone(), value.clone());
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_service_is_read_once_per_change_and_never_kept_if_it_changed_meanwhile() {
        let (values, key) = (ServiceValues::default(), ObjectKey::new("shop", "db"));
        let first = values.get(&key, || Some(json!({ "ready": ["10.0.0.1"] }))).unwrap();
        assert_eq!(values.get(&key, || panic!("it is known")), Some(first.clone()));
        values.forget(&key);
        let overtaken = values.get(&key, || {
            values.forget(&key);
            Some(json!({ "ready": [] }))
        });
        assert_ne!(overtaken.unwrap().digest, first.digest);
        let last = values.get(&key, || Some(json!({ "ready": ["10.0.0.2"] }))).unwrap();
        assert_eq!(&*last.json, r#"{"ready":["10.0.0.2"]}"#);
        values.forget(&key);
        assert_eq!(values.get(&key, || None), None);
    }
}
