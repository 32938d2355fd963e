//! ValidatingAdmissionPolicies as clients meet them.

use super::*;

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";

/// A policy for ConfigMaps, with these fields of its spec besides.
fn policy(spec: Value) -> Value {
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}]);
    let mut policy = json!({"metadata": {"name": "colors"}, "spec": {"matchConstraints": {"resourceRules": rules}}});
    merge(&mut policy["spec"], spec);
    policy
}

fn binding(spec: Value) -> Value {
    let mut binding =
        json!({"metadata": {"name": "colors-b"}, "spec": {"policyName": "colors", "validationActions": ["Deny"]}});
    merge(&mut binding["spec"], spec);
    binding
}

fn merge(into: &mut Value, fields: Value) {
    for (field, value) in fields.as_object().into_iter().flatten() {
        into[field] = value.clone();
    }
}

fn colored(name: &str, color: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"color": color}})
}

impl Server {
    async fn with_policy(policy_spec: Value, binding_spec: Value) -> Self {
        let server = Self::new(Settings::default()).await;
        server.create(POLICIES, &policy(policy_spec)).await;
        server.create(BINDINGS, &binding(binding_spec)).await;
        server
    }

    async fn create(&self, path: &str, object: &Value) -> Value {
        let (code, created) = self.send(&administrator(), Method::POST, path, object).await;
        assert_eq!(code, 201, "{created}");
        created
    }

    /// Why a write is refused, or an empty text.
    async fn refusal(&self, user: &User, method: Method, path: &str, object: &Value) -> String {
        let (code, status) = self.send(user, method, path, object).await;
        if code < 300 { String::new() } else { status["message"].as_str().unwrap_or_default().to_owned() }
    }

    async fn post(&self, object: &Value) -> String {
        self.refusal(&administrator(), Method::POST, CONFIG_MAPS, object).await
    }
}

fn not_red() -> Value {
    json!({"validations": [{"expression": "object == null || object.?data.?color.orValue('') != 'red'", "message": "no red"}]})
}

const DENIED: &str = "is forbidden: ValidatingAdmissionPolicy 'colors' with binding 'colors-b' denied request: no red";

#[tokio::test]
async fn creates_and_updates_are_judged_while_a_binding_is_there() {
    let server = Server::new(Settings::default()).await;
    let admin = administrator();
    server.create(POLICIES, &policy(not_red())).await;
    assert_eq!(server.post(&colored("unbound", "red")).await, "", "no binding puts the policy in force");
    server.create(BINDINGS, &binding(json!({}))).await;

    let (code, status) = server.send(&admin, Method::POST, CONFIG_MAPS, &colored("a", "red")).await;
    let message = format!("configmaps \"a\" {DENIED}");
    assert_eq!((code, &status["reason"], &status["message"]), (422, &json!("Invalid"), &json!(message)), "{status}");
    assert_eq!(status["details"]["causes"][0]["message"], DENIED["is forbidden: ".len()..]);
    assert_eq!(server.post(&colored("a", "blue")).await, "");
    let path = format!("{CONFIG_MAPS}/a");
    assert!(server.refusal(&admin, Method::PUT, &path, &colored("a", "red")).await.ends_with(DENIED));
    assert_eq!(server.refusal(&admin, Method::PUT, &path, &colored("a", "green")).await, "");
    let others = "/api/v1/namespaces/default/secrets";
    assert_eq!(server.refusal(&admin, Method::POST, others, &json!({"metadata": {"name": "s"}})).await, "");

    assert_eq!(server.send(&admin, Method::DELETE, &format!("{BINDINGS}/colors-b"), &Value::Null).await.0, 200);
    assert_eq!(server.post(&colored("b", "red")).await, "");
}

#[tokio::test]
async fn deletes_are_judged_by_the_object_that_goes() {
    let spec = json!({"validations": [{"expression": "request.operation != 'DELETE' || oldObject.data.color != 'red'", "reason": "Forbidden"}]});
    let server = Server::with_policy(spec, json!({})).await;
    let admin = administrator();
    assert_eq!(server.post(&colored("r", "red")).await, "");
    let (code, status) = server.send(&admin, Method::DELETE, &format!("{CONFIG_MAPS}/r"), &Value::Null).await;
    assert_eq!((code, &status["reason"]), (403, &json!("Forbidden")), "{status}");
    let (code, _) = server.send(&admin, Method::DELETE, CONFIG_MAPS, &Value::Null).await;
    assert_eq!(code, 403, "a collection is no way around it");
}

