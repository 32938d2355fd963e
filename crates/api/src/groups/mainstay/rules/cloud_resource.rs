//! CloudResource and TeardownReceipt: records of what was created and removed in a cloud. What they are about never changes.

use crate::{
    cloud::{
        cloud_resource::{CloudResource, ResourceOwner},
        teardown_receipt::TeardownReceipt,
    },
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::check::{immutable, present},
};

/// What the store takes without complaint, and far more than a teardown of the largest Kluster has.
const MOST_ITEMS: usize = 5000;

pub struct CloudResourceRules;

impl Rules for CloudResourceRules {
    type Object = CloudResource;

    fn default(_: &mut CloudResource) {}

    fn prepare_create(object: &mut CloudResource) {
        object.status = Some(Default::default());
    }

    fn validate(object: &CloudResource, errors: &mut Errors) {
        let (path, spec) = (Path::new("spec"), &object.spec);
        present(&spec.cloud, &path.child("cloud"), errors);
        present(&spec.tag, &path.child("tag"), errors);
        owner(&spec.owner, &path.child("owner"), errors);
    }

    fn validate_update(object: &CloudResource, old: &CloudResource, errors: &mut Errors) {
        immutable(&object.spec, &old.spec, &Path::new("spec"), errors);
    }
}

pub struct TeardownReceiptRules;

impl Rules for TeardownReceiptRules {
    type Object = TeardownReceipt;

    fn default(_: &mut TeardownReceipt) {}

    fn validate(object: &TeardownReceipt, errors: &mut Errors) {
        owner(&object.spec.cluster, &Path::new("spec").child("cluster"), errors);
    }

    fn validate_update(object: &TeardownReceipt, old: &TeardownReceipt, errors: &mut Errors) {
        immutable(&object.spec, &old.spec, &Path::new("spec"), errors);
    }

    fn validate_status(object: &TeardownReceipt, _: &TeardownReceipt, errors: &mut Errors) {
        let items = object.status.as_ref().map_or(0, |status| status.items.len());
        if items > MOST_ITEMS {
            errors.push(FieldError::too_many(&Path::new("status").child("items"), items, MOST_ITEMS));
        }
    }
}

fn owner(own: &ResourceOwner, path: &Path, errors: &mut Errors) {
    present(&own.kind, &path.child("kind"), errors);
    present(&own.name, &path.child("name"), errors);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        strategy::{Strategy as _, Typed},
        validation::testing::{assert_refused, assert_update, completed, with},
    };

    #[test]
    fn an_entry_of_the_ledger_says_whose_it_is_and_cannot_be_changed() {
        let owner = json!({"apiVersion": "v1", "kind": "Service", "namespace": "a", "name": "b", "uid": "u"});
        let entry = json!({
            "apiVersion": "mainstay.dev/v1", "kind": "CloudResource", "metadata": {"name": "e"},
            "spec": {"cloud": "c", "resource": "LoadBalancer", "name": "lb", "tag": "t", "owner": owner},
        });
        assert_update::<CloudResourceRules>(&entry, json!({"metadata": {"labels": {"a": "b"}}}), &[]);
        let old = completed::<CloudResourceRules>(entry);
        let mut new = with(&old, json!({"spec": {"tag": "x"}}));
        let errors = Typed::<CloudResourceRules>::new().update(&mut new, &old);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(texts.len() == 1 && texts[0].ends_with("field is immutable"), "{texts:?}");
        let empty = json!({
            "apiVersion": "mainstay.dev/v1", "kind": "CloudResource", "metadata": {"name": "e"},
            "spec": {"resource": "Server"},
        });
        let required =
            ["cloud", "tag", "owner.kind", "owner.name"].map(|field| format!("spec.{field}: Required value"));
        assert_refused::<CloudResourceRules>(empty, &required.each_ref().map(String::as_str));
    }
}
