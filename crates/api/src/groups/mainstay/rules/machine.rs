//! Machine.

use crate::{
    field::{Errors, FieldError, Path},
    machine::{Machine, MachineAxis, version_violation},
    strategy::Rules,
};

/// Longest cause, and longest output of a step, that a state may have, in bytes.
const LONGEST_TEXT: usize = 4096;

pub struct MachineRules;

/// A name that a version may have, if there is one.
pub(super) fn version(value: Option<&str>, path: &Path, errors: &mut Errors) {
    if let Some((value, why)) = value.and_then(|value| version_violation(value).map(|why| (value, why))) {
        errors.push(FieldError::invalid(path, value, why));
    }
}

impl Rules for MachineRules {
    type Object = Machine;

    fn default(_: &mut Machine) {}

    fn validate(object: &Machine, errors: &mut Errors) {
        version(object.spec.version.as_deref(), &Path::new("spec").child("version"), errors);
    }

    fn validate_status(object: &Machine, _: &Machine, errors: &mut Errors) {
        let (path, Some(status)) = (Path::new("status"), &object.status) else { return };
        for axis in MachineAxis::ALL {
            let Some(state) = object.state(axis) else { continue };
            for (name, text) in [("message", &state.message), ("output", &state.output)] {
                if text.len() > LONGEST_TEXT {
                    errors.push(FieldError::too_long(&path.child(axis.field()).child(name), LONGEST_TEXT));
                }
            }
        }
        if let Some(own) = &status.version {
            version(own.running.as_deref(), &path.child("version").child("running"), errors);
            version(own.wanted.as_deref(), &path.child("version").child("wanted"), errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, assert_status};

    #[test]
    fn a_machine_has_a_version_that_can_be_one() {
        let machine = |version: &str| {
            json!({
                "apiVersion": "mainstay.dev/v1", "kind": "Machine", "metadata": {"name": "n1"},
                "spec": {"drain": false, "expected": true, "version": version},
            })
        };
        assert_completes::<MachineRules>(machine("2026.11-1~rc2"), machine("2026.11-1~rc2"));
        let words = "must be at most 128 letters, digits and any of `.-_+:~`, and begin with a letter or digit";
        for version in ["", "-rf", "a b", "../x", "v1;reboot", &"x".repeat(129)] {
            let error = format!("spec.version: Invalid value: {version:?}: {words}");
            assert_refused::<MachineRules>(machine(version), &[&error]);
        }
    }

    #[test]
    fn a_state_is_one_of_four_and_its_cause_is_bounded() {
        let machine = json!({"apiVersion": "mainstay.dev/v1", "kind": "Machine", "metadata": {"name": "n1"}});
        let state = |state: &str, message: &str| json!({"status": {"validated": {"state": state, "since": "2026-01-01T00:00:00Z", "message": message}}});
        assert_status::<MachineRules>(&machine, state("failed", "disk"), &[]);
        assert_status::<MachineRules>(
            &machine,
            state("failed", &"x".repeat(5000)),
            &["status.validated.message: Too long: may not be more than 4096 bytes"],
        );
        let printed = |output: &str| json!({"status": {"configured": {"state": "failed", "since": "2026-01-01T00:00:00Z", "output": output}}});
        assert_status::<MachineRules>(&machine, printed(&"x".repeat(4096)), &[]);
        assert_status::<MachineRules>(
            &machine,
            printed(&"x".repeat(1_000_000)),
            &["status.configured.output: Too long: may not be more than 4096 bytes"],
        );
        assert_status::<MachineRules>(
            &machine,
            json!({"status": {"version": {"running": "a b"}}}),
            &[
                "status.version.running: Invalid value: \"a b\": must be at most 128 letters, digits and any of `.-_+:~`, \
               and begin with a letter or digit",
            ],
        );
    }
}
