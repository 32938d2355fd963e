//! Evaluates the mutations of a MutatingAdmissionPolicy, one at a time: each sees what the ones before made of the object.

use std::sync::Arc;

use mainstay_api::{
    apply::{self, typed::TypeRef},
    patch,
};
use mainstay_cel::{AuthorizationCheck, Budget, Value as CelValue};
use serde_json::Value;

use super::{
    CompiledPolicy, Mutation, PolicyInputs,
    evaluate::{bind, error_message, evaluate},
};

/// The type that configurations are built of.
const ROOT: &str = "Object";

/// What a mutation makes of an object, or why it cannot.
pub type Mutated = Result<Value, String>;

/// Whether the policy's match conditions hold; `Err` within names a condition that cannot be evaluated.
pub fn matches(
    policy: &CompiledPolicy,
    inputs: &PolicyInputs<'_>,
) -> Result<Result<bool, String>, Arc<AuthorizationCheck>> {
    policy.match_conditions.hold(&bind(policy, inputs))
}

/// Changes the object of `inputs`; `Err` names a decision that must be looked up first.
pub fn evaluate_mutation<'s, T: TypeRef<'s>>(
    policy: &CompiledPolicy,
    mutation: &Mutation,
    inputs: &PolicyInputs<'_>,
    ty: T,
) -> Result<Mutated, Arc<AuthorizationCheck>> {
    let variables = bind(policy, inputs);
    let (Mutation::ApplyConfiguration(expression) | Mutation::JsonPatch(expression)) = mutation;
    let built = match evaluate(expression, &variables, &mut Budget::default())? {
        Ok(built) => built,
        Err(error) => return Ok(Err(error_message(expression, &error))),
    };
    let object = inputs.object.cloned().unwrap_or_default();
    Ok(match mutation {
        Mutation::ApplyConfiguration(_) => apply_configuration(ty, &object, &built),
        Mutation::JsonPatch(_) => apply_patch(object, &built),
    })
}

fn apply_configuration<'s, T: TypeRef<'s>>(ty: T, object: &Value, built: &CelValue<'_>) -> Mutated {
    if !matches!(built, CelValue::Struct(_)) {
        return Err(format!("unsupported return type from ApplyConfiguration expression: {}", built.type_name()));
    }
    check_type_names(built, ROOT)?;
    let mut config = built.to_json().map_err(|error| error.to_string())?;
    for field in ["apiVersion", "kind"] {
        config[field] = object[field].clone();
    }
    let failed = |why: String| Err(format!("error applying patch: {why}"));
    if let Some(why) = apply::validate(ty, &config) {
        return failed(format!("failed to convert patch object to typed object: {why}"));
    }
    let atomic = apply::atomic_paths(ty, &config);
    if !atomic.is_empty() {
        let paths = atomic.join(", ");
        return failed(format!("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {paths}"));
    }
    Ok(apply::merge(ty, object, &config))
}

/// A struct is named after the fields that lead to it: `Object.spec.containers`.
fn check_type_names(value: &CelValue<'_>, expected: &str) -> Result<(), String> {
    match value {
        CelValue::Struct(object) => {
            if *object.name != *expected {
                return Err(format!(
                    "type mismatch: unexpected type name {:?}, expected {expected:?}, which matches field name path from root Object type",
                    &*object.name
                ));
            }
            object.fields.iter().try_for_each(|(name, value)| check_type_names(value, &format!("{expected}.{name}")))
        }
        CelValue::List(list) => {
            list.iter().filter_map(Result::ok).try_for_each(|item| check_type_names(&item, expected))
        }
        CelValue::Optional(Some(value)) => check_type_names(value, expected),
        _ => Ok(()),
    }
}

fn apply_patch(mut object: Value, built: &CelValue<'_>) -> Mutated {
    let CelValue::List(operations) = built else {
        return Err(format!(
            "type mismatch: JSONPatchType.expression should evaluate to a list, got {}",
            built.type_name()
        ));
    };
    for operation in operations.iter() {
        match operation.map_err(|error| error.to_string())? {
            CelValue::Struct(operation) if &*operation.name == "JSONPatch" => {}
            other => {
                return Err(format!(
                    "type mismatch: JSONPatchType.expression should evaluate to a list of JSONPatch, got {}",
                    other.type_name()
                ));
            }
        }
    }
    let operations = built.to_json().map_err(|error| error.to_string())?;
    patch::json(&mut object, &operations).map_err(|error| format!("JSON Patch: {error}"))?;
    Ok(object)
}
