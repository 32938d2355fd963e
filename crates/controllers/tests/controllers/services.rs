//! Who stands behind a Service, through the API alone.

use k8s_openapi::api::{
    core::v1::{Endpoints, Pod, Service},
    discovery::v1::EndpointSlice,
    networking::v1::ServiceCIDR,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use mainstay_api::service_table::{ServiceTable, ServiceTableSpec};
use serde_json::{Value, json};

use crate::cluster::{Cluster, until};

impl Cluster {
    fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn slices(&self) -> Api<EndpointSlice> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn endpoints(&self) -> Api<Endpoints> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn tables(&self) -> Api<ServiceTable> {
        Api::all(self.client.clone())
    }

    async fn service(&self, name: &str, spec: Value) -> Service {
        let service = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap();
        self.services().create(&PostParams::default(), &service).await.expect("create a service")
    }

    /// A pod on a machine, as its agent would report it.
    async fn backend(&self, name: &str, node: &str, address: &str, ready: bool) -> Pod {
        let pod = json!({
            "metadata": { "name": name, "labels": { "app": "web" } },
            "spec": {
                "nodeName": node,
                "containers": [{ "name": "c", "image": "i", "ports": [{ "name": "http", "containerPort": 8080 }] }],
            },
        });
        let pod = serde_json::from_value(pod).unwrap();
        let pod = self.all_pods().create(&PostParams::default(), &pod).await.expect("create a pod");
        let status = json!({ "status": {
            "podIP": address, "podIPs": [{ "ip": address }], "hostIP": "192.168.0.1",
        } });
        let patched = self.all_pods().patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await;
        patched.expect("report a pod's address");
        self.is_ready(&pod, ready).await;
        pod
    }

    async fn slices_of(&self, service: &str) -> Vec<EndpointSlice> {
        let params = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
        self.slices().list(&params).await.unwrap().items
    }

    /// Addresses with ready, serving and terminating, in order.
    async fn endpoint_conditions(&self, service: &str) -> Vec<(String, [bool; 3])> {
        let slices = self.slices_of(service).await;
        let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
        let mut all: Vec<_> = endpoints
            .map(|endpoint| {
                let conditions = endpoint.conditions.clone().unwrap_or_default();
                let flags = [conditions.ready, conditions.serving, conditions.terminating];
                (endpoint.addresses[0].clone(), flags.map(|flag| flag.unwrap_or(false)))
            })
            .collect();
        all.sort();
        all
    }

    /// Ready and other addresses of an Endpoints object.
    async fn subsets(&self, name: &str) -> Option<(Vec<String>, Vec<String>)> {
        let endpoints = self.endpoints().get_opt(name).await.unwrap()?;
        let (mut ready, mut others) = (Vec::new(), Vec::new());
        for subset in endpoints.subsets.into_iter().flatten() {
            ready.extend(subset.addresses.into_iter().flatten().map(|address| address.ip));
            others.extend(subset.not_ready_addresses.into_iter().flatten().map(|address| address.ip));
        }
        Some((ready, others))
    }

    async fn acknowledge(&self, node: &str, version: u64) {
        let table = ServiceTable::new(node, ServiceTableSpec { endpoints: version.to_string(), nodes: String::new() });
        let change = Patch::Merge(json!({ "spec": table.spec }));
        if self.tables().get_opt(node).await.unwrap().is_none() {
            self.tables().create(&PostParams::default(), &table).await.expect("create a table");
        } else {
            self.tables().patch(node, &PatchParams::default(), &change).await.expect("change a table");
        }
    }

    async fn is_drained(&self, name: &str) -> bool {
        let pod = self.all_pods().get(name).await.unwrap();
        let conditions = pod.status.unwrap_or_default().conditions.unwrap_or_default();
        conditions.iter().any(|own| own.type_ == "mainstay.dev/Drained" && own.status == "True")
    }
}

const READY: [bool; 3] = [true, true, false];
const GOING: [bool; 3] = [false, true, true];

fn expected_conditions(all: &[(&str, [bool; 3])]) -> Vec<(String, [bool; 3])> {
    all.iter().map(|(address, flags)| ((*address).to_owned(), *flags)).collect()
}

fn ports() -> Value {
    json!({ "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": "http" }] })
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|text| (*text).to_owned()).collect()
}

