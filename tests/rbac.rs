//! Roles and bindings as `kubectl` uses them.

use base64::{Engine, prelude::BASE64_STANDARD};

use crate::{
    harness::{Kubectl, Version, eventually},
    tokens::as_bearer,
};

/// Waits until a question about rights has this answer: servers learn of roles and bindings a moment after they are written.
fn until_may(k: &Kubectl, question: &str, answer: &str) {
    let asked = format!("auth can-i {question}");
    eventually(&format!("{asked}: {answer}"), || (k.run(&asked).stdout.trim() == answer).then_some(()));
}

#[test]
fn a_service_account_may_what_its_roles_allow() {
    let k = Kubectl::start(Version::V1_32);
    k.ok("create namespace shop");
    k.ok("create serviceaccount bot -n shop");
    k.ok("create configmap settings -n shop --from-literal=a=b");
    let bot = as_bearer(&k, &k.ok("create token bot -n shop"));
    assert!(k.refused(&format!("{bot} get configmaps -n shop")).contains("cannot list resource \"configmaps\""));

    k.ok("create role reader -n shop --verb=get,list --resource=configmaps");
    k.ok("create rolebinding bot-reads -n shop --role=reader --serviceaccount=shop:bot");
    until_may(&k, "list configmaps -n shop --as=system:serviceaccount:shop:bot", "yes");
    assert!(k.ok(&format!("{bot} get configmap settings -n shop")).contains("settings"));
    assert!(k.refused(&format!("{bot} delete configmap settings -n shop")).contains("cannot delete resource"));
    assert!(k.refused(&format!("{bot} get configmaps -n default")).contains("in the namespace \"default\""));
    let list = k.ok(&format!("{bot} auth can-i --list -n shop"));
    assert!(list.lines().any(|line| line.starts_with("configmaps ") && line.ends_with("[get list]")), "{list}");

    // The stock roles are sums of others, and show a namespace without its Secrets.
    k.ok("create rolebinding bot-views -n shop --clusterrole=view --serviceaccount=shop:bot");
    until_may(&k, "list deployments -n shop --as=system:serviceaccount:shop:bot", "yes");
    until_may(&k, "get secrets -n shop --as=system:serviceaccount:shop:bot", "no");
    k.ok("create clusterrole secrets-too --verb=get --resource=secrets");
    k.ok("label clusterrole secrets-too rbac.authorization.k8s.io/aggregate-to-view=true");
    until_may(&k, "get secrets -n shop --as=system:serviceaccount:shop:bot", "yes");

    k.ok("delete rolebinding bot-reads bot-views -n shop");
    until_may(&k, "list configmaps -n shop --as=system:serviceaccount:shop:bot", "no");
}

#[test]
fn nobody_makes_himself_stronger() {
    let k = Kubectl::start(Version::V1_32);
    k.ok("create namespace shop");
    // Ann administers a namespace.
    k.ok("create rolebinding ann -n shop --clusterrole=admin --user=ann");
    until_may(&k, "create roles -n shop --as=ann", "yes");
    until_may(&k, "create deployments.apps -n shop --as=ann", "yes");
    k.ok("create role deployer -n shop --verb=create --resource=deployments.apps --as=ann");
    let nodes = k.refused("create role nodes -n shop --verb=delete --resource=nodes --as=ann");
    assert!(nodes.contains("is attempting to grant RBAC permissions not currently held"), "{nodes}");
    assert!(nodes.contains(r#"{APIGroups:[""], Resources:["nodes"], Verbs:["delete"]}"#), "{nodes}");
    let admin = k.refused("create rolebinding x -n shop --clusterrole=cluster-admin --user=ann --as=ann");
    assert!(admin.contains("not currently held"), "{admin}");
    k.ok("create rolebinding bob -n shop --clusterrole=edit --user=bob --as=ann");
    let cluster = k.refused("create clusterrolebinding x --clusterrole=view --user=ann --as=ann");
    assert!(cluster.contains("cannot create resource \"clusterrolebindings\""), "{cluster}");
    // Comparing each of very many rights with her own is not worth the server's time.
    let words: Vec<String> = (0..400).map(|i| format!("\"w{i}\"")).collect();
    let words = words.join(",");
    let absurd = format!(
        r#"{{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {{"name": "absurd", "namespace": "shop"}},
        "rules": [{{"apiGroups": [""], "resources": [{words}], "verbs": [{words}]}}]}}"#
    );
    let absurd = k.run_with("create --as=ann -f -", &absurd).refused();
    assert!(absurd.contains("combine to 160000 single rights"), "{absurd}");
    // Nor by being somebody else.
    k.ok("create clusterrole act-as-bob --verb=impersonate --resource=users --resource-name=bob");
    k.ok("create clusterrolebinding act-as-bob --clusterrole=act-as-bob --user=carl");
    until_may(&k, "impersonate users/bob --as=carl", "yes");
    until_may(&k, "impersonate users/admin --as=carl", "no");
    // What is there already is brought to what a file says.
    let roles = r#"{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "deployer", "namespace": "shop"},
        "rules": [{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["create", "get"]}]}"#;
    assert!(k.run_with("auth reconcile -f -", roles).ok().contains("reconciled"));
    assert_eq!(k.value("role deployer -n shop", "{.rules[*].verbs[*]}"), "create get");
}

#[test]
fn approving_a_certificate_takes_the_right_to_approve_for_its_signer() {
    let k = Kubectl::start(Version::V1_32);
    k.ok("create clusterrole approver --verb=get,update --resource=certificatesigningrequests,certificatesigningrequests/approval");
    k.ok("create clusterrolebinding approver --clusterrole=approver --user=ann");
    let request = rcgen::CertificateParams::default().serialize_request(&rcgen::KeyPair::generate().expect("a key"));
    let pem = request.expect("a request").pem().expect("as text");
    let body = serde_json::json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": "mine" },
        "spec": { "request": BASE64_STANDARD.encode(pem), "signerName": "example.com/own", "usages": ["client auth"] },
    });
    k.run_with("create -f -", &body.to_string()).ok();
    until_may(&k, "update certificatesigningrequests/approval --as=ann", "yes");
    let refused = k.refused("certificate approve mine --as=ann");
    assert!(
        refused.contains("user not permitted to approve requests with signerName \"example.com/own\""),
        "{refused}"
    );
    let role = r#"{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "own-signer"},
        "rules": [{"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "resourceNames": ["example.com/*"],
        "verbs": ["approve"]}]}"#;
    k.run_with("create -f -", role).ok();
    k.ok("create clusterrolebinding own-signer --clusterrole=own-signer --user=ann");
    eventually("the approval", || (k.run("certificate approve mine --as=ann").code == 0).then_some(()));
}
