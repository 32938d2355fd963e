use std::sync::Arc;

use http::{Method, StatusCode};
use http_body_util::{BodyExt, Full};
use mainstay_store::Memory;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    auth::{BOOTSTRAPPERS, SERVICE_ACCOUNTS},
    background::bootstrap::bootstrap,
    handler::{Caller, Handler},
    http::{query::Query, route::Route},
    settings::Settings,
};

fn decided(user: &User, request: &str) -> Decision {
    let (method, uri) = request.split_once(' ').unwrap();
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let route = Route::parse(path).unwrap();
    let query = Query::parse(query).unwrap();
    authorize_node(&Registry::builtin(), user, &Attributes::from_request(&method, path, &route, &query))
}

fn why(decision: Decision) -> String {
    match decision {
        Decision::Deny(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_machine_may_what_it_needs() {
    let node = User::node("a");
    for request in [
        "GET /api/v1/nodes",
        "GET /api/v1/nodes?watch=true",
        "POST /api/v1/nodes",
        "PATCH /api/v1/nodes/a",
        "PATCH /api/v1/nodes/a/status",
        "GET /api/v1/services?watch=1",
        "GET /apis/discovery.k8s.io/v1/endpointslices",
        "GET /api/v1/pods?fieldSelector=spec.nodeName%3Da",
        "GET /api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Da",
        "GET /api/v1/namespaces/shop/pods?fieldSelector=spec.nodeName%3Da",
        "PATCH /api/v1/namespaces/shop/pods/web/status",
        "POST /api/v1/namespaces/shop/pods/web/eviction",
        "POST /api/v1/namespaces/shop/pods/web/refusal",
        "DELETE /api/v1/namespaces/shop/pods/web",
        "POST /api/v1/namespaces/shop/pods",
        "POST /api/v1/namespaces/shop/events",
        "PATCH /api/v1/namespaces/shop/events/e",
        "POST /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
        "PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a",
        "POST /apis/certificates.k8s.io/v1/certificatesigningrequests",
        "GET /apis/certificates.k8s.io/v1/certificatesigningrequests/x",
        "GET /apis/certificates.k8s.io/v1/clustertrustbundles?watch=1",
        "POST /apis/certificates.k8s.io/v1/namespaces/shop/podcertificaterequests",
        "GET /apis/certificates.k8s.io/v1/podcertificaterequests?fieldSelector=spec.nodeName%3Da",
        "GET /apis/mainstay.dev/v1/machinefiles?fieldSelector=spec.nodeName%3Da",
        "POST /apis/resource.k8s.io/v1/resourceslices",
        "GET /apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Da",
        "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a",
        "POST /apis/coordination.k8s.io/v1/namespaces/shop/leases",
        "DELETE /apis/coordination.k8s.io/v1/namespaces/shop/leases/heal-u-0",
        "DELETE /apis/coordination.k8s.io/v1/namespaces/shop/leases/drain-u",
        "POST /apis/mainstay.dev/v1/offers",
        "PUT /apis/mainstay.dev/v1/offers/a",
        "GET /apis/mainstay.dev/v1/offers/a",
        "DELETE /apis/mainstay.dev/v1/offers/a",
        "POST /apis/mainstay.dev/v1/servicetables",
        "PATCH /apis/mainstay.dev/v1/servicetables/a",
        "GET /apis/mainstay.dev/v1/machines/a",
        "GET /apis/mainstay.dev/v1/machines?watch=1&fieldSelector=metadata.name%3Da",
        "PATCH /apis/mainstay.dev/v1/machines/a/status",
        "GET /apis/discovery.k8s.io/v1/endpointslices?watch=1",
        "POST /api/v1/namespaces",
        "POST /apis/discovery.k8s.io/v1/namespaces/host-services/endpointslices",
        "PUT /apis/discovery.k8s.io/v1/namespaces/host-services/endpointslices/x",
        "DELETE /apis/discovery.k8s.io/v1/namespaces/host-services/endpointslices/x",
        "GET /api/v1/nodes?watch=1",
    ] {
        assert_eq!(decided(&node, request), Decision::Allow, "{request}");
    }
}

#[test]
fn what_pods_refer_to_depends_on_them() {
    let node = User::node("a");
    for (request, kind) in [
        ("GET /api/v1/namespaces/shop/secrets/x", RelationKind::Secret),
        ("GET /api/v1/namespaces/shop/configmaps?watch=1&fieldSelector=metadata.name%3Dx", RelationKind::ConfigMap),
        ("GET /api/v1/namespaces/shop/configmaps?fieldSelector=metadata.name%3Dx", RelationKind::ConfigMap),
        ("GET /api/v1/namespaces/shop/persistentvolumeclaims/x", RelationKind::Claim),
        ("PATCH /api/v1/namespaces/shop/persistentvolumeclaims/x/status", RelationKind::Claim),
        ("POST /api/v1/namespaces/shop/serviceaccounts/x/token", RelationKind::ServiceAccount),
        ("GET /api/v1/namespaces/shop/serviceaccounts/x", RelationKind::ServiceAccount),
        ("GET /api/v1/namespaces/shop/pods/x", RelationKind::Pod),
        ("GET /api/v1/namespaces/shop/pods?fieldSelector=metadata.name%3Dx", RelationKind::Pod),
        ("GET /api/v1/namespaces/shop/pods?watch=1&fieldSelector=metadata.name%3Dx", RelationKind::Pod),
        ("GET /apis/resource.k8s.io/v1/namespaces/shop/resourceclaims/x", RelationKind::ResourceClaim),
        ("GET /apis/apps/v1/namespaces/shop/deployments/x", RelationKind::Workload("Deployment")),
        ("GET /apis/batch/v1/namespaces/shop/jobs/x", RelationKind::Workload("Job")),
        ("PUT /apis/coordination.k8s.io/v1/namespaces/shop/leases/heal-x-0", RelationKind::Controller),
        ("GET /apis/coordination.k8s.io/v1/namespaces/shop/leases/drain-x", RelationKind::Controller),
        ("PUT /apis/coordination.k8s.io/v1/namespaces/shop/leases/drain-x", RelationKind::Controller),
        (
            "GET /apis/coordination.k8s.io/v1/namespaces/shop/leases?labelSelector=mainstay.dev%2Fheal-set%3Dx",
            RelationKind::Controller,
        ),
    ] {
        let relation = Relation { node: "a".into(), kind, namespace: "shop".into(), name: "x".into() };
        assert_eq!(decided(&node, request), Decision::IfRelated(relation), "{request}");
    }
    let budgets = decided(&node, "GET /apis/policy/v1/namespaces/shop/poddisruptionbudgets");
    assert!(matches!(budgets, Decision::IfRelated(Relation { kind: RelationKind::Namespace, .. })), "{budgets:?}");
    let slice = decided(&node, "PUT /apis/resource.k8s.io/v1/resourceslices/x");
    assert!(matches!(slice, Decision::IfRelated(Relation { kind: RelationKind::ResourceSlice, .. })), "{slice:?}");
    let request = decided(&node, "GET /apis/certificates.k8s.io/v1/namespaces/shop/podcertificaterequests/x");
    assert!(
        matches!(request, Decision::IfRelated(Relation { kind: RelationKind::PodCertificateRequest, .. })),
        "{request:?}"
    );
    let attachment = decided(&node, "GET /apis/storage.k8s.io/v1/volumeattachments/x");
    assert!(
        matches!(attachment, Decision::IfRelated(Relation { kind: RelationKind::VolumeAttachment, .. })),
        "{attachment:?}"
    );
    let own = decided(&node, "GET /apis/storage.k8s.io/v1/volumeattachments?watch=1&fieldSelector=spec.nodeName%3Da");
    assert_eq!(own, Decision::Allow);
    let volume = decided(&node, "GET /api/v1/persistentvolumes/x");
    assert!(matches!(volume, Decision::IfRelated(Relation { kind: RelationKind::Volume, .. })), "{volume:?}");
}

#[test]
fn a_machine_is_told_in_upstreams_words_why_not() {
    let node = User::node("a");
    for (request, expected) in [
        ("GET /api/v1/pods", "can only list/watch pods with spec.nodeName field selector"),
        (
            "GET /api/v1/pods?fieldSelector=spec.nodeName%3Db",
            "can only list/watch pods with spec.nodeName field selector",
        ),
        (
            "POST /apis/discovery.k8s.io/v1/namespaces/shop/endpointslices",
            "can only get, list and watch endpointslices, and create, update and delete its own in the namespace \"host-services\"",
        ),
        ("GET /api/v1/secrets", "can only read namespaced object of this type"),
        ("GET /api/v1/namespaces/shop/secrets", "No Object name found"),
        ("PUT /api/v1/namespaces/shop/secrets/x", "can only read resources of this type"),
        (
            "PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/b",
            "can only access node lease with the same name as the requesting node",
        ),
        (
            "PUT /apis/coordination.k8s.io/v1/namespaces/shop/leases/a",
            "can only access leases in the \"kube-node-lease\" system namespace",
        ),
        (
            "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
            "can only get, create, update, patch, or delete a node lease",
        ),
        (
            "GET /apis/coordination.k8s.io/v1/namespaces/shop/leases",
            "can only access leases in the \"kube-node-lease\" system namespace",
        ),
        (
            "GET /apis/coordination.k8s.io/v1/leases?labelSelector=mainstay.dev%2Fheal-set%3Dx",
            "can only access leases in the \"kube-node-lease\" system namespace",
        ),
        (
            "DELETE /apis/coordination.k8s.io/v1/namespaces/shop/leases/leader",
            "can only access leases in the \"kube-node-lease\" system namespace",
        ),
        ("GET /api/v1/namespaces/shop/pods", "can only list/watch pods with spec.nodeName field selector"),
        (
            "GET /api/v1/pods?fieldSelector=spec.nodeName%21%3Da",
            "can only list/watch pods with spec.nodeName field selector",
        ),
        ("PUT /api/v1/namespaces/shop/persistentvolumeclaims/x/status", "can only read resources of this type"),
        ("PATCH /api/v1/namespaces/shop/persistentvolumeclaims/x", "can only read resources of this type"),
        (
            "GET /apis/storage.k8s.io/v1/volumeattachments?fieldSelector=spec.nodeName%3Db",
            "can only list/watch volumeattachments with spec.nodeName field selector, and get those that name the node",
        ),
        (
            "PATCH /apis/storage.k8s.io/v1/volumeattachments/x/status",
            "can only list/watch volumeattachments with spec.nodeName field selector, and get those that name the node",
        ),
        ("GET /apis/apps/v1/namespaces/shop/deployments", "can only get individual resources of this type"),
        ("POST /apis/apps/v1/namespaces/shop/deployments", "can only get individual resources of this type"),
        ("GET /apis/policy/v1/poddisruptionbudgets", "can only list the budgets of namespaces in which it has a pod"),
        (
            "GET /apis/resource.k8s.io/v1/namespaces/shop/resourceclaims",
            "can only get individual resources of this type",
        ),
        ("PUT /apis/resource.k8s.io/v1/namespaces/shop/resourceclaims/x/status", "cannot get subresource"),
        ("GET /api/v1/namespaces", ""),
        ("GET /apis/storage.k8s.io/v1/csinodes/a", ""),
        ("POST /api/v1/namespaces/shop/serviceaccounts", "can only create token subresource of serviceaccount"),
        (
            "GET /apis/resource.k8s.io/v1/resourceslices",
            "can only list/watch/deletecollection resourceslices with nodeName field selector",
        ),
        (
            "PUT /apis/mainstay.dev/v1/offers/b",
            "can only get, create, update, patch, or delete the offer with the same name as the node",
        ),
        (
            "GET /apis/mainstay.dev/v1/offers",
            "can only get, create, update, patch, or delete the offer with the same name as the node",
        ),
        (
            "PUT /apis/mainstay.dev/v1/servicetables/b",
            "can only get, create, update, patch, or delete the servicetable with the same name as the node",
        ),
        (
            "PATCH /apis/mainstay.dev/v1/machines/b/status",
            "can only get, list and watch the machine with the same name as the node, and update or patch its status",
        ),
        (
            "PATCH /apis/mainstay.dev/v1/machines/a",
            "can only get, list and watch the machine with the same name as the node, and update or patch its status",
        ),
        (
            "POST /apis/mainstay.dev/v1/machines",
            "can only get, list and watch the machine with the same name as the node, and update or patch its status",
        ),
        (
            "DELETE /apis/mainstay.dev/v1/machines/a",
            "can only get, list and watch the machine with the same name as the node, and update or patch its status",
        ),
        (
            "GET /apis/mainstay.dev/v1/machines",
            "can only get, list and watch the machine with the same name as the node, and update or patch its status",
        ),
        ("GET /apis/mainstay.dev/v1/releases/all", ""),
        ("POST /apis/mainstay.dev/v1/placements", ""),
        ("DELETE /api/v1/nodes/a", ""),
        ("DELETE /api/v1/namespaces/shop/pods", ""),
        ("PUT /api/v1/namespaces/shop/pods/web", ""),
        ("GET /api/v1/namespaces/shop/pods/web/log", ""),
        ("PUT /apis/certificates.k8s.io/v1/certificatesigningrequests/x/approval", ""),
        (
            "GET /apis/certificates.k8s.io/v1/podcertificaterequests",
            "can only list/watch podcertificaterequests with spec.nodeName field selector",
        ),
        (
            "GET /apis/mainstay.dev/v1/machinefiles",
            "can only list/watch machinefiles with spec.nodeName field selector, and get, update or patch the status of those that name the node",
        ),
        (
            "GET /apis/mainstay.dev/v1/machinefiles?fieldSelector=spec.nodeName%3Db",
            "can only list/watch machinefiles with spec.nodeName field selector, and get, update or patch the status of those that name the node",
        ),
        (
            "POST /apis/mainstay.dev/v1/namespaces/shop/machinefiles",
            "can only list/watch machinefiles with spec.nodeName field selector, and get, update or patch the status of those that name the node",
        ),
        (
            "DELETE /apis/certificates.k8s.io/v1/namespaces/shop/podcertificaterequests/x",
            "can only create, get, list and watch podcertificaterequests",
        ),
        ("POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings", ""),
        ("GET /metrics", ""),
    ] {
        assert_eq!(why(decided(&node, request)), expected, "{request}");
    }
}

/// A server with the objects that every cluster has.
async fn cluster() -> Arc<Handler> {
    let api = Api::new(Registry::builtin(), Arc::new(Memory::default()), Settings::default());
    let handler = Arc::new(Handler::new(api, CancellationToken::new()));
    bootstrap(&handler, "192.0.2.1:6443".parse().unwrap()).await.unwrap();
    handler
}

async fn may(handler: &Handler, user: &User, request: &str) -> Verdict {
    let (method, uri) = request.split_once(' ').unwrap();
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let route = Route::parse(path).unwrap();
    let query = Query::parse(query).unwrap();
    decide(&handler.api, user, &Attributes::from_request(&method, path, &route, &query)).await.unwrap()
}

#[tokio::test]
async fn everybody_may_ask_who_they_are_and_what_there_is() {
    let handler = cluster().await;
    let account = User::authenticated("system:serviceaccount:a:b".into(), vec![SERVICE_ACCOUNTS.into()]);
    let joining = User::authenticated("system:bootstrap:abcdef".into(), vec![BOOTSTRAPPERS.into()]);
    let plain = User::authenticated("ann".into(), vec![]);
    let pretender = User::authenticated("system:node:a".into(), vec![]);
    for user in [&account, &joining, &plain, &pretender, &User::node("a")] {
        for request in [
            "GET /api",
            "GET /apis/apps/v1",
            "GET /openapi/v3",
            "GET /version",
            "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            "POST /apis/authentication.k8s.io/v1/selfsubjectreviews",
        ] {
            assert!(may(&handler, user, request).await.is_ok(), "{request}");
        }
        for request in ["DELETE /api/v1/nodes/a", "GET /metrics", "GET /api/v1/namespaces/a/pods"] {
            assert!(may(&handler, user, request).await.is_err(), "{request}");
        }
    }
    let request = "POST /apis/certificates.k8s.io/v1/certificatesigningrequests";
    assert!(may(&handler, &joining, request).await.is_ok());
    assert!(may(&handler, &account, request).await.is_err());
    assert!(may(&handler, &account, "GET /openid/v1/jwks").await.is_ok());
    assert!(may(&handler, &plain, "GET /openid/v1/jwks").await.is_err());
    assert!(may(&handler, &User::internal("x"), "DELETE /api/v1/nodes/a").await.is_ok());
}

/// Carries out a request of somebody; the code and the body.
async fn call(handler: &Arc<Handler>, user: &User, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
    let mut request = http::Request::new(Full::new(body.to_string().into()));
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().unwrap();
    let response = handler.clone().handle(request, Caller::Internal(Arc::new(user.clone()))).await;
    let code = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// Makes an object as administrator, and the cache read it.
async fn given(handler: &Arc<Handler>, path: &str, object: Value) {
    let (code, status) = call(handler, &User::internal("x"), Method::POST, &format!("{RBAC}{path}"), &object).await;
    assert_eq!(code, StatusCode::CREATED, "{status}");
    handler.api.rbac.load(&handler.api.registry, &*handler.api.store).await.unwrap();
}

fn role(name: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "metadata": { "name": name }, "rules": [{ "apiGroups": [""], "resources": resources, "verbs": verbs }] })
}

fn binding(name: &str, kind: &str, role: &str, user: &str) -> Value {
    json!({
        "metadata": { "name": name }, "roleRef": { "kind": kind, "name": role },
        "subjects": [{ "kind": "User", "name": user }],
    })
}

/// Ann administers the roles of the namespace `default`, where she may read pods.
async fn with_ann() -> (Arc<Handler>, User) {
    let handler = cluster().await;
    let rules = json!([
        { "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"] },
        { "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["*"], "verbs": ["create", "update", "get"] },
    ]);
    given(&handler, "/clusterroles", json!({ "metadata": { "name": "ann" }, "rules": rules })).await;
    given(&handler, "/namespaces/default/rolebindings", binding("ann", "ClusterRole", "ann", "ann")).await;
    (handler, User::authenticated("ann".into(), vec![]))
}

#[tokio::test]
async fn a_role_holds_in_the_namespace_it_is_bound_in() {
    let (handler, ann) = with_ann().await;
    assert_eq!(
        may(&handler, &ann, "GET /api/v1/namespaces/default/pods").await,
        Ok(r#"RBAC: allowed by RoleBinding "ann/default" of ClusterRole "ann" to User "ann""#.to_owned())
    );
    assert_eq!(may(&handler, &ann, "GET /api/v1/namespaces/kube-system/pods").await, Err(String::new()));
    assert_eq!(may(&handler, &ann, "GET /api/v1/pods").await, Err(String::new()));
    let (code, status) = call(&handler, &ann, Method::GET, "/api/v1/namespaces/default/secrets", &Value::Null).await;
    assert_eq!(code, StatusCode::FORBIDDEN);
    assert_eq!(
        status["message"],
        r#"secrets is forbidden: User "ann" cannot list resource "secrets" in API group "" in the namespace "default""#
    );
}

#[tokio::test]
async fn nobody_grants_what_they_do_not_hold() {
    let (handler, ann) = with_ann().await;
    let roles = format!("{RBAC}/namespaces/default/roles");
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let own = role("own", &["pods"], &["get"]);
    assert_eq!(call(&handler, &ann, Method::POST, &roles, &own).await.0, StatusCode::CREATED);

    let more = role("more", &["pods", "secrets"], &["get"]);
    let (code, status) = call(&handler, &ann, Method::POST, &roles, &more).await;
    assert_eq!(code, StatusCode::FORBIDDEN, "{status}");
    assert_eq!(
        status["message"],
        "roles.rbac.authorization.k8s.io \"more\" is forbidden: user \"ann\" (groups=[\"system:authenticated\"]) is attempting \
         to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}"
    );
    let grown = role("own", &["pods"], &["get", "delete"]);
    assert_eq!(call(&handler, &ann, Method::PUT, &format!("{roles}/own"), &grown).await.0, StatusCode::FORBIDDEN);

    given(&handler, "/namespaces/default/roles", role("strong", &["secrets"], &["get"])).await;
    let bound = binding("b", "Role", "strong", "ann");
    assert_eq!(call(&handler, &ann, Method::POST, &bindings, &bound).await.0, StatusCode::FORBIDDEN);
    let bound = binding("c", "ClusterRole", "cluster-admin", "ann");
    assert_eq!(call(&handler, &ann, Method::POST, &bindings, &bound).await.0, StatusCode::FORBIDDEN);
    let bound = binding("d", "Role", "absent", "ann");
    assert_eq!(call(&handler, &ann, Method::POST, &bindings, &bound).await.0, StatusCode::NOT_FOUND);
    let bound = binding("e", "ClusterRole", "ann", "bob");
    assert_eq!(call(&handler, &ann, Method::POST, &bindings, &bound).await.0, StatusCode::CREATED);
}

#[tokio::test]
async fn who_labels_a_role_grants_what_is_in_it() {
    let (handler, ann) = with_ann().await;
    let ann_everywhere = binding("ann", "ClusterRole", "ann", "ann");
    given(&handler, "/clusterrolebindings", ann_everywhere).await;
    let change = async |kind: &str, name: &str, change: Value| {
        let path = format!("{RBAC}/{kind}/{name}");
        let (_, mut object) = call(&handler, &User::internal("x"), Method::GET, &path, &Value::Null).await;
        mainstay_api::patch::merge(&mut object, &change);
        call(&handler, &ann, Method::PUT, &path, &object).await
    };
    // Whoever may edit would get all the rules of cluster-admin.
    let label = json!({ "metadata": { "labels": { "rbac.authorization.k8s.io/aggregate-to-edit": "true" } } });
    let (code, status) = change("clusterroles", "cluster-admin", label.clone()).await;
    assert_eq!(code, StatusCode::FORBIDDEN, "{status}");
    assert!(status["message"].as_str().is_some_and(|words| words.contains("not currently held")), "{status}");
    let (code, _) = change("clusterrolebindings", "cluster-admin", label.clone()).await;
    assert_eq!(code, StatusCode::FORBIDDEN);
    // What once aggregated may have any rules.
    let (code, _) = change("clusterroles", "view", json!({ "aggregationRule": null, "rules": [] })).await;
    assert_eq!(code, StatusCode::FORBIDDEN);
    // Her own rights are hers to spread, and what the garbage collector writes says nothing of rights.
    assert_eq!(change("clusterroles", "ann", label).await.0, StatusCode::OK);
    let held = json!({ "metadata": { "finalizers": ["example.com/held"] } });
    assert_eq!(change("clusterroles", "cluster-admin", held).await.0, StatusCode::OK);
}

#[tokio::test]
async fn the_verbs_bind_and_escalate_let_somebody_grant_more() {
    let (handler, ann) = with_ann().await;
    given(&handler, "/namespaces/default/roles", role("strong", &["secrets"], &["get"])).await;
    let rules = json!([
        { "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["bind"], "resourceNames": ["strong"] },
        { "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["escalate"] },
    ]);
    given(&handler, "/namespaces/default/roles", json!({ "metadata": { "name": "granter" }, "rules": rules })).await;
    given(&handler, "/namespaces/default/rolebindings", binding("granter", "Role", "granter", "ann")).await;
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let bound = binding("b", "Role", "strong", "bob");
    assert_eq!(call(&handler, &ann, Method::POST, &bindings, &bound).await.0, StatusCode::CREATED);
    let bound = binding("c", "ClusterRole", "cluster-admin", "bob");
    assert_eq!(call(&handler, &ann, Method::POST, &bindings, &bound).await.0, StatusCode::FORBIDDEN);
    let roles = format!("{RBAC}/namespaces/default/roles");
    let anything = role("anything", &["*"], &["*"]);
    assert_eq!(call(&handler, &ann, Method::POST, &roles, &anything).await.0, StatusCode::CREATED);
}

#[tokio::test]
async fn rules_are_listed_for_those_who_ask_about_themselves() {
    let (handler, ann) = with_ann().await;
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let (code, review) = call(&handler, &ann, Method::POST, path, &json!({ "spec": { "namespace": "default" } })).await;
    assert_eq!(code, StatusCode::CREATED, "{review}");
    let resources = review["status"]["resourceRules"].as_array().unwrap();
    assert!(
        resources.contains(&json!({ "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"] })),
        "{review}"
    );
    assert_eq!(review["status"]["incomplete"], false);
    let (code, _) = call(&handler, &ann, Method::POST, path, &json!({ "spec": {} })).await;
    assert_eq!(code, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn controllers_of_the_cloud_use_secrets_of_klusters_and_no_others() {
    let handler = cluster().await;
    let accounts = vec![SERVICE_ACCOUNTS.to_owned()];
    let cloud = User::authenticated("system:serviceaccount:kube-system:cloud-controller".into(), accounts.clone());
    let other = User::authenticated("system:serviceaccount:default:cloud-controller".into(), accounts);
    let secrets = "/api/v1/namespaces/default/secrets";
    assert!(may(&handler, &cloud, &format!("POST {secrets}")).await.is_err(), "there is no Kluster");
    let kluster =
        json!({"apiVersion": "mainstay.dev/v1", "kind": "Kluster", "metadata": {"name": "berlin"}, "spec": {}});
    let path = "/apis/mainstay.dev/v1/namespaces/default/klusters";
    let (code, status) = call(&handler, &User::internal("test"), Method::POST, path, &kluster).await;
    assert_eq!(code, StatusCode::CREATED, "{status}");
    for name in ["berlin-pki", "berlin-kubeconfig", "berlin-cloud"] {
        for verb in ["GET", "PATCH", "DELETE"] {
            assert!(may(&handler, &cloud, &format!("{verb} {secrets}/{name}")).await.is_ok(), "{verb} {name}");
            assert!(may(&handler, &other, &format!("{verb} {secrets}/{name}")).await.is_err(), "{verb} {name}");
        }
        assert!(may(&handler, &cloud, &format!("PUT {secrets}/{name}")).await.is_err());
        assert!(may(&handler, &cloud, &format!("GET /api/v1/namespaces/kube-system/secrets/{name}")).await.is_err());
    }
    assert!(may(&handler, &cloud, &format!("POST {secrets}")).await.is_ok());
    for request in ["GET {}", "GET {}?watch=1", "GET {}/berlin", "GET {}/paris-cloud", "GET {}/token", "DELETE {}"] {
        let request = request.replace("{}", secrets);
        assert!(may(&handler, &cloud, &request).await.is_err(), "{request}");
    }
}