#[tokio::test]
async fn a_changed_policy_is_compiled_anew() {
    let server = Server::with_policy(not_red(), json!({})).await;
    assert!(server.post(&colored("a", "red")).await.ends_with(DENIED));
    let (_, mut stored) = server.send(&administrator(), Method::GET, &format!("{POLICIES}/colors"), &Value::Null).await;
    stored["spec"]["validations"][0]["expression"] = json!("object.data.color != 'blue'");
    let (code, changed) = server.send(&administrator(), Method::PUT, &format!("{POLICIES}/colors"), &stored).await;
    assert_eq!(code, 200, "{changed}");
    assert_eq!(server.post(&colored("a", "red")).await, "");
    assert!(server.post(&colored("b", "blue")).await.ends_with("denied request: no red"));
}

#[tokio::test]
async fn warnings_and_audit_do_not_refuse() {
    let server = Server::with_policy(not_red(), json!({"validationActions": ["Warn", "Audit"]})).await;
    let body = Full::from(colored("a", "red").to_string());
    let response = server.start(&administrator(), Method::POST, CONFIG_MAPS, body).await;
    assert_eq!(response.status(), 201);
    let warning = response.headers()["warning"].to_str().unwrap();
    let says = "Validation failed for ValidatingAdmissionPolicy 'colors' with binding 'colors-b': no red";
    assert!(warning.contains(says), "{warning}");
}

#[tokio::test]
async fn parameters_come_from_the_binding() {
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConditions": [{"name": "not-limits", "expression": "request.name != 'limits'"}],
        "validations": [{"expression": "object.data.color != params.data.forbidden", "messageExpression": "'no ' + params.data.forbidden"}],
    });
    let reference = |action: &str| json!({"paramRef": {"name": "limits", "parameterNotFoundAction": action}});
    let server = Server::with_policy(spec.clone(), reference("Deny")).await;
    let missing = "denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction";
    assert!(server.post(&colored("a", "blue")).await.ends_with(missing));
    // The parameter itself is a ConfigMap, and it is not there yet: no condition can be asked before its parameters.
    let other = Server::with_policy(spec, reference("Allow")).await;
    assert_eq!(other.post(&colored("a", "blue")).await, "");
    other.create(CONFIG_MAPS, &json!({"metadata": {"name": "limits"}, "data": {"forbidden": "blue"}})).await;
    assert!(other.post(&colored("b", "blue")).await.ends_with("denied request: no blue"));
    assert_eq!(other.post(&colored("b", "red")).await, "");
}

#[tokio::test]
async fn parameters_may_be_selected_and_each_must_pass() {
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "Secret"},
        "validations": [{"expression": "object.data.color != params.type", "messageExpression": "'no ' + params.type"}],
    });
    let reference =
        json!({"paramRef": {"selector": {"matchLabels": {"limit": "color"}}, "parameterNotFoundAction": "Deny"}});
    let server = Server::with_policy(spec, reference).await;
    for color in ["red", "blue"] {
        let secret = json!({"metadata": {"name": color, "labels": {"limit": "color"}}, "type": color});
        server.create("/api/v1/namespaces/default/secrets", &secret).await;
    }
    assert!(server.post(&colored("a", "red")).await.ends_with("denied request: no red"));
    assert!(server.post(&colored("a", "blue")).await.ends_with("denied request: no blue"));
    assert_eq!(server.post(&colored("a", "green")).await, "");
}

#[tokio::test]
async fn errors_follow_the_failure_policy() {
    for (failure_policy, refused) in [("Fail", true), ("Ignore", false)] {
        let spec = json!({"failurePolicy": failure_policy, "validations": [{"expression": "object.data.size == '1'"}]});
        let server = Server::with_policy(spec, json!({})).await;
        let message = server.post(&colored("a", "red")).await;
        let expected = "denied request: expression 'object.data.size == '1'' resulted in error: no such key: size";
        assert_eq!(message.ends_with(expected), refused, "{failure_policy}: {message}");
    }
}

