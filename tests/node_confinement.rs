//! What the certificate of a machine reaches, and what requests for certificates do to others.

use std::net::{IpAddr, Ipv4Addr};

use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::CertificateSigningRequest,
        coordination::v1::Lease,
        core::v1::{Event, Namespace, Node, Pod, Secret, Service},
        discovery::v1::EndpointSlice,
    },
};
use kube::{
    Api, Client, Config,
    api::{ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use mainstay_agent::{
    join::{Token, join},
    servers::Servers,
};
use mainstay_api::host_service;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::harness::{Cluster, Machines, eventually};

const HERE: [IpAddr; 1] = [IpAddr::V4(Ipv4Addr::LOCALHOST)];
const VICTIM: &str = "victim";

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object of this kind")
}

fn token(cluster: &Cluster) -> Token {
    cluster.mainstay("token", "create").ok().trim().parse().expect("a token")
}

/// A client with the certificate of a machine that joins now.
async fn machine(cluster: &Cluster, name: &str) -> Client {
    let servers = Servers::named(&[cluster.url()]).expect("a URL");
    let directory = cluster.home().join(name);
    let identity = join(&servers, Some(&token(cluster)), name, &HERE, &directory).await.expect("it joins");
    identity.client(&servers).expect("a client")
}

/// A client that has nothing but a bootstrap token.
async fn bearer(cluster: &Cluster) -> Client {
    let mut file = Kubeconfig::read_from(cluster.kubeconfig()).expect("read the kubeconfig");
    let auth = json!({"token": token(cluster).bearer()});
    file.auth_infos[0].auth_info = Some(object(auth));
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("understand it");
    Client::try_from(config).expect("a client")
}

#[track_caller]
fn forbidden<T: std::fmt::Debug>(answer: Result<T, kube::Error>, words: &str) {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            assert!(status.message.contains(words), "{}", status.message);
        }
        other => panic!("{other:?}"),
    }
}

/// A request for a certificate of a node, as an object.
fn request(object_name: &str, node: &str) -> CertificateSigningRequest {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
    let pem = params.serialize_request(&KeyPair::generate().expect("a key")).expect("a request").pem().expect("as PEM");
    object(json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": object_name},
        "spec": {
            "request": ByteString(pem.into_bytes()), "usages": ["digital signature", "client auth"],
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        },
    }))
}

async fn with_secrets(admin: &Client) {
    let namespace: Namespace = object(json!({"metadata": {"name": VICTIM}}));
    Api::all(admin.clone()).create(&PostParams::default(), &namespace).await.expect("a namespace");
    for name in ["s1", "s2"] {
        let secret: Secret = object(json!({"metadata": {"name": name}, "stringData": {"k": "v"}}));
        let secrets: Api<Secret> = Api::namespaced(admin.clone(), VICTIM);
        secrets.create(&PostParams::default(), &secret).await.expect("a secret");
    }
}

