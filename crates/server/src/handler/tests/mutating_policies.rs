//! MutatingAdmissionPolicy: what policies make of writes, and what becomes of writes when they fail.

use super::*;

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn policy(name: &str, resource: (&str, &str), mutations: Value, more: Value) -> Value {
    let mut spec = json!({
        "matchConstraints": { "resourceRules": [{
            "operations": ["CREATE", "UPDATE"], "apiGroups": [resource.0], "apiVersions": ["v1"], "resources": [resource.1],
        }] },
        "reinvocationPolicy": "Never", "mutations": mutations,
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "metadata": { "name": name }, "spec": spec })
}

fn apply(expression: &str) -> Value {
    json!({ "patchType": "ApplyConfiguration", "applyConfiguration": { "expression": expression } })
}

fn json_patch(expression: &str) -> Value {
    json!({ "patchType": "JSONPatch", "jsonPatch": { "expression": expression } })
}

impl Server {
    async fn put_in_force(&self, policy: &Value, binding: Value) {
        let admin = administrator();
        let (code, made) = self.send(&admin, Method::POST, &format!("{GROUP}/mutatingadmissionpolicies"), policy).await;
        assert_eq!(code, 201, "{made}");
        let mut spec = json!({ "policyName": policy["metadata"]["name"] });
        spec.as_object_mut().unwrap().extend(binding.as_object().unwrap().clone());
        let binding = json!({ "metadata": { "name": policy["metadata"]["name"] }, "spec": spec });
        let path = format!("{GROUP}/mutatingadmissionpolicybindings");
        let (code, made) = self.send(&admin, Method::POST, &path, &binding).await;
        assert_eq!(code, 201, "{made}");
    }

    async fn create_map(&self, name: &str, data: Value) -> (u16, Value) {
        let map = json!({ "metadata": { "name": name }, "data": data });
        self.send(&administrator(), Method::POST, CONFIG_MAPS, &map).await
    }
}

fn deployment(name: &str) -> Value {
    json!({
        "metadata": { "name": name }, "spec": {
            "selector": { "matchLabels": { "app": "a" } },
            "template": {
                "metadata": { "labels": { "app": "a" } }, "spec": { "containers": [{ "name": "a", "image": "a:1" }] },
            },
        },
    })
}

