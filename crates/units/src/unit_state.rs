//! The state that a unit is to be in, as fleet has it: its manifest is there in each of them, and its pods only when it is launched.

use serde_json::{Value, json};

/// On a DaemonSet that is not launched: no node has this label.
const LAUNCHED_LABEL: &str = "mainstay.dev/unit-launched";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnitState {
    /// `fleetctl submit`: known, and nothing more.
    Inactive,
    /// `fleetctl load`, `stop`: fleet chose a machine already. Pods are given to nodes when they start, so it is the same as inactive.
    Loaded,
    /// `fleetctl start`.
    #[default]
    Launched,
}

/// Puts a workload into the state; other manifests have none. A manifest that is applied again with another state changes nothing else.
pub fn set_state(manifest: &mut Value, state: UnitState) {
    if state == UnitState::Launched {
        return;
    }
    let kind = manifest["kind"].as_str().unwrap_or_default().to_owned();
    let spec = &mut manifest["spec"];
    match kind.as_str() {
        "Deployment" | "StatefulSet" => spec["replicas"] = json!(0),
        "Job" => spec["suspend"] = json!(true),
        "DaemonSet" => spec["template"]["spec"]["nodeSelector"][LAUNCHED_LABEL] = json!("true"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Unit, UnitFile, UnitName, convert};

    fn manifest(options: &str, state: UnitState) -> Value {
        let file = UnitFile::parse(&format!("[Service]\nExecStart=/usr/bin/docker run --rm nginx\n{options}")).unwrap();
        let unit = Unit { name: UnitName::parse("web").unwrap(), file };
        let mut manifest = convert(&[unit]).unwrap().manifests.remove(0);
        set_state(&mut manifest, state);
        manifest
    }

    #[test]
    fn what_is_not_launched_is_there_without_pods() {
        for (options, pointer, waiting, launched) in [
            ("Restart=always", "/spec/replicas", json!(0), json!(1)),
            ("Type=oneshot", "/spec/suspend", json!(true), Value::Null),
            (
                "[X-Fleet]\nGlobal=true",
                "/spec/template/spec/nodeSelector/mainstay.dev~1unit-launched",
                json!("true"),
                Value::Null,
            ),
        ] {
            let at = |state| manifest(options, state).pointer(pointer).cloned().unwrap_or_default();
            assert_eq!((at(UnitState::Inactive), at(UnitState::Loaded)), (waiting.clone(), waiting), "{options}");
            assert_eq!(at(UnitState::Launched), launched, "{options}");
        }
    }
}
