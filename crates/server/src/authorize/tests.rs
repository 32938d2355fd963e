use http::Method;

use super::*;
use crate::http::{query::Query, route::Route};

fn decided(user: &User, request: &str) -> Decision {
    let (method, uri) = request.split_once(' ').unwrap();
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let route = Route::parse(path).unwrap();
    let query = Query::parse(query).unwrap();
    authorize(&Registry::builtin(), user, &Attributes::from_request(&method, path, &route, &query))
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
        "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a",
        "POST /apis/coordination.k8s.io/v1/namespaces/shop/leases",
        "DELETE /apis/coordination.k8s.io/v1/namespaces/shop/leases/heal-u-0",
        "POST /apis/mainstay.dev/v1/offers",
        "PUT /apis/mainstay.dev/v1/offers/a",
        "GET /apis/mainstay.dev/v1/offers/a",
        "DELETE /apis/mainstay.dev/v1/offers/a",
        "POST /apis/mainstay.dev/v1/servicetables",
        "PATCH /apis/mainstay.dev/v1/servicetables/a",
        "GET /apis/discovery.k8s.io/v1/endpointslices?watch=1",
        "GET /api/v1/nodes?watch=1",
        "POST /apis/authentication.k8s.io/v1/selfsubjectreviews",
        "GET /apis",
        "GET /version",
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
        ("POST /api/v1/namespaces/shop/serviceaccounts/x/token", RelationKind::ServiceAccount),
        ("GET /api/v1/namespaces/shop/serviceaccounts/x", RelationKind::ServiceAccount),
        ("GET /api/v1/namespaces/shop/pods/x", RelationKind::Pod),
        ("GET /api/v1/namespaces/shop/pods?fieldSelector=metadata.name%3Dx", RelationKind::Pod),
        ("GET /api/v1/namespaces/shop/pods?watch=1&fieldSelector=metadata.name%3Dx", RelationKind::Pod),
        ("GET /apis/apps/v1/namespaces/shop/deployments/x", RelationKind::Workload("Deployment")),
        ("GET /apis/batch/v1/namespaces/shop/jobs/x", RelationKind::Workload("Job")),
        ("PUT /apis/coordination.k8s.io/v1/namespaces/shop/leases/heal-x-0", RelationKind::Controller),
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
        ("PATCH /api/v1/namespaces/shop/persistentvolumeclaims/x/status", "can only read resources of this type"),
        ("GET /apis/apps/v1/namespaces/shop/deployments", "can only get individual resources of this type"),
        ("POST /apis/apps/v1/namespaces/shop/deployments", "can only get individual resources of this type"),
        ("GET /apis/policy/v1/poddisruptionbudgets", "can only list the budgets of namespaces in which it has a pod"),
        ("GET /api/v1/namespaces", ""),
        ("GET /apis/storage.k8s.io/v1/csinodes/a", ""),
        ("POST /api/v1/namespaces/shop/serviceaccounts", "can only create token subresource of serviceaccount"),
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
        ("POST /apis/mainstay.dev/v1/placements", ""),
        ("DELETE /api/v1/nodes/a", ""),
        ("DELETE /api/v1/namespaces/shop/pods", ""),
        ("PUT /api/v1/namespaces/shop/pods/web", ""),
        ("GET /api/v1/namespaces/shop/pods/web/log", ""),
        ("PUT /apis/certificates.k8s.io/v1/certificatesigningrequests/x/approval", ""),
        ("POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings", ""),
        ("GET /metrics", ""),
    ] {
        assert_eq!(why(decided(&node, request)), expected, "{request}");
    }
}

#[test]
fn others_may_ask_who_they_are_and_what_there_is() {
    let account = User::authenticated("system:serviceaccount:a:b".into(), vec![SERVICE_ACCOUNTS.into()]);
    let joining = User::authenticated("system:bootstrap:abcdef".into(), vec![BOOTSTRAPPERS.into()]);
    let plain = User::authenticated("ann".into(), vec![]);
    let pretender = User::authenticated("system:node:a".into(), vec![]);
    for user in [&account, &joining, &plain, &pretender] {
        for request in ["GET /api", "GET /openapi/v3", "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"] {
            assert_eq!(decided(user, request), Decision::Allow, "{request}");
        }
        for request in ["GET /api/v1/nodes", "GET /metrics", "POST /apis/authentication.k8s.io/v1/tokenreviews"] {
            assert_eq!(decided(user, request), Decision::NO, "{request}");
        }
    }
    let request = "POST /apis/certificates.k8s.io/v1/certificatesigningrequests";
    assert_eq!(decided(&joining, request), Decision::Allow);
    assert_eq!(decided(&account, request), Decision::NO);
    assert_eq!(decided(&account, "GET /openid/v1/jwks"), Decision::Allow);
    assert_eq!(decided(&plain, "GET /openid/v1/jwks"), Decision::NO);
    assert_eq!(decided(&User::internal("x"), "DELETE /api/v1/nodes/a"), Decision::Allow);
}
