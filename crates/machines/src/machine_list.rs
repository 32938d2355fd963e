//! Decodes lists of Machines, for questions about many of them.
//!
//! Only what questions are about is decoded, and handed on as a [`Machine`] without the rest: most of an object says who wrote which of its
//! fields, and reading that takes longer than all else. A list is decoded in one pass.

use mainstay_api::machine::{Machine, MachineSpec, MachineStatus};
use serde::Deserialize;
use serde_json::value::RawValue;

/// What questions are about.
#[derive(Deserialize)]
struct MachineFacts {
    metadata: Name,
    #[serde(default)]
    spec: MachineSpec,
    #[serde(default)]
    status: Option<MachineStatus>,
}

#[derive(Deserialize)]
struct Name {
    name: String,
}

#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: PageMeta,
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
struct PageMeta {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

impl From<MachineFacts> for Machine {
    fn from(facts: MachineFacts) -> Self {
        Self { status: facts.status, ..Self::new(&facts.metadata.name, facts.spec) }
    }
}

/// A list, or a part of one.
pub struct MachineList {
    pub machines: Vec<Machine>,
    /// Whether nothing follows.
    pub is_complete: bool,
}

pub fn decode_list(text: &str) -> serde_json::Result<MachineList> {
    let page: Page<MachineFacts> = serde_json::from_str(text)?;
    let is_complete = page.metadata.next.is_none_or(|next| next.is_empty());
    Ok(MachineList { machines: page.items.into_iter().map(Machine::from).collect(), is_complete })
}

/// Each machine of a list, with all that the server said of it.
pub fn decode_whole(text: &str) -> serde_json::Result<Vec<(Machine, Box<RawValue>)>> {
    let page: Page<Box<RawValue>> = serde_json::from_str(text)?;
    let machine = |json: Box<RawValue>| {
        let facts: MachineFacts = serde_json::from_str(json.get())?;
        Ok((facts.into(), json))
    };
    page.items.into_iter().map(machine).collect()
}

#[cfg(test)]
mod tests {
    use mainstay_api::machine::MachineAxis;
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_machine_is_read_what_questions_are_about() {
        let own = |manager: &str| json!({"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:version": {}}}});
        let a = json!({
            "metadata": {"name": "a", "labels": {"rack": "7"}, "managedFields": [own("one"), own("other")]},
            "spec": {"expected": true, "version": "v2"},
            "status": {
                "version": {"running": "v1", "wanted": "v2"},
                "seen": {"state": "failed", "since": "2026-01-01T00:00:00Z"},
            },
        });
        let b = json!({"metadata": {"name": "b"}, "spec": {"expected": true, "drain": false}});
        let list = |next: &str, items: &[&serde_json::Value]| {
            json!({"kind": "MachineList", "metadata": {"resourceVersion": "7", "continue": next}, "items": items})
                .to_string()
        };
        let part = decode_list(&list("x", &[&a, &b])).unwrap();
        assert!(!part.is_complete);
        let [first, second] = &part.machines[..] else { panic!("two machines") };
        assert_eq!(
            (first.name(), first.running_version(), first.spec.version.as_deref()),
            ("a", Some("v1"), Some("v2"))
        );
        assert_eq!(first.state(MachineAxis::Seen).unwrap().since.0, "2026-01-01T00:00:00Z".parse().unwrap());
        assert_eq!((second.name(), second.spec.expected, &second.status), ("b", true, &None));
        assert!(decode_list(&list("", &[])).unwrap().is_complete);
        assert!(decode_list(r#"{"kind": "MachineList", "items": []}"#).unwrap().is_complete);
        assert!(decode_list(r#"{"kind": "Status"}"#).is_err());

        let whole = decode_whole(&list("", &[&a, &b])).unwrap();
        assert_eq!((whole[0].0.name(), whole[0].1.get()), ("a", a.to_string().as_str()));
    }
}
