//! NodePool, and pools as a part of a Kluster.

use crate::{
    cloud::node_pool::{MOST_NODES, NAME_MAX, NodePool, PoolConfig, PoolSpec, ROOT_DISK_GIGABYTES, STOCK_IMAGE},
    field::{Errors, FieldError, Path},
    groups::core::rules::node::validate_taints,
    strategy::Rules,
    validation::{
        check::{immutable, present},
        labels::check_labels,
        names,
    },
};

const NAME_PATTERN: &str =
    "must be at most 20 lower-case letters, digits, dashes and dots, and begin with a letter or digit";
/// Flavors, images and zones are names that the cloud knows; nothing else is asked of them here.
const CLOUD_NAME_MAX: usize = 255;

pub struct NodePoolRules;

impl Rules for NodePoolRules {
    type Object = NodePool;

    fn default(object: &mut NodePool) {
        if object.spec.pool.name.is_empty() {
            object.spec.pool.name = object.name().to_owned();
        }
        default_pool(&mut object.spec.pool);
    }

    fn validate(object: &NodePool, errors: &mut Errors) {
        let path = Path::new("spec");
        names::require(&object.spec.kluster, &path.child("kluster"), names::dns1123_subdomain, errors);
        validate_pool(&object.spec.pool, &path, errors);
    }

    fn validate_update(object: &NodePool, old: &NodePool, errors: &mut Errors) {
        let path = Path::new("spec");
        immutable(&object.spec.kluster, &old.spec.kluster, &path.child("kluster"), errors);
        immutable(&object.spec.pool.name, &old.spec.pool.name, &path.child("name"), errors);
        validate_pool_update(&object.spec.pool, &old.spec.pool, &path, errors);
    }
}

pub fn default_pool(pool: &mut PoolSpec) {
    if pool.image.is_empty() {
        pool.image = STOCK_IMAGE.to_owned();
    }
    let config = pool.config.get_or_insert_with(PoolConfig::default);
    config.allow_reboot.get_or_insert(true);
    config.allow_replace.get_or_insert(true);
}

pub fn validate_pool(pool: &PoolSpec, path: &Path, errors: &mut Errors) {
    if !is_pool_name(&pool.name) {
        errors.push(FieldError::invalid(&path.child("name"), pool.name.as_str(), NAME_PATTERN));
    }
    if !(0..=MOST_NODES).contains(&pool.size) {
        let why = names::inclusive_range(0, MOST_NODES.into());
        errors.push(FieldError::invalid(&path.child("size"), pool.size, why));
    }
    present(&pool.flavor, &path.child("flavor"), errors);
    let cloud_names = [("flavor", &pool.flavor), ("image", &pool.image), ("availabilityZone", &pool.availability_zone)];
    for (field, name) in cloud_names {
        if name.len() > CLOUD_NAME_MAX {
            errors.push(FieldError::too_long(&path.child(field), CLOUD_NAME_MAX));
        }
    }
    if let Some(size) = pool.custom_root_disk_size.filter(|size| !ROOT_DISK_GIGABYTES.contains(size)) {
        let why = names::inclusive_range(*ROOT_DISK_GIGABYTES.start(), *ROOT_DISK_GIGABYTES.end());
        errors.push(FieldError::invalid(&path.child("customRootDiskSize"), size, why));
    }
    validate_taints(&pool.taints, &path.child("taints"), errors);
    let labels = pool.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    check_labels(labels, &path.child("labels"), errors);
}

pub fn validate_pool_update(pool: &PoolSpec, old: &PoolSpec, path: &Path, errors: &mut Errors) {
    immutable(&pool.flavor, &old.flavor, &path.child("flavor"), errors);
    immutable(&pool.image, &old.image, &path.child("image"), errors);
    immutable(&pool.availability_zone, &old.availability_zone, &path.child("availabilityZone"), errors);
    immutable(&pool.custom_root_disk_size, &old.custom_root_disk_size, &path.child("customRootDiskSize"), errors);
}

fn is_pool_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= NAME_MAX
        && name.bytes().next().is_some_and(is_letter)
        && name.bytes().all(|byte| is_letter(byte) || byte == b'-' || byte == b'.')
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, assert_update, with};

    fn pool(spec: Value) -> Value {
        let base = json!({
            "apiVersion": "mainstay.dev/v1", "kind": "NodePool", "metadata": {"name": "small"},
            "spec": {"kluster": "k", "flavor": "m1.small"},
        });
        with(&base, json!({"spec": spec}))
    }

    #[test]
    fn a_pool_gets_its_name_image_and_permissions() {
        let complete = json!({
            "name": "small", "size": 0, "image": "flatcar-stable-amd64",
            "config": {"allowReboot": true, "allowReplace": true},
        });
        assert_completes::<NodePoolRules>(pool(json!({})), pool(complete));
    }

    #[test]
    fn bounds_are_enforced_with_their_field() {
        let name = "must be at most 20 lower-case letters, digits, dashes and dots, and begin with a letter or digit";
        for (spec, error) in [
            (json!({"name": "A"}), format!("spec.name: Invalid value: \"A\": {name}")),
            (json!({"name": "-a"}), format!("spec.name: Invalid value: \"-a\": {name}")),
            (
                json!({"name": "abcdefghijklmnopqrstu"}),
                format!("spec.name: Invalid value: \"abcdefghijklmnopqrstu\": {name}"),
            ),
            (json!({"size": 128}), "spec.size: Invalid value: 128: must be between 0 and 127, inclusive".to_owned()),
            (json!({"size": -1}), "spec.size: Invalid value: -1: must be between 0 and 127, inclusive".to_owned()),
            (json!({"flavor": ""}), "spec.flavor: Required value".to_owned()),
            (
                json!({"customRootDiskSize": 63}),
                "spec.customRootDiskSize: Invalid value: 63: must be between 64 and 1024, inclusive".to_owned(),
            ),
            (
                json!({"taints": [{"key": "a", "effect": "Never"}]}),
                "spec.taints[0].effect: Unsupported value: \"Never\": supported values: \"NoSchedule\", \
                 \"PreferNoSchedule\", \"NoExecute\""
                    .to_owned(),
            ),
        ] {
            assert_refused::<NodePoolRules>(pool(spec), &[&error]);
        }
        for name in ["a", "0", "a-.9", "abcdefghijklmnopqrst"] {
            assert!(is_pool_name(name), "{name}");
        }
    }

    #[test]
    fn what_machines_are_made_of_cannot_be_changed() {
        let base = pool(json!({"availabilityZone": "a"}));
        let fields = [("flavor", "x"), ("image", "x"), ("availabilityZone", "b"), ("kluster", "x"), ("name", "x")];
        for (field, value) in fields {
            let error = format!("spec.{field}: Invalid value: \"{value}\": field is immutable");
            assert_update::<NodePoolRules>(&base, json!({"spec": {field: value}}), &[&error]);
        }
        let change = json!({"spec": {"size": 5, "labels": {"a": "b"}, "config": {"allowReboot": false}}});
        assert_update::<NodePoolRules>(&base, change, &[]);
    }
}
