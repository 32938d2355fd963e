use serde_json::json;

use crate::{Budget, Environment, Program, Type, Variables};

fn build(expression: &str) -> Result<serde_json::Value, String> {
    let environment = Environment::new().variable("object", Type::Dyn).with_objects();
    let program = Program::compile(&environment, expression).map_err(|error| error.to_string())?;
    let object = json!({"spec": {"replicas": 2}, "metadata": {"labels": {"a/b": "c"}}});
    let value = program.evaluate(&Variables::new().json("object", &object), &mut Budget::default());
    value.and_then(|value| value.to_json()).map_err(|error| error.to_string())
}

#[test]
fn objects_and_patches_are_built() {
    assert_eq!(
        build("Object{spec: Object.spec{replicas: object.spec.replicas + 1, ?x: optional.none()}}"),
        Ok(json!({"spec": {"replicas": 3}}))
    );
    assert_eq!(
        build("[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('x/y~'), value: {'a': [1]}}]"),
        Ok(json!([{"op": "add", "path": "/metadata/labels/x~1y~0", "value": {"a": [1]}}]))
    );
    assert_eq!(build("Object{metadata: object.metadata}"), Ok(json!({"metadata": {"labels": {"a/b": "c"}}})));
    assert!(build("JSONPatch{oops: 1}").is_err_and(|error| error.contains("undefined field 'oops'")));
    assert!(build("JSONPatch{op: 1}").is_err());
}

#[test]
fn a_result_that_would_not_fit_into_a_request_is_refused() {
    let doubled = (0..40).fold("[object]".to_owned(), |list, _| format!("cel.bind(x, {list}, [x, x])"));
    assert_eq!(build(&doubled), Err("the result is too large".into()));
}
