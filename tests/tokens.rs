//! Tokens of service accounts and who people are, as `kubectl` sees them.

use serde_json::{Value, json};

use crate::harness::{Cluster, Kubectl, Version, eventually};

fn start() -> Kubectl {
    Kubectl::start(Version::V1_32)
}

/// Creates from JSON, and answers what was refused.
fn refused(k: &Kubectl, object: &Value) -> String {
    k.run_with("create -f -", &object.to_string()).refused()
}

fn pod(name: &str, account: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"serviceAccountName": account, "containers": [{"name": "c", "image": "i"}]},
    })
}

/// What a token says of the one who presents it.
fn review(k: &Kubectl, token: &str, audiences: &[&str]) -> Value {
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": {"token": token, "audiences": audiences},
    });
    let output = k.run_with("create -o json --validate=false -f -", &review.to_string()).ok();
    serde_json::from_str::<Value>(&output).expect("a review")["status"].take()
}

/// kubectl with a token and nothing else.
pub fn as_bearer(k: &Kubectl, token: &str) -> String {
    let ca = k.json("config view --raw -o json")["clusters"][0]["cluster"]["certificate-authority-data"].clone();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": k.cluster.url(), "certificate-authority-data": ca}}],
        "users": [{"name": "x", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    });
    let path = k.cluster.file("bearer.kubeconfig", &config.to_string());
    format!("--kubeconfig={path}")
}

#[test]
fn a_service_account_is_known_by_its_token() {
    let k = start();
    k.ok("create namespace shop");
    k.ok("create serviceaccount bot -n shop");
    let token = k.ok("create token bot -n shop");
    let bearer = as_bearer(&k, &token);
    let who = k.json(&format!("{bearer} auth whoami -o json"));
    let info = &who["status"]["userInfo"];
    assert_eq!(info["username"], "system:serviceaccount:shop:bot", "{who}");
    assert_eq!(info["uid"].as_str(), Some(k.value("sa bot -n shop", "{.metadata.uid}").as_str()));
    assert_eq!(
        info["groups"],
        json!(["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"])
    );
    // It may see what there is, and nothing in it.
    assert!(k.ok(&format!("{bearer} api-resources")).contains("deployments"));
    assert_eq!(
        k.refused(&format!("{bearer} get pods -n shop")),
        "Error from server (Forbidden): pods is forbidden: User \"system:serviceaccount:shop:bot\" cannot list resource \
         \"pods\" in API group \"\" in the namespace \"shop\""
    );
    assert_eq!(k.run(&format!("{bearer} auth can-i list pods -n shop")).stdout.trim(), "no");
    assert_eq!(k.ok("auth can-i list pods -n shop"), "yes");
    assert!(k.ok(&format!("{bearer} get --raw /openid/v1/jwks")).contains("ES256"));
    let issuer = k.json(&format!("{bearer} get --raw /.well-known/openid-configuration"));
    assert_eq!(issuer["issuer"], "https://kubernetes.default.svc.cluster.local");
    assert_eq!(issuer["jwks_uri"], format!("{}/openid/v1/jwks", k.cluster.url()));
    // With the account goes what its tokens are worth.
    k.ok("delete serviceaccount bot -n shop");
    assert!(k.refused(&format!("{bearer} auth whoami")).contains("Unauthorized"));
}

#[test]
fn a_token_holds_for_its_audience_and_while_its_pod_exists() {
    let k = start();
    k.ok("create serviceaccount bot");
    k.create(&pod("web", "bot").to_string());
    let uid = k.value("pod web", "{.metadata.uid}");
    let token =
        k.ok(&format!("create token bot --bound-object-kind=Pod --bound-object-name=web --bound-object-uid={uid}"));
    let status = review(&k, &token, &[]);
    assert_eq!(status["authenticated"], true, "{status}");
    assert_eq!(status["audiences"], json!(["https://kubernetes.default.svc.cluster.local"]));
    assert_eq!(status["user"]["extra"]["authentication.kubernetes.io/pod-name"], json!(["web"]));
    assert_eq!(status["user"]["extra"]["authentication.kubernetes.io/pod-uid"], json!([uid]));
    let other = k.ok("create token bot --audience=vault --duration=20m");
    assert_eq!(review(&k, &other, &["vault", "x"])["audiences"], json!(["vault"]));
    assert_ne!(review(&k, &other, &[])["authenticated"], true);
    assert!(k.refused(&format!("{} auth whoami", as_bearer(&k, &other))).contains("Unauthorized"));
    k.ok("delete pod web --grace-period=0 --force");
    eventually("the pod's token is worth nothing", || (review(&k, &token, &[])["authenticated"] != true).then_some(()));
    assert_ne!(review(&k, "nonsense", &[])["authenticated"], true);
}