#[tokio::test]
pub async fn slices_and_endpoints_follow_pods_from_first_to_last() {
    let cluster = Cluster::start().await;
    cluster.node("n1", "1").await;
    cluster.service("web", ports()).await;
    until("there is an empty slice", async || cluster.slices_of("web").await.len() == 1).await;
    until("and an empty object", async || cluster.subsets("web").await == Some((vec![], vec![]))).await;
    let first = cluster.backend("a", "n1", "10.1.0.1", true).await;
    cluster.backend("b", "n1", "10.1.0.2", false).await;
    let both = expected_conditions(&[("10.1.0.1", READY), ("10.1.0.2", [false; 3])]);
    until("both are there", async || cluster.endpoint_conditions("web").await == both).await;
    until("as endpoints too", async || {
        cluster.subsets("web").await == Some((texts(&["10.1.0.1"]), texts(&["10.1.0.2"])))
    })
    .await;
    let slices = cluster.slices_of("web").await;
    assert_eq!(slices.len(), 1, "the empty one was used");
    assert_eq!(slices[0].metadata.owner_references.as_ref().unwrap()[0].kind, "Service");
    assert_eq!(slices[0].ports.as_ref().unwrap()[0].port, Some(8080));
    cluster.all_pods().delete("a", &DeleteParams::default().grace_period(30)).await.unwrap();
    let going = expected_conditions(&[("10.1.0.1", GOING), ("10.1.0.2", [false; 3])]);
    until("it is going", async || cluster.endpoint_conditions("web").await == going).await;
    until("and in no endpoints", async || cluster.subsets("web").await == Some((vec![], texts(&["10.1.0.2"])))).await;
    let now = DeleteParams { preconditions: None, ..DeleteParams::default().grace_period(0) };
    cluster.all_pods().delete("a", &now).await.unwrap();
    let rest = expected_conditions(&[("10.1.0.2", [false; 3])]);
    until("it is gone", async || cluster.endpoint_conditions("web").await == rest).await;
    let _ = first;
    cluster.services().delete("web", &DeleteParams::default()).await.unwrap();
    until("slices go with the Service", async || cluster.slices_of("web").await.is_empty()).await;
    until("and so do endpoints", async || cluster.subsets("web").await.is_none()).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_pods_readiness_is_reported_at_once() {
    let cluster = Cluster::start().await;
    cluster.node("n1", "1").await;
    cluster.service("web", ports()).await;
    let pod = cluster.backend("a", "n1", "10.1.0.1", false).await;
    until("it is there", async || {
        cluster.endpoint_conditions("web").await == expected_conditions(&[("10.1.0.1", [false; 3])])
    })
    .await;
    for ready in [true, false, true, false] {
        cluster.is_ready(&pod, ready).await;
        let expected = if ready { READY } else { [false; 3] };
        until("the endpoint follows its pod", async || {
            cluster.endpoint_conditions("web").await == expected_conditions(&[("10.1.0.1", expected)])
        })
        .await;
    }
    cluster.stop().await;
}

#[tokio::test]
async fn what_is_changed_by_hand_is_put_right_and_what_is_right_is_left_alone() {
    let cluster = Cluster::start().await;
    cluster.node("n1", "1").await;
    cluster.service("web", ports()).await;
    cluster.backend("a", "n1", "10.1.0.1", true).await;
    let right = expected_conditions(&[("10.1.0.1", READY)]);
    until("it is there", async || cluster.endpoint_conditions("web").await == right).await;
    let slice = cluster.slices_of("web").await.remove(0);
    let name = slice.metadata.name.clone().unwrap();
    let wrong = Patch::Merge(json!({ "endpoints": [{ "addresses": ["6.6.6.6"], "conditions": { "ready": true } }] }));
    cluster.slices().patch(&name, &PatchParams::default(), &wrong).await.unwrap();
    until("the lie is gone", async || cluster.endpoint_conditions("web").await == right).await;
    cluster.slices().delete(&name, &DeleteParams::default()).await.unwrap();
    until("it is made again", async || cluster.endpoint_conditions("web").await == right).await;
    cluster.endpoints().delete("web", &DeleteParams::default()).await.unwrap();
    until("as is the object", async || cluster.subsets("web").await == Some((texts(&["10.1.0.1"]), vec![]))).await;
    let versions = async || {
        let slices = cluster.slices_of("web").await.into_iter().map(|slice| slice.metadata.resource_version);
        let object = cluster.endpoints().get("web").await.unwrap().metadata.resource_version;
        slices.chain([object]).collect::<Vec<_>>()
    };
    let before = versions().await;
    let note = Patch::Merge(json!({ "metadata": { "annotations": { "x": "y" } } }));
    cluster.all_pods().patch("a", &PatchParams::default(), &note).await.unwrap();
    cluster.services().patch("web", &PatchParams::default(), &note).await.unwrap();
    cluster.settled().await;
    assert_eq!(versions().await, before);
    cluster.stop().await;
}

#[tokio::test]
async fn two_hundred_pods_are_in_two_slices_and_one_of_them_changes_one() {
    let cluster = Cluster::start().await;
    cluster.node("n1", "1").await;
    cluster.service("web", ports()).await;
    for number in 0..150 {
        cluster.backend(&format!("p{number}"), "n1", &format!("10.1.1.{number}"), true).await;
    }
    until("all are there", async || {
        cluster.endpoint_conditions("web").await.iter().filter(|(_, flags)| *flags == READY).count() == 150
    })
    .await;
    let sizes = async || -> Vec<usize> {
        let mut sizes: Vec<usize> =
            cluster.slices_of("web").await.iter().map(|own| own.endpoints.iter().flatten().count()).collect();
        sizes.sort_unstable();
        sizes
    };
    assert_eq!(sizes().await, [50, 100]);
    let versions = async || -> std::collections::BTreeSet<Option<String>> {
        cluster.slices_of("web").await.into_iter().map(|own| own.metadata.resource_version).collect()
    };
    let before = versions().await;
    cluster.all_pods().delete("p3", &DeleteParams::default().grace_period(30)).await.unwrap();
    until("it is going", async || cluster.endpoint_conditions("web").await.contains(&("10.1.1.3".to_owned(), GOING)))
        .await;
    assert_eq!(before.difference(&versions().await).count(), 1);
    cluster.stop().await;
}

#[tokio::test]
pub async fn endpoints_people_wrote_are_repeated_in_slices() {
    let cluster = Cluster::start().await;
    cluster.service("db", json!({ "ports": [{ "port": 5432 }] })).await;
    let object = |address: &str, labels: Value| -> Endpoints {
        serde_json::from_value(json!({
            "metadata": { "name": "db", "labels": labels },
            "subsets": [{ "addresses": [{ "ip": address }], "ports": [{ "port": 5432 }] }],
        }))
        .unwrap()
    };
    let params = PostParams::default();
    cluster.endpoints().create(&params, &object("10.9.0.1", json!({}))).await.unwrap();
    let ready = |address: &str| expected_conditions(&[(address, [true, false, false])]);
    until("they are repeated", async || cluster.endpoint_conditions("db").await == ready("10.9.0.1")).await;
    cluster.endpoints().replace("db", &params, &object("10.9.0.2", json!({}))).await.unwrap();
    until("so is a change", async || cluster.endpoint_conditions("db").await == ready("10.9.0.2")).await;
    let skip = json!({ "endpointslice.kubernetes.io/skip-mirror": "true" });
    cluster.endpoints().replace("db", &params, &object("10.9.0.2", skip)).await.unwrap();
    until("unless they are not to be", async || cluster.slices_of("db").await.is_empty()).await;
    cluster.service("elsewhere", json!({ "type": "ExternalName", "externalName": "example.org" })).await;
    cluster.services().delete("db", &DeleteParams::default()).await.unwrap();
    until("they go with the Service", async || cluster.subsets("db").await.is_none()).await;
    assert!(cluster.slices_of("elsewhere").await.is_empty() && cluster.subsets("elsewhere").await.is_none());
    cluster.stop().await;
}

#[tokio::test]
async fn endpoints_of_a_service_that_went_unseen_are_removed_if_they_were_ours() {
    let cluster = Cluster::start().await;
    for (name, by) in [("ours", "endpoint-controller"), ("theirs", "me")] {
        let labels = json!({ "endpoints.kubernetes.io/managed-by": by });
        let object = serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } })).unwrap();
        cluster.endpoints().create(&PostParams::default(), &object).await.unwrap();
    }
    until("ours is gone", async || cluster.subsets("ours").await.is_none()).await;
    assert!(cluster.subsets("theirs").await.is_some());
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_deleted_pod_is_drained_once_every_live_node_acknowledges_it() {
    let cluster = Cluster::start().await;
    for node in ["n1", "n2", "n3"] {
        cluster.node(node, "1").await;
        cluster.acknowledge(node, 1).await;
    }
    cluster.service("web", ports()).await;
    cluster.backend("a", "n1", "10.1.0.1", true).await;
    cluster.backend("b", "n1", "10.1.0.2", true).await;
    let both = expected_conditions(&[("10.1.0.1", READY), ("10.1.0.2", READY)]);
    until("both are there", async || cluster.endpoint_conditions("web").await == both).await;
    cluster.all_pods().delete("a", &DeleteParams::default().grace_period(30)).await.unwrap();
    let one = expected_conditions(&[("10.1.0.1", GOING), ("10.1.0.2", READY)]);
    until("it is going", async || cluster.endpoint_conditions("web").await == one).await;
    let version = async || -> u64 {
        let slices = cluster.slices_of("web").await;
        slices.iter().map(|own| own.metadata.resource_version.clone().unwrap().parse().unwrap()).max().unwrap()
    };
    let out = version().await;
    cluster.acknowledge("n1", out).await;
    cluster.acknowledge("n2", out - 1).await;
    cluster.settled().await;
    assert!(!cluster.is_drained("a").await, "two have not said so");
    cluster.acknowledge("n2", out + 1).await;
    cluster.settled().await;
    assert!(!cluster.is_drained("a").await, "one has not said so");
    cluster.node_status("n3", "Ready", "Unknown", "1").await;
    until("the silent one is not waited for", async || cluster.is_drained("a").await).await;
    assert!(!cluster.is_drained("b").await, "who stays is not drained");
    cluster.all_pods().delete("b", &DeleteParams::default().grace_period(30)).await.unwrap();
    let none = expected_conditions(&[("10.1.0.1", GOING), ("10.1.0.2", GOING)]);
    until("it is going", async || cluster.endpoint_conditions("web").await == none).await;
    let out = version().await;
    cluster.acknowledge("n2", out).await;
    cluster.settled().await;
    assert!(!cluster.is_drained("b").await);
    cluster.acknowledge("n1", out).await;
    until("the last one said so", async || cluster.is_drained("b").await).await;
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_range_of_services_is_ready_and_stays_while_a_service_has_its_addresses() {
    let cluster = Cluster::start().await;
    let cidrs: Api<ServiceCIDR> = Api::all(cluster.client.clone());
    let more = json!({ "metadata": { "name": "more" }, "spec": { "cidrs": ["10.8.0.0/24"] } });
    let more = serde_json::from_value(more).unwrap();
    cidrs.create(&PostParams::default(), &more).await.expect("create a service CIDR");
    let is_ready = async || {
        let found = cidrs.get("more").await.expect("the service CIDR");
        let conditions = found.status.and_then(|status| status.conditions).unwrap_or_default();
        conditions.into_iter().find(|condition| condition.type_ == "Ready").map(|condition| condition.status == "True")
    };
    until("it is ready", async || is_ready().await == Some(true)).await;
    cluster.service("web", json!({ "clusterIP": "10.8.0.7", "ports": [{ "port": 80 }] })).await;
    cidrs.delete("more", &DeleteParams::default()).await.expect("delete it");
    until("it is in use", async || is_ready().await == Some(false)).await;
    cluster.services().delete("web", &DeleteParams::default()).await.expect("delete the service");
    until("it is gone", async || cidrs.get_opt("more").await.expect("an answer").is_none()).await;
    cluster.stop().await;
}
