//! Merge patches of the status of a Machine that set a state whole.
//!
//! A merge patch leaves alone what it does not name. So that a machine which is well again does not keep the cause and the output of its last
//! failure, or one that was provisioned anew the version that it ran before, everything is named.

use mainstay_api::machine::{MachineState, MachineVersion};
use serde_json::{Value, json};

pub fn state_patch(state: Option<&MachineState>) -> Value {
    let Some(MachineState { state, since, message, output }) = state else { return Value::Null };
    let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    json!({"state": state, "since": since, "message": text(message), "output": text(output)})
}

pub fn version_patch(version: Option<&MachineVersion>) -> Value {
    let Some(MachineVersion { running, running_since, wanted }) = version else { return Value::Null };
    json!({"running": running, "runningSince": running_since, "wanted": wanted})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_state_does_not_say_is_taken_away() {
        let since = "2026-01-01T00:00:00Z";
        let state = |value: Value| state_patch(serde_json::from_value(value).ok().as_ref());
        assert_eq!(
            state(json!({"state": "success", "since": since})),
            json!({"state": "success", "since": since, "message": null, "output": null})
        );
        let failed = json!({"state": "failed", "since": since, "message": "exit code 1", "output": "disk is full"});
        assert_eq!(state(failed.clone()), failed);
        assert_eq!(state_patch(None), Value::Null);
        let wanted = MachineVersion { wanted: Some("v2".to_owned()), ..MachineVersion::default() };
        assert_eq!(version_patch(Some(&wanted)), json!({"running": null, "runningSince": null, "wanted": "v2"}));
    }
}
