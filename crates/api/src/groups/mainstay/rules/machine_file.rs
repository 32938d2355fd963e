//! MachineFile.

use mainstay_templates::version;

use crate::{
    config_template::OutputKey,
    field::{Errors, FieldError, Path},
    machine_file::{FileAttributes, MachineFile, is_account, parse_mode, path_violation},
    strategy::Rules,
    validation::{
        check::{ExactlyOne, immutable},
        names,
    },
};

/// Longest cause that a status may have, in bytes.
const LONGEST_MESSAGE: usize = 4096;

pub struct MachineFileRules;

impl Rules for MachineFileRules {
    type Object = MachineFile;

    fn default(_: &mut MachineFile) {}

    fn prepare_create(object: &mut MachineFile) {
        object.status = None;
    }

    fn validate(object: &MachineFile, errors: &mut Errors) {
        let (path, spec) = (Path::new("spec"), &object.spec);
        names::require(&spec.node_name, &path.child("nodeName"), names::dns1123_subdomain, errors);
        names::require(&spec.template, &path.child("template"), names::dns1123_subdomain, errors);
        if !version::is_version(&spec.version) {
            let words = "must be a version: ten hexadecimal digits";
            errors.push(FieldError::invalid(&path.child("version"), &*spec.version, words));
        }
        validate_file(&spec.file, &path, errors);
        let key = |source: &OutputKey, path: &Path, errors: &mut Errors| {
            names::require(&source.name, &path.child("name"), names::dns1123_subdomain, errors);
            names::require(&source.key, &path.child("key"), names::config_map_key, errors);
        };
        ExactlyOne::new("content (configMap or secret)", &path.child("content"), errors)
            .or("configMap", &spec.content.config_map, key)
            .or("secret", &spec.content.secret, key)
            .required();
    }

    fn validate_update(object: &MachineFile, old: &MachineFile, errors: &mut Errors) {
        immutable(&object.spec.node_name, &old.spec.node_name, &Path::new("spec").child("nodeName"), errors);
    }

    fn validate_status(object: &MachineFile, _: &MachineFile, errors: &mut Errors) {
        if object.status.as_ref().is_some_and(|status| status.message.len() > LONGEST_MESSAGE) {
            errors.push(FieldError::too_long(&Path::new("status").child("message"), LONGEST_MESSAGE));
        }
    }
}

/// What a file may be, wherever it is asked for.
pub(super) fn validate_file(file: &FileAttributes, path: &Path, errors: &mut Errors) {
    let FileAttributes { path: file_path, mode, owner, group } = file;
    let at = path.child("path");
    match path_violation(file_path) {
        _ if file_path.is_empty() => errors.push(FieldError::required(&at, "")),
        Some(why) => errors.push(FieldError::invalid(&at, file_path.as_str(), why)),
        None => {}
    }
    if let Some(mode) = mode.as_ref().filter(|mode| parse_mode(mode).is_none()) {
        let words = "must be permissions as three octal digits, such as 0640, without setuid, setgid and sticky";
        errors.push(FieldError::invalid(&path.child("mode"), mode.as_str(), words));
    }
    for (name, account) in [("owner", owner), ("group", group)] {
        if let Some(account) = account.as_ref().filter(|account| !is_account(account)) {
            let words = "must be the name or number of an account or group of the machine";
            errors.push(FieldError::invalid(&path.child(name), account.as_str(), words));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, assert_status, assert_update, with};

    fn file() -> Value {
        json!({
            "apiVersion": "mainstay.dev/v1", "kind": "MachineFile", "metadata": {"name": "zones.n1"},
            "spec": {
                "nodeName": "n1", "template": "zones", "version": "0123456789", "path": "/etc/zones/zones.conf",
                "mode": "0640", "owner": "root", "group": "www-data",
                "content": {"configMap": {"name": "zones-0123456789abcdef", "key": "zones.conf"}},
            },
        })
    }

    #[test]
    fn a_file_names_its_node_its_version_and_where_its_content_is() {
        assert_completes::<MachineFileRules>(file(), file());
        let absurd = json!({"spec": {
            "nodeName": "", "version": "latest", "path": "/etc/../shadow", "mode": "4755", "owner": "a b", "group": "",
            "content": {"secret": {"name": "x", "key": "../y"}},
        }});
        assert_refused::<MachineFileRules>(
            with(&file(), absurd),
            &[
                "spec.nodeName: Required value",
                "spec.version: Invalid value: \"latest\": must be a version: ten hexadecimal digits",
                "spec.path: Invalid value: \"/etc/../shadow\": must be the path of a file, without `//`, `.` and `..`",
                "spec.mode: Invalid value: \"4755\": must be permissions as three octal digits, such as 0640, without \
                 setuid, setgid and sticky",
                "spec.owner: Invalid value: \"a b\": must be the name or number of an account or group of the machine",
                "spec.group: Invalid value: \"\": must be the name or number of an account or group of the machine",
                "spec.content.secret: Forbidden: may not specify more than 1 content (configMap or secret)",
            ],
        );
    }

    #[test]
    fn it_stays_with_its_node_and_its_cause_is_bounded() {
        assert_update::<MachineFileRules>(&file(), json!({"spec": {"version": "9876543210"}}), &[]);
        assert_update::<MachineFileRules>(
            &file(),
            json!({"spec": {"nodeName": "n2"}}),
            &["spec.nodeName: Invalid value: \"n2\": field is immutable"],
        );
        assert_status::<MachineFileRules>(&file(), json!({"status": {"reason": "Conflict", "message": "x"}}), &[]);
        assert_status::<MachineFileRules>(
            &file(),
            json!({"status": {"message": "x".repeat(5000)}}),
            &["status.message: Too long: may not be more than 4096 bytes"],
        );
    }
}