#[tokio::test]
async fn selectors_narrow_policies_and_bindings() {
    let selector = json!({"matchResources": {"namespaceSelector": {"matchLabels": {"strict": "yes"}}}});
    let server = Server::with_policy(not_red(), selector).await;
    assert_eq!(server.post(&colored("a", "red")).await, "", "the namespace is not selected");
    let namespace = json!({"metadata": {"name": "strict", "labels": {"strict": "yes"}}});
    server.create("/api/v1/namespaces", &namespace).await;
    let path = "/api/v1/namespaces/strict/configmaps";
    assert!(server.refusal(&administrator(), Method::POST, path, &colored("a", "red")).await.ends_with(DENIED));
}

#[tokio::test]
async fn users_and_their_permissions_are_seen() {
    let spec = json!({
        "variables": [{"name": "admin", "expression": "authorizer.group('').resource('nodes').check('delete').allowed()"}],
        "validations": [
            {"expression": "request.userInfo.username != 'mallory'", "message": "not mallory"},
            {"expression": "variables.admin || !has(object.data.secret)", "messageExpression": "request.userInfo.username + ' may not'"},
        ],
    });
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let server = Server::over(store.clone()).await;
    server.create(POLICIES, &policy(spec)).await;
    server.create(BINDINGS, &binding(json!({}))).await;
    let secret = |name: &str| json!({"metadata": {"name": name}, "data": {"secret": "x"}});
    assert_eq!(server.post(&secret("by-admin")).await, "");
    let role = json!({"metadata": {"name": "writer"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]});
    server.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await;
    let grant = json!({
        "metadata": {"name": "writers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "writer"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}],
    });
    server.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &grant).await;
    let api = &server.0.api;
    api.rbac.load(&api.registry, &*api.store).await.unwrap(); // nobody follows the store here
    let user = |name: &str| User::authenticated(name.to_owned(), Vec::new());
    let refusal = server.refusal(&user("eve"), Method::POST, CONFIG_MAPS, &secret("by-eve")).await;
    assert!(refusal.ends_with("denied request: eve may not"), "{refusal}");
    assert_eq!(server.refusal(&user("eve"), Method::POST, CONFIG_MAPS, &colored("by-eve", "red")).await, "");
    let refusal = server.refusal(&user("mallory"), Method::POST, CONFIG_MAPS, &colored("by-mallory", "red")).await;
    assert!(refusal.ends_with("denied request: not mallory"), "{refusal}");
}

#[tokio::test]
async fn another_version_of_the_resource_is_no_way_around() {
    let server = Server::new(Settings::default()).await;
    let rules = json!([{"apiGroups": ["autoscaling"], "apiVersions": ["v2"], "operations": ["CREATE"], "resources": ["horizontalpodautoscalers"]}]);
    let expression = "object.apiVersion == 'autoscaling/v2' && object.spec.maxReplicas <= 5";
    let mut few = policy(json!({"validations": [{"expression": expression, "message": "no red"}]}));
    few["spec"]["matchConstraints"] = json!({"resourceRules": rules});
    server.create(POLICIES, &few).await;
    server.create(BINDINGS, &binding(json!({}))).await;
    for version in ["v1", "v2"] {
        let path = format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers");
        let scaler = |name: &str, most: i32| json!({"metadata": {"name": name}, "spec": {"maxReplicas": most, "scaleTargetRef": {"kind": "Deployment", "name": "x", "apiVersion": "apps/v1"}}});
        let refusal = server.refusal(&administrator(), Method::POST, &path, &scaler("many", 9)).await;
        assert!(refusal.ends_with("denied request: no red"), "{version}: {refusal}");
        assert_eq!(server.refusal(&administrator(), Method::POST, &path, &scaler(version, 5)).await, "");
    }
}