#[test]
fn what_cannot_be_had_as_a_token_is_refused() {
    let k = start();
    k.ok("create serviceaccount bot");
    k.create(&pod("web", "bot").to_string());
    for (line, words) in [
        ("create token bot --duration=5m", "may not specify a duration less than 10 minutes"),
        ("create token nobody", "serviceaccounts \"nobody\" not found"),
        ("create token bot --bound-object-kind=Pod --bound-object-name=other", "pods \"other\" not found"),
        (
            "create token default --bound-object-kind=Pod --bound-object-name=web",
            "cannot bind token for serviceaccount \"default\" to pod running with different serviceaccount name",
        ),
        (
            "create token bot --bound-object-kind=Pod --bound-object-name=web --bound-object-uid=other",
            "the UID in the bound object reference (other) does not match the UID in record",
        ),
    ] {
        let output = k.refused(line);
        assert!(output.contains(words), "{line}: {output}");
    }
}

#[test]
fn a_pod_gets_what_its_service_account_gives() {
    let k = start();
    k.ok("create namespace fresh");
    // At once: the account `default` of a namespace may not be there yet.
    k.ok("run p --image=i -n fresh");
    assert_eq!(k.value("pod p -n fresh", "{.spec.serviceAccountName}"), "default");
    k.ok("get serviceaccount default -n fresh");
    let volume = k.value("pod p -n fresh", "{.spec.volumes[0].name}");
    assert!(volume.starts_with("kube-api-access-"), "{volume}");
    assert_eq!(
        k.value("pod p -n fresh", "{.spec.containers[0].volumeMounts[0].mountPath}"),
        "/var/run/secrets/kubernetes.io/serviceaccount"
    );
    assert!(k.ok("describe pod p -n fresh").contains("TokenExpirationSeconds:  3607"));
    let refused = refused(&k, &pod("q", "nobody"));
    assert!(
        refused.contains(
            "pods \"q\" is forbidden: error looking up service account default/nobody: serviceaccount \"nobody\" not found"
        ),
        "{refused}"
    );
    k.ok("create serviceaccount quiet");
    k.ok(r#"patch serviceaccount quiet -p '{"automountServiceAccountToken":false,"imagePullSecrets":[{"name":"pull"}]}'"#);
    k.create(&pod("q", "quiet").to_string());
    assert_eq!(k.value("pod q", "{.spec.volumes}"), "");
    assert_eq!(k.value("pod q", "{.spec.imagePullSecrets[0].name}"), "pull");
}

#[test]
fn a_machine_is_confined_to_itself_and_its_pods() {
    let k = start();
    let node = "--as=system:node:a --as-group=system:nodes";
    for (name, on) in [("mine", "a"), ("theirs", "b")] {
        let mut pod = pod(name, "default");
        pod["spec"]["nodeName"] = json!(on);
        pod["spec"]["containers"][0]["envFrom"] = json!([{"secretRef": {"name": format!("{name}-secret")}}]);
        k.create(&pod.to_string());
        k.ok(&format!("create secret generic {name}-secret --from-literal=a=b"));
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": on}});
        k.run_with(&format!("create -f - --as=system:node:{on} --as-group=system:nodes"), &object.to_string()).ok();
    }
    k.ok(&format!("get secret mine-secret {node}"));
    assert_eq!(
        k.refused(&format!("get secret theirs-secret {node}")),
        "Error from server (Forbidden): secrets \"theirs-secret\" is forbidden: User \"system:node:a\" cannot get resource \
         \"secrets\" in API group \"\" in the namespace \"default\": no relationship found between node 'a' and this object"
    );
    k.ok(&format!("get pods --all-namespaces --field-selector spec.nodeName=a {node}"));
    for (line, words) in [
        ("get pods --all-namespaces", "can only list/watch pods with spec.nodeName field selector"),
        ("get secrets", "No Object name found"),
        ("delete pod theirs", "node \"a\" can only delete pods with spec.nodeName set to itself"),
        ("label node b x=y", "node \"a\" is not allowed to modify node \"b\""),
        ("label node a node-role.kubernetes.io/x=y", "is not allowed to modify labels: node-role.kubernetes.io/x"),
        ("taint node a x=y:NoSchedule", "node \"a\" is not allowed to modify taints"),
        ("run other --image=i", "pod does not have \"kubernetes.io/config.mirror\" annotation"),
        ("create configmap c", "can only read resources of this type"),
        ("delete node a", "cannot delete resource \"nodes\""),
        ("create token default", "node requested token not bound to a pod"),
        ("create clusterrolebinding x --clusterrole=y --user=z", "cannot create resource \"clusterrolebindings\""),
    ] {
        let output = k.refused(&format!("{line} {node}"));
        assert!(output.contains(words), "{line}: {output}");
    }
    // A request for a pod that is gone is refused, even if another has its name by now.
    let gone = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "gone"}});
    let raw = format!("delete --raw /api/v1/namespaces/default/pods/theirs {node} -f -");
    let output = k.run_with(&raw, &gone.to_string()).refused();
    assert!(output.contains("Precondition failed"), "{output}");
    k.ok("get pod theirs");
    let uid = k.value("pod mine", "{.metadata.uid}");
    let bound = format!("--bound-object-kind=Pod --bound-object-name=mine --bound-object-uid={uid}");
    let token = k.ok(&format!("create token default {bound} {node}"));
    assert_eq!(review(&k, &token, &[])["user"]["extra"]["authentication.kubernetes.io/node-name"], json!(["a"]));
    k.ok(&format!("label node a x=y {node}"));
    k.ok(&format!("delete pod mine --wait=false {node}"));
}