#[tokio::test]
async fn configurations_are_merged_and_patches_applied_one_after_the_other() {
    let server = Server::new(Settings::default()).await;
    let sidecar = "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{\
        containers: [Object.spec.template.spec.containers{name: 'sidecar', image: 's:1'}]}}}}";
    let label = "[JSONPatch{op: 'add', path: '/metadata/labels', value: \
        {'containers': string(size(object.spec.template.spec.containers))}}]";
    let more =
        json!({ "matchConditions": [{ "name": "not-exempt", "expression": "object.metadata.name != 'exempt'" }] });
    let policy = policy("sidecar", ("apps", "deployments"), json!([apply(sidecar), json_patch(label)]), more);
    server.put_in_force(&policy, json!({})).await;
    let admin = administrator();
    let (code, made) = server.send(&admin, Method::POST, DEPLOYMENTS, &deployment("web")).await;
    assert_eq!(code, 201, "{made}");
    let containers = made["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    let names: Vec<&Value> = containers.iter().map(|container| &container["name"]).collect();
    assert_eq!(names, ["a", "sidecar"], "merged by name");
    assert_eq!(containers[1]["terminationMessagePath"], "/dev/termination-log", "defaults follow");
    assert_eq!(made["metadata"]["labels"], json!({ "containers": "2" }), "sees what came before");
    let (_, exempt) = server.send(&admin, Method::POST, DEPLOYMENTS, &deployment("exempt")).await;
    assert_eq!(exempt["spec"]["template"]["spec"]["containers"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn parameters_variables_and_selectors_are_those_of_validating_policies() {
    let server = Server::new(Settings::default()).await;
    let mutation = "Object{data: {'from': variables.from}}";
    let more = json!({
        "paramKind": { "apiVersion": "v1", "kind": "ConfigMap" },
        "variables": [{ "name": "from", "expression": "params.data.value + '/' + request.operation" }],
    });
    assert_eq!(server.create_map("settings", json!({ "value": "params" })).await.0, 201);
    let policy = policy("from", ("", "configmaps"), json!([apply(mutation)]), more);
    let binding = json!({
        "paramRef": { "name": "settings", "namespace": "default", "parameterNotFoundAction": "Deny" },
        "matchResources": { "objectSelector": { "matchLabels": { "managed": "yes" } } },
    });
    server.put_in_force(&policy, binding).await;
    let (_, plain) = server.create_map("plain", json!({})).await;
    assert!(plain["data"].get("from").is_none(), "{plain}");
    let managed = json!({ "metadata": { "name": "managed", "labels": { "managed": "yes" } } });
    let (code, made) = server.send(&administrator(), Method::POST, CONFIG_MAPS, &managed).await;
    assert_eq!((code, &made["data"]["from"]), (201, &json!("params/CREATE")), "{made}");
}

#[tokio::test]
async fn a_policy_that_fails_refuses_or_is_passed_over() {
    let server = Server::new(Settings::default()).await;
    let cases = [
        (
            "Object{spec: Object.spec{selector: Object.spec.selector{matchLabels: {'a': 'b'}}}}",
            "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.selector",
        ),
        (
            "Object{spec: Object.specx{replicas: 1}}",
            "type mismatch: unexpected type name \"Object.specx\", expected \"Object.spec\", which matches field name path from root Object type",
        ),
        (
            "Object{spec: Object.spec{replicasx: 1}}",
            "error applying patch: failed to convert patch object to typed object: .spec.replicasx: field not declared in schema",
        ),
        ("Object{metadata: Object.metadata{name: 'other'}}", "the policy changed metadata.name"),
        (
            "Object{spec: Object.spec{replicas: object.no.such}}",
            "expression 'Object{spec: Object.spec{replicas: object.no.such}}' resulted in error: no such key: no",
        ),
    ];
    let admin = administrator();
    for (number, (expression, expected)) in cases.into_iter().enumerate() {
        let name = format!("p{number}");
        let failing =
            policy(&name, ("apps", "deployments"), json!([apply(expression)]), json!({ "failurePolicy": "Fail" }));
        server.put_in_force(&failing, json!({})).await;
        let (code, status) = server.send(&admin, Method::POST, DEPLOYMENTS, &deployment("web")).await;
        assert_eq!((code, &status["reason"]), (422, &json!("Invalid")), "{status}");
        let why = format!("policy '{name}' with binding '{name}' denied request: {expected}");
        assert!(status["message"].as_str().unwrap().ends_with(&why), "{status}");
        let path = format!("{GROUP}/mutatingadmissionpolicies/{name}");
        let (_, mut ignored) = server.send(&admin, Method::GET, &path, &Value::Null).await;
        ignored["spec"]["failurePolicy"] = json!("Ignore");
        assert_eq!(server.send(&admin, Method::PUT, &path, &ignored).await.0, 200);
        let dry_run = format!("{DEPLOYMENTS}?dryRun=All");
        assert_eq!(server.send(&admin, Method::POST, &dry_run, &deployment("web")).await.0, 201, "passed over");
    }
}

#[tokio::test]
async fn a_policy_runs_once_more_after_a_later_change_if_it_asks_for_it() {
    let server = Server::new(Settings::default()).await;
    let count = "Object{data: {'count': string(size(object.data))}}";
    let count =
        policy("a-count", ("", "configmaps"), json!([apply(count)]), json!({ "reinvocationPolicy": "IfNeeded" }));
    server.put_in_force(&count, json!({})).await;
    let add = policy("b-add", ("", "configmaps"), json!([apply("Object{data: {'added': 'x'}}")]), json!({}));
    server.put_in_force(&add, json!({})).await;
    let (code, made) = server.create_map("m", json!({ "own": "y" })).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(made["data"], json!({ "own": "y", "added": "x", "count": "3" }));
}

#[tokio::test]
async fn a_policy_changes_the_scale_that_is_written() {
    let server = Server::new(Settings::default()).await;
    let at_most = "Object{spec: Object.spec{replicas: object.spec.replicas > 3 ? 3 : object.spec.replicas}}";
    let limit = policy("limit", ("apps", "deployments/scale"), json!([apply(at_most)]), json!({}));
    server.put_in_force(&limit, json!({})).await;
    let admin = administrator();
    assert_eq!(server.send(&admin, Method::POST, DEPLOYMENTS, &deployment("d")).await.0, 201);
    let scale = json!({ "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": { "name": "d", "namespace": "default" }, "spec": { "replicas": 9 } });
    let (code, scaled) = server.send(&admin, Method::PUT, &format!("{DEPLOYMENTS}/d/scale"), &scale).await;
    assert_eq!((code, &scaled["spec"]["replicas"]), (200, &json!(3)), "{scaled}");
}