#[tokio::test]
async fn policies_cannot_lock_themselves_in_and_must_compile() {
    let everything = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}]);
    let server = Server::new(Settings::default()).await;
    let mut all = policy(json!({"validations": [{"expression": "false", "message": "no red"}]}));
    all["spec"]["matchConstraints"] = json!({"resourceRules": everything});
    server.create(POLICIES, &all).await;
    server.create(BINDINGS, &binding(json!({}))).await;
    assert!(server.post(&colored("a", "blue")).await.ends_with(DENIED));
    let path = format!("{POLICIES}/colors");
    assert_eq!(server.refusal(&administrator(), Method::DELETE, &path, &Value::Null).await, "");
    assert_eq!(server.post(&colored("a", "blue")).await, "");

    let broken = policy(json!({"validations": [{"expression": "object.data.color ="}]}));
    let (code, status) = server.send(&administrator(), Method::POST, POLICIES, &broken).await;
    assert_eq!(code, 422, "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("spec.validations[0].expression: Invalid value: \"object.data.color =\": compilation failed: ERROR: <input>:1:19:"), "{message}");
}

#[tokio::test]
async fn an_expensive_policy_ends_with_its_budget() {
    let nested = "object.data.all(a, object.data.all(b, object.data.all(c, object.data.all(d, true))))";
    let server = Server::with_policy(json!({"validations": [{"expression": nested}]}), json!({})).await;
    let data: serde_json::Map<String, Value> = (0..100).map(|i| (format!("k{i}"), json!("v"))).collect();
    let refusal = server.post(&json!({"metadata": {"name": "big"}, "data": data})).await;
    assert!(refusal.ends_with("resulted in error: operation cancelled: actual cost limit exceeded"), "{refusal}");
}

#[tokio::test]
async fn a_policy_limits_scales_and_not_the_workload_by_them() {
    let rule = |resource: &str| json!({"matchConstraints": {"resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": [resource]}]}});
    let mut spec = rule("statefulsets/scale");
    spec["validations"] = json!([{"expression": "request.kind.kind == 'Scale' && request.resource.resource == 'statefulsets' && object.kind == 'Scale' && object.spec.replicas <= 5", "message": "too many"}]);
    let server = Server::with_policy(spec, json!({})).await;
    let sets = "/apis/apps/v1/namespaces/default/statefulsets";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let set = json!({"metadata": {"name": "s"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "serviceName": "s", "template": template}});
    server.create(sets, &set).await;
    let scale = |replicas: i64| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "s", "namespace": "default"}, "spec": {"replicas": replicas}});
    let (admin, path) = (administrator(), format!("{sets}/s/scale"));
    assert!(server.refusal(&admin, Method::PUT, &path, &scale(6)).await.ends_with("denied request: too many"));
    assert_eq!(server.refusal(&admin, Method::PUT, &path, &scale(5)).await, "");
    let (_, mut stored) = server.send(&admin, Method::GET, &format!("{sets}/s"), &Value::Null).await;
    stored["spec"]["replicas"] = json!(6);
    assert_eq!(server.refusal(&admin, Method::PUT, &format!("{sets}/s"), &stored).await, "", "not through `/scale`");
}

#[tokio::test]
async fn a_policy_judges_connections_by_their_options() {
    let rules =
        json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CONNECT"], "resources": ["pods/exec"]}]);
    let expression =
        "request.operation == 'CONNECT' && request.kind.kind == 'PodExecOptions' && object.command != ['sh']";
    let spec = json!({"matchConstraints": {"resourceRules": rules}, "validations": [{"expression": expression, "message": "no shells"}]});
    let server = Server::with_policy(spec, json!({})).await;
    let exec = async |command: &str| {
        let path = format!("/api/v1/namespaces/default/pods/p/exec?container=c&stdout=true&command={command}");
        server.refusal(&administrator(), Method::POST, &path, &Value::Null).await
    };
    let denied = "denied request: no shells";
    assert!(exec("sh").await.ends_with(denied));
    assert_eq!(exec("ls").await, "this server has no agents to ask", "it goes on");
}