#[test]
fn users_of_a_token_file_are_who_it_says() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("tokens.csv");
    std::fs::write(&file, "s3cret,ann,u1,\"devs,ops\"\n").expect("write the file");
    let flag = file.display().to_string();
    let k = Kubectl::of(Version::V1_32, Cluster::start_with(&["--token-auth-file", &flag]));
    let who = k.json(&format!("{} auth whoami -o json", as_bearer(&k, "s3cret")));
    let info = &who["status"]["userInfo"];
    assert_eq!((&info["username"], &info["uid"]), (&json!("ann"), &json!("u1")), "{who}");
    assert_eq!(info["groups"], json!(["devs", "ops", "system:authenticated"]));
    let refused = k.refused(&format!("{} get pods", as_bearer(&k, "s3cre")));
    assert!(refused.contains("Unauthorized") || refused.contains("logged in"), "{refused}");
}

#[test]
fn a_secret_of_an_account_gets_a_token_that_goes_with_it() {
    let k = start();
    k.ok("create serviceaccount bot");
    let secret = |name: &str, account: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": account}},
        })
    };
    k.create(&secret("bot-token", "bot").to_string());
    let filled = eventually("the Secret has a token", || {
        let secret = k.json("get secret bot-token -o json");
        secret["data"]["token"].is_string().then_some(secret)
    });
    let uid = k.value("sa bot", "{.metadata.uid}");
    assert_eq!(filled["metadata"]["annotations"]["kubernetes.io/service-account.uid"], json!(uid));
    assert_eq!(filled["data"]["namespace"], "ZGVmYXVsdA==");
    assert!(filled["data"]["ca.crt"].is_string());
    let token = k.ok("get secret bot-token -o go-template={{.data.token|base64decode}}");
    let status = review(&k, &token, &[]);
    assert_eq!(status["user"]["username"], "system:serviceaccount:default:bot", "{status}");
    assert_eq!(status["user"]["uid"], json!(uid));
    k.create(&secret("stray", "nobody").to_string());
    let is_gone = |name: &str| k.run(&format!("get secret {name}")).stderr.contains("NotFound").then_some(());
    eventually("a Secret of no account is gone", || is_gone("stray"));
    k.ok("delete serviceaccount bot");
    assert_ne!(review(&k, &token, &[])["authenticated"], true);
    eventually("the Secret goes with its account", || is_gone("bot-token"));
    let mut nameless = secret("nameless", "x");
    nameless["metadata"]["annotations"] = json!({});
    let why = refused(&k, &nameless);
    assert!(why.contains("metadata.annotations[kubernetes.io/service-account.name]: Required value"), "{why}");
}
