//! Defaulting and validation of Klusters in the form of Kubernikus: the rules of the stored form, applied to it.

use serde_json::Value;

use crate::{
    convert::{KubernikusKluster, list_errors},
    descriptor::Conversion as _,
    field::Errors,
    groups::mainstay::rules::kluster::KlusterRules,
    strategy::{Strategy, Typed},
};

const RULES: Typed<KlusterRules> = Typed::new();

pub struct KlusterView;

/// Applies rules of the stored form to an object of the served one. What cannot be converted is refused, and no rule sees it.
fn in_stored_form(object: &mut Value, rules: impl FnOnce(&mut Value) -> Errors) -> Errors {
    let errors = list_errors(object);
    if !errors.is_empty() {
        return errors;
    }
    KubernikusKluster.to_stored(object);
    let errors = rules(object);
    KubernikusKluster.to_served(object);
    errors
}

fn stored(object: &Value) -> Value {
    let mut object = object.clone();
    KubernikusKluster.to_stored(&mut object);
    object
}

impl Strategy for KlusterView {
    fn create(&self, object: &mut Value) -> Errors {
        in_stored_form(object, |object| RULES.create(object))
    }

    fn update(&self, object: &mut Value, old: &Value) -> Errors {
        in_stored_form(object, |object| RULES.update(object, &stored(old)))
    }

    fn update_status(&self, object: &mut Value, old: &Value) -> Errors {
        in_stored_form(object, |object| RULES.update_status(object, &stored(old)))
    }

    fn warnings(&self, object: &Value) -> Vec<String> {
        RULES.warnings(&stored(object))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_manifest_of_kubernikus_gets_the_same_defaults_in_its_own_form() {
        let mut object = json!({
            "apiVersion": "kubernikus.sap.cc/v1", "kind": "Kluster",
            "metadata": {"name": "berlin-8b25871959204ff1a27605b7bcf873f7", "labels": {"account": "8b25871959204ff1a27605b7bcf873f7"}},
            "spec": {"nodePools": [{"name": "a", "flavor": "m1.small", "labels": ["x=y"], "taints": ["gpu=1:NoSchedule"]}]},
        });
        assert!(KlusterView.create(&mut object).is_empty(), "{object:#}");
        assert_eq!(object["apiVersion"], "kubernikus.sap.cc/v1");
        assert_eq!(object["spec"]["name"], "berlin");
        assert_eq!(object["spec"]["clusterCIDR"], "100.100.0.0/16");
        let pool = json!({
            "name": "a", "size": 0, "flavor": "m1.small", "image": "flatcar-stable-amd64", "labels": ["x=y"],
            "taints": ["gpu=1:NoSchedule"], "config": {"allowReboot": true, "allowReplace": true},
        });
        assert_eq!(object["spec"]["nodePools"], json!([pool]));
        let mut changed = object.clone();
        changed["spec"]["nodePools"][0]["flavor"] = "m1.large".into();
        let errors: Vec<String> = KlusterView.update(&mut changed, &object).iter().map(ToString::to_string).collect();
        assert_eq!(errors, ["spec.nodePools[0].flavor: Invalid value: \"m1.large\": field is immutable"]);
    }

    #[test]
    fn a_list_that_cannot_be_converted_is_refused() {
        let mut object = json!({
            "apiVersion": "kubernikus.sap.cc/v1", "kind": "Kluster", "metadata": {"name": "k"},
            "spec": {"nodePools": [{"name": "a", "flavor": "m", "labels": ["x"]}]},
        });
        let errors: Vec<String> = KlusterView.create(&mut object).iter().map(ToString::to_string).collect();
        assert_eq!(errors, ["spec.nodePools[0].labels[0]: Invalid value: \"x\": must be a label such as key=value"]);
    }
}