#[tokio::test]
async fn who_cannot_read_secrets_makes_no_policy_read_them() {
    let server = Server::new(Settings::default()).await;
    let rules = json!([
        {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["create", "update"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]},
    ]);
    let role = json!({"metadata": {"name": "policies"}, "rules": rules});
    server.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await;
    let role_ref = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "policies"});
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"});
    let grant = json!({"metadata": {"name": "eve"}, "roleRef": role_ref, "subjects": [subject]});
    server.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &grant).await;
    let api = &server.0.api;
    api.rbac.load(&api.registry, &*api.store).await.unwrap(); // nobody follows the store here
    let eve = User::authenticated("eve".to_owned(), Vec::new());
    let of = |kind: &str| {
        policy(json!({
            "paramKind": {"apiVersion": "v1", "kind": kind},
            "validations": [{"expression": "false", "messageExpression": "string(params.data)"}],
        }))
    };
    let refused = server.refusal(&eve, Method::POST, POLICIES, &of("Secret")).await;
    let words = "spec.paramKind: Forbidden: user \"eve\" must have \"get\" permission on all objects of the referenced paramKind \
                 (kind=Secret, apiVersion=v1)";
    assert!(refused.ends_with(words), "{refused}");
    let unknown = server.refusal(&eve, Method::POST, POLICIES, &of("Nothing")).await;
    assert!(unknown.contains("kind=Nothing"), "what nobody knows now may be anything later: {unknown}");
    assert_eq!(server.refusal(&eve, Method::POST, POLICIES, &of("ConfigMap")).await, "");
    let path = format!("{POLICIES}/colors");
    let (_, mut changed) = server.send(&administrator(), Method::GET, &path, &Value::Null).await;
    changed["spec"]["paramKind"]["kind"] = json!("Secret");
    let refused = server.refusal(&eve, Method::PUT, &path, &changed).await;
    assert!(refused.contains("kind=Secret"), "{refused}");

    let reference = |reference: Value| binding(json!({"paramRef": reference}));
    let own = reference(json!({"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"}));
    assert_eq!(server.refusal(&eve, Method::POST, BINDINGS, &own).await, "");
    let mut of_secrets = of("Secret");
    of_secrets["metadata"]["name"] = json!("secrets");
    server.create(POLICIES, &of_secrets).await;
    let mut secrets = own;
    secrets["metadata"]["name"] = json!("secrets-b");
    secrets["spec"]["policyName"] = json!("secrets");
    for (reference, verb) in [
        (json!({"name": "limits", "parameterNotFoundAction": "Deny"}), "get"),
        (json!({"selector": {}, "parameterNotFoundAction": "Deny"}), "list"),
    ] {
        secrets["spec"]["paramRef"] = reference;
        let refused = server.refusal(&eve, Method::POST, BINDINGS, &secrets).await;
        let words = format!("user \"eve\" does not have {verb:?} permission on the object referenced by paramRef");
        assert!(refused.ends_with(&words), "{refused}");
    }
}

#[tokio::test]
async fn an_ingress_gets_the_default_class_and_a_claim_grows_only_where_its_class_allows() {
    let server = Server::new(Settings::default()).await;
    let ingresses = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let ingress = |name: &str| json!({"metadata": {"name": name}, "spec": {"defaultBackend": backend}});
    assert!(server.create(ingresses, &ingress("before")).await["spec"]["ingressClassName"].is_null());
    let annotations = json!({"ingressclass.kubernetes.io/is-default-class": "true"});
    let class =
        json!({"metadata": {"name": "stock", "annotations": annotations}, "spec": {"controller": "example.com/c"}});
    server.create("/apis/networking.k8s.io/v1/ingressclasses", &class).await;
    assert_eq!(server.create(ingresses, &ingress("after")).await["spec"]["ingressClassName"], "stock");

    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    for (name, allows) in [("rigid", false), ("elastic", true)] {
        let class = json!({"metadata": {"name": name}, "provisioner": "example.com/p", "allowVolumeExpansion": allows});
        server.create("/apis/storage.k8s.io/v1/storageclasses", &class).await;
        let requests = json!({"requests": {"storage": "1Gi"}});
        let spec = json!({"storageClassName": name, "accessModes": ["ReadWriteOnce"], "resources": requests});
        let mut claim = server.create(claims, &json!({"metadata": {"name": name}, "spec": spec})).await;
        let path = format!("{claims}/{name}");
        claim["status"] = json!({"phase": "Bound"});
        let (code, mut claim) = server.send(&administrator(), Method::PUT, &format!("{path}/status"), &claim).await;
        assert_eq!(code, 200, "{claim}");
        claim["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
        let refused = server.refusal(&administrator(), Method::PUT, &path, &claim).await;
        assert_eq!(refused.is_empty(), allows, "{name}: {refused}");
        assert!(allows || refused.contains("only dynamically provisioned pvc can be resized"), "{refused}");
    }
}
