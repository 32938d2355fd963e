//! Columns of `admissionregistration.k8s.io/v1`.

use serde_json::Value;

use crate::table::{
    Columns,
    column::{AGE, NAME, integer, text as column},
    labels::requirements,
    read::{UNSET, age, list, map, name, present, text},
};

/// For validating and mutating ones.
pub static WEBHOOK_CONFIGURATIONS: Columns = Columns {
    definitions: &[NAME, integer("Webhooks", "How many webhooks it registers."), AGE],
    cells: |object, now| vec![name(object), list(object, "/webhooks").len().into(), age(object, now)],
};

pub static VALIDATING_ADMISSION_POLICIES: Columns = Columns {
    definitions: &[
        NAME,
        integer("Validations", "How many rules it has."),
        column("ParamKind", "The kind of its parameters."),
        AGE,
    ],
    cells: |object, now| {
        let validations = list(object, "/spec/validations").len();
        vec![name(object), validations.into(), param_kind(object).into(), age(object, now)]
    },
};

pub static MUTATING_ADMISSION_POLICIES: Columns = Columns {
    definitions: &[
        NAME,
        integer("Mutations", "How many mutations it makes."),
        column("ParamKind", "The kind of its parameters."),
        AGE,
    ],
    cells: |object, now| {
        let mutations = list(object, "/spec/mutations").len();
        vec![name(object), mutations.into(), param_kind(object).into(), age(object, now)]
    },
};

/// For validating and mutating ones.
pub static ADMISSION_POLICY_BINDINGS: Columns = Columns {
    definitions: &[
        NAME,
        column("PolicyName", "The policy it puts in force."),
        column("ParamRef", "The parameters it uses."),
        AGE,
    ],
    cells: |object, now| {
        vec![name(object), text(object, "/spec/policyName").into(), param_ref(object).into(), age(object, now)]
    },
};

fn param_kind(object: &Value) -> String {
    match map(object, "/spec/paramKind") {
        Some(_) => format!("{}/{}", text(object, "/spec/paramKind/apiVersion"), text(object, "/spec/paramKind/kind")),
        None => UNSET.to_owned(),
    }
}

/// Without a namespace the parameters may be of the cluster or of each object's namespace: `*`.
fn param_ref(object: &Value) -> String {
    let selector = present(object, "/spec/paramRef/selector");
    match (text(object, "/spec/paramRef/name"), text(object, "/spec/paramRef/namespace")) {
        ("", _) => selector.and_then(|selector| requirements(Some(selector))).unwrap_or_else(|| UNSET.to_owned()),
        (name, "") => format!("*/{name}"),
        (name, namespace) => format!("{namespace}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn webhooks_and_validations_are_counted() {
        assert_eq!(row(&WEBHOOK_CONFIGURATIONS, json!({"webhooks": [{}, {}]})), json!(["x", 2, "5m"]));
        let policy = json!({"spec": {"validations": [{}], "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}});
        assert_eq!(row(&VALIDATING_ADMISSION_POLICIES, policy), json!(["x", 1, "v1/ConfigMap", "5m"]));
        assert_eq!(row(&VALIDATING_ADMISSION_POLICIES, json!({})), json!(["x", 0, "<unset>", "5m"]));
        let mutating = json!({"spec": {"mutations": [{}, {}]}});
        assert_eq!(row(&MUTATING_ADMISSION_POLICIES, mutating), json!(["x", 2, "<unset>", "5m"]));
    }

    #[test]
    fn bindings_name_policy_and_parameters() {
        let cases = [
            (json!({}), "<unset>"),
            (json!({"name": "p"}), "*/p"),
            (json!({"name": "p", "namespace": "n"}), "n/p"),
            (json!({"selector": {"matchLabels": {"a": "1"}}}), "a=1"),
        ];
        for (reference, expected) in cases {
            let binding = json!({"spec": {"policyName": "pol", "paramRef": reference}});
            assert_eq!(row(&ADMISSION_POLICY_BINDINGS, binding), json!(["x", "pol", expected, "5m"]));
        }
    }
}