#[tokio::test]
async fn a_machine_reads_the_secrets_that_its_own_pods_refer_to_and_no_other() {
    let cluster = Cluster::start();
    let admin = cluster.client().await;
    with_secrets(&admin).await;
    let node = machine(&cluster, "b").await;
    let own: Node = object(json!({"metadata": {"name": "b"}}));
    let own = Api::<Node>::all(node.clone()).create(&PostParams::default(), &own).await.expect("it registers");
    let secrets: Api<Secret> = Api::namespaced(node.clone(), VICTIM);
    forbidden(secrets.get("s1").await, "no relationship found between node 'b' and this object");
    let mirror = |name: &str, more: Value| {
        let mut pod = json!({
            "metadata": {
                "name": name,
                "annotations": {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "x", "secretName": "s1"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": "b", "uid": own.metadata.uid, "controller": true},
                ],
            },
            "spec": {"nodeName": "b", "containers": [{"name": "a", "image": "host", "args": ["s1"]}]},
        });
        pod["spec"].as_object_mut().expect("a spec").extend(more.as_object().expect("fields").clone());
        object::<Pod>(pod)
    };
    let pods: Api<Pod> = Api::namespaced(node.clone(), VICTIM);
    let csi = json!({"volumes": [{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s1"}}}]});
    let azure = json!({"volumes": [{"name": "v", "azureFile": {"secretName": "s1", "shareName": "x"}}]});
    for (name, more) in [("by-csi", csi), ("by-azure-file", azure)] {
        let refused = pods.create(&PostParams::default(), &mirror(name, more)).await;
        forbidden(refused, "node \"b\" can not create pods that reference secrets");
    }
    let selector = json!({"nodeSelector": {"secretName": "s1", "secretRef": "s1"}});
    pods.create(&PostParams::default(), &mirror("by-selector", selector)).await.expect("it refers to nothing");
    forbidden(secrets.get("s1").await, "no relationship found");
    let bootstrap: Api<Secret> = Api::namespaced(node.clone(), "kube-system");
    let tokens = Api::<Secret>::namespaced(admin.clone(), "kube-system").list(&ListParams::default()).await;
    let tokens = tokens.expect("a list").items;
    assert!(!tokens.is_empty(), "the token it joined with");
    for secret in tokens {
        forbidden(bootstrap.get(secret.metadata.name.as_deref().expect("a name")).await, "no relationship found");
    }
    // What an administrator binds to it, it may read: exactly that.
    let bound: Pod = object(json!({
        "metadata": {"name": "bound"},
        "spec": {
            "nodeName": "b", "containers": [{"name": "a", "image": "host"}],
            "volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "s1"}}]}}],
        },
    }));
    Api::namespaced(admin, VICTIM).create(&PostParams::default(), &bound).await.expect("a pod");
    secrets.get("s1").await.expect("its pod refers to it");
    forbidden(secrets.get("s2").await, "no relationship found");
    let other = machine(&cluster, "c").await;
    forbidden(Api::<Secret>::namespaced(other, VICTIM).get("s1").await, "between node 'c'");
}

#[tokio::test]
async fn a_machine_cannot_rid_itself_of_what_administrators_put_on_it() {
    let cluster = Cluster::start();
    let node = machine(&cluster, "b").await;
    let nodes: Api<Node> = Api::all(node.clone());
    let greedy: Node = object(json!({"metadata": {"name": "b"}, "spec": {"podCIDR": "10.0.0.0/8"}}));
    forbidden(nodes.create(&PostParams::default(), &greedy).await, "is not allowed to set podCIDR");
    let own: Node = object(json!({"metadata": {"name": "b"}}));
    let uid = nodes.create(&PostParams::default(), &own).await.expect("it registers").metadata.uid;
    let admin: Api<Node> = Api::all(cluster.client().await);
    let taint = json!({"spec": {"unschedulable": true, "taints": [{"key": "quarantine", "effect": "NoSchedule"}]}});
    admin.patch("b", &PatchParams::default(), &Patch::Merge(&taint)).await.expect("an administrator may");
    let gone = json!({
        "apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "11111111-1111-1111-1111-111111111111",
    });
    for (change, words) in [
        (json!({"metadata": {"ownerReferences": [gone]}}), "node \"b\" is not allowed to modify ownerReferences"),
        (json!({"metadata": {"finalizers": ["x.example/y"]}}), "node \"b\" is not allowed to modify finalizers"),
        (json!({"spec": {"unschedulable": false}}), "node \"b\" is not allowed to modify unschedulable"),
        (json!({"spec": {"taints": null}}), "node \"b\" is not allowed to modify taints"),
        (json!({"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}}), "is not allowed to modify labels"),
    ] {
        let patch = Patch::Merge(&change);
        forbidden(nodes.patch("b", &PatchParams::default(), &patch).await, words);
    }
    forbidden(nodes.delete("b", &Default::default()).await, "cannot delete resource \"nodes\"");
    let now = admin.get("b").await.expect("it is still there");
    assert_eq!(now.metadata.uid, uid, "and is the same");
    assert!(now.metadata.owner_references.is_none());
}

#[tokio::test]
async fn a_machine_sees_its_own_pods_alone() {
    let cluster = Cluster::start();
    let admin = cluster.client().await;
    with_secrets(&admin).await;
    let node = machine(&cluster, "b").await;
    let own: Node = object(json!({"metadata": {"name": "b"}}));
    Api::<Node>::all(node.clone()).create(&PostParams::default(), &own).await.expect("it registers");
    for (name, on) in [("mine", "b"), ("theirs", "elsewhere")] {
        let spec = json!({"nodeName": on, "containers": [{"name": "a", "image": "host", "args": ["literal"]}]});
        let pod: Pod = object(json!({"metadata": {"name": name}, "spec": spec}));
        Api::namespaced(admin.clone(), VICTIM).create(&PostParams::default(), &pod).await.expect("a pod");
    }
    let pods: Api<Pod> = Api::namespaced(node.clone(), VICTIM);
    pods.get("mine").await.expect("its own");
    forbidden(pods.get("theirs").await, "no relationship found");
    forbidden(pods.list(&ListParams::default()).await, "can only list/watch pods with spec.nodeName field selector");
    let here = Api::<Pod>::all(node.clone()).list(&ListParams::default().fields("spec.nodeName=b")).await;
    assert_eq!(here.expect("its own").items.len(), 1);
    let elsewhere = Api::<Pod>::all(node.clone()).list(&ListParams::default().fields("spec.nodeName=elsewhere")).await;
    forbidden(elsewhere, "spec.nodeName field selector");
    let lease: Lease = object(json!({
        "metadata": {"name": "heal-u-0", "annotations": {"mainstay.dev/heal-node": "b"}}, "spec": {},
    }));
    let leases: Api<Lease> = Api::namespaced(node.clone(), VICTIM);
    forbidden(leases.create(&PostParams::default(), &lease).await, "has no pod of the set \"u\"");
    forbidden(leases.list(&ListParams::default()).await, "can only access leases in the \"kube-node-lease\"");
}

#[tokio::test]
async fn requests_that_cannot_be_granted_are_denied_and_hold_up_no_other() {
    let cluster = Cluster::start();
    let requests: Api<CertificateSigningRequest> = Api::all(bearer(&cluster).await);
    let long = "a".repeat(254);
    let bad = [
        ("a-blocker", "adv "),
        ("a with spaces", "adv"),
        ("a?dryRun=All", "ADV"),
        ("a-dots", ".."),
        ("a-slash", "a/b"),
        ("a-long", &long),
        ("a-empty", ""),
    ];
    for (name, node) in bad {
        requests.create(&PostParams::default(), &request(name, node)).await.expect("a request");
    }
    machine(&cluster, "good").await; // joins
    let admin: Api<CertificateSigningRequest> = Api::all(cluster.client().await);
    let answers = eventually_answered(&admin, bad.len()).await;
    for (name, node) in bad {
        let status = answers.iter().find(|found| found.metadata.name.as_deref() == Some(name));
        let status = status.and_then(|found| found.status.as_ref()).expect("a status");
        let output = &status.conditions.as_ref().expect("conditions")[0];
        if node == "adv" {
            assert_eq!(output.type_, "Approved", "only the object's name is odd");
            continue;
        }
        assert_eq!((output.type_.as_str(), output.reason.as_deref()), ("Denied", Some("AutoDenied")), "{name}");
        let message = output.message.as_deref().unwrap_or_default();
        assert!(message.starts_with(&format!("no node can be named {node:?}")), "{message}");
        assert!(status.certificate.is_none(), "{name}");
    }
}

/// All requests, once so many whose names begin with `a` are answered.
async fn eventually_answered(admin: &Api<CertificateSigningRequest>, count: usize) -> Vec<CertificateSigningRequest> {
    let ends = tokio::time::Instant::now() + crate::harness::PATIENCE;
    loop {
        let all = admin.list(&ListParams::default()).await.expect("a list").items;
        let answered = all.iter().filter(|found| {
            let named = found.metadata.name.as_deref().is_some_and(|name| name.starts_with('a'));
            named && found.status.as_ref().is_some_and(|status| status.conditions.is_some())
        });
        if answered.count() == count {
            return all;
        }
        assert!(tokio::time::Instant::now() < ends, "not all are answered: {all:#?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn requests_of_one_bootstrap_token_are_bounded_in_size() {
    let cluster = Cluster::start();
    let requests: Api<CertificateSigningRequest> = Api::all(bearer(&cluster).await);
    let mut large = request("large", "a");
    large.metadata.annotations = Some([("x".to_owned(), "y".repeat(40 << 10))].into());
    match requests.create(&PostParams::default(), &large).await {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 413, "{}", status.message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_second_machine_joins_while_bad_requests_lie_there() {
    let mut machines = Machines::wired(&["a", "b"]);
    machines.start_server();
    machines.start_agent("a");
    let token: Token = machines.token().parse().expect("a token");
    let config = machines.kubectl(&["config", "view", "--raw", "-o", "json"], "").ok();
    let mut config: Value = serde_json::from_str(&config).expect("a kubeconfig");
    config["users"][0]["user"] = json!({"token": token.bearer()});
    let path = machines.dir().join("bearer.kubeconfig");
    std::fs::write(&path, config.to_string()).expect("write a kubeconfig");
    let kubeconfig = format!("--kubeconfig={}", path.display());
    for (name, node) in [("a-blocker", "adv "), ("a with spaces", "ADV")] {
        let bad = serde_json::to_string(&request(name, node)).expect("JSON");
        machines.kubectl(&[&kubeconfig, "create", "--validate=false", "-f", "-"], &bad).ok();
    }
    machines.start_agent("b");
    machines.all_ready();
    let denied = eventually("the request is denied", || {
        let condition = "jsonpath={.status.conditions[0].type} {.status.conditions[0].message}";
        let output = machines.kubectl(&["get", "csr", "a-blocker", "-o", condition], "").stdout;
        (!output.trim().is_empty()).then_some(output)
    });
    assert!(denied.starts_with("Denied no node can be named \"adv \""), "{denied}");
}

#[tokio::test]
async fn a_machine_fills_the_store_neither_with_large_events_nor_with_many() {
    let cluster = Cluster::start();
    let node = machine(&cluster, "b").await;
    let events: Api<Event> = Api::namespaced(node, "default");
    let event = |name: &str, message: &str| {
        object::<Event>(json!({
            "metadata": {"name": name}, "reason": "Flood", "type": "Normal", "message": message,
            "involvedObject": {"kind": "Node", "name": "b", "namespace": "default"},
        }))
    };
    let mut large = event("large", "m");
    large.metadata.annotations = Some([("a".to_owned(), "x".repeat(16 << 10))].into());
    match events.create(&PostParams::default(), &large).await {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 413, "{}", status.message),
        other => panic!("{other:?}"),
    }
    // More than its burst by as many as it regains in minutes.
    for number in 0..4000 {
        match events.create(&PostParams::default(), &event(&format!("e{number}"), "m")).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) => {
                assert_eq!((status.code, &*status.reason), (429, "TooManyRequests"), "{}", status.message);
                assert!(number >= 900, "an ordinary burst passes: {number}");
                assert_eq!(status.message, "limit reached on type User for key system:node:b");
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("nothing stopped it");
}

/// The EndpointSlice of a service on a machine.
fn slice(service: &str, node: &str) -> EndpointSlice {
    object(json!({
        "metadata": {
            "name": host_service::slice_name(service, node, service),
            "labels": {
                host_service::MANAGED_BY: host_service::MANAGER, host_service::NODE: host_service::node_label(node),
                "kubernetes.io/service-name": service,
            },
            "annotations": {host_service::ID: service},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.9"], "nodeName": node, "conditions": {"ready": true}}],
        "ports": [{"name": "", "port": 3306, "protocol": "TCP"}],
    }))
}

#[tokio::test]
async fn a_machine_publishes_services_of_its_own_and_no_others() {
    let cluster = Cluster::start();
    let (a, b) = (machine(&cluster, "a").await, machine(&cluster, "b").await);
    for (client, name) in [(&a, "a"), (&b, "b")] {
        let node: Node = object(json!({"metadata": {"name": name}}));
        Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await.expect("its own node");
    }
    let params = PostParams::default();
    let namespaces: Api<Namespace> = Api::all(a.clone());
    let namespace = |name: &str| -> Namespace { object(json!({"metadata": {"name": name}})) };
    forbidden(namespaces.create(&params, &namespace("other")).await, "can only create the namespace");
    namespaces.create(&params, &namespace(host_service::NAMESPACE)).await.expect("the namespace of its services");
    let slices = |client: &Client| Api::<EndpointSlice>::namespaced(client.clone(), host_service::NAMESPACE);
    // Nodes that never renew a Lease are lost soon, and their slices with them: what needs those comes first.
    let own = slices(&a).create(&params, &slice("mysql", "a")).await.expect("its own slice");
    slices(&b).create(&params, &slice("mysql", "b")).await.expect("its own slice");
    let theirs = host_service::slice_name("mysql", "b", "mysql");
    forbidden(slices(&a).delete(&theirs, &Default::default()).await, "name the node");
    let mut taken = slice("mysql", "a");
    taken.metadata.name = Some(theirs.clone());
    forbidden(slices(&a).replace(&theirs, &params, &taken).await, "node \"a\" can only write");
    slices(&a).delete(&own.metadata.name.unwrap_or_default(), &Default::default()).await.expect("its own");
    forbidden(slices(&a).create(&params, &slice("redis", "b")).await, "name the node");
    let mut squatted = slice("redis", "a");
    squatted.metadata.name = Some(host_service::slice_name("redis", "b", "redis"));
    forbidden(slices(&a).create(&params, &squatted).await, "named after their service, node and instance");
    let elsewhere: Api<EndpointSlice> = Api::namespaced(a.clone(), "default");
    forbidden(elsewhere.create(&params, &slice("mysql", "a")).await, "host-services");
    let services: Api<Service> = Api::namespaced(a.clone(), host_service::NAMESPACE);
    let service: Service = object(json!({"metadata": {"name": "x"}, "spec": {"clusterIP": "None"}}));
    forbidden(services.create(&params, &service).await, "services is forbidden");
}
