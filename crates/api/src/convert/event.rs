//! `events.k8s.io/v1` and `v1` events are one stored kind with two vocabularies.
//!
//! Nothing is computed and nothing is lost: each field of one has exactly one name in the other.
//! Objects are stored as `v1`; field selectors use the names of the version that is asked.

use serde_json::Value;

use crate::descriptor::Conversion;

/// `events.k8s.io/v1` as a view of stored `v1` events.
pub struct NewEvent;

/// Name in `v1`, name in `events.k8s.io/v1`.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

impl Conversion for NewEvent {
    fn to_stored(&self, object: &mut Value) {
        rename(object, "v1", NAMES.map(|(old, new)| (new, old)));
    }

    fn to_served(&self, object: &mut Value) {
        rename(object, "events.k8s.io/v1", NAMES);
    }
}

fn rename(object: &mut Value, api_version: &str, names: [(&str, &str); 7]) {
    let Some(fields) = object.as_object_mut() else { return };
    fields.insert("apiVersion".to_owned(), api_version.into());
    for (from, to) in names {
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stored() -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "web.17", "namespace": "default"},
            "involvedObject": {"kind": "Pod", "name": "web", "fieldPath": "spec.containers{web}"},
            "related": {"kind": "Node", "name": "n1"},
            "reason": "BackOff",
            "action": "Restarting",
            "message": "Back-off restarting failed container",
            "source": {"component": "agent", "host": "n1"},
            "firstTimestamp": "2025-01-01T00:00:00Z",
            "lastTimestamp": "2025-01-01T00:05:00Z",
            "count": 7,
            "type": "Warning",
            "eventTime": "2025-01-01T00:00:00.000001Z",
            "series": {"count": 3, "lastObservedTime": "2025-01-01T00:05:00.000000Z"},
            "reportingComponent": "mainstay/agent",
            "reportingInstance": "n1",
        })
    }

    #[test]
    fn each_field_has_its_newer_name() {
        let mut event = stored();
        NewEvent.to_served(&mut event);
        assert_eq!(
            event,
            json!({
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                "metadata": {"name": "web.17", "namespace": "default"},
                "regarding": {"kind": "Pod", "name": "web", "fieldPath": "spec.containers{web}"},
                "related": {"kind": "Node", "name": "n1"},
                "reason": "BackOff",
                "action": "Restarting",
                "note": "Back-off restarting failed container",
                "deprecatedSource": {"component": "agent", "host": "n1"},
                "deprecatedFirstTimestamp": "2025-01-01T00:00:00Z",
                "deprecatedLastTimestamp": "2025-01-01T00:05:00Z",
                "deprecatedCount": 7,
                "type": "Warning",
                "eventTime": "2025-01-01T00:00:00.000001Z",
                "series": {"count": 3, "lastObservedTime": "2025-01-01T00:05:00.000000Z"},
                "reportingController": "mainstay/agent",
                "reportingInstance": "n1",
            })
        );
    }

    #[test]
    fn a_round_trip_changes_nothing() {
        for original in [stored(), json!({"apiVersion": "v1", "kind": "Event", "involvedObject": {}})] {
            let mut event = original.clone();
            NewEvent.to_served(&mut event);
            assert_ne!(event, original);
            NewEvent.to_stored(&mut event);
            assert_eq!(event, original);
        }
    }

    #[test]
    fn what_is_not_an_object_is_left_alone() {
        let mut odd = json!(["x"]);
        NewEvent.to_served(&mut odd);
        NewEvent.to_stored(&mut odd);
        assert_eq!(odd, json!(["x"]));
    }
}
