//! Each rule keeps pods away by itself, and says so in its own words.

use mainstay_api::wellknown::mainstay::{ENDPOINTS, ENDPOINTS_HOST_PORT};
use serde_json::{Value, json};

use super::fixtures::{asking, cluster, node, offer, on, placed, pod, requests};
use crate::core::{
    Cluster,
    view::{NodeTerm, OfferView, PodView, PortRanges, Requirement},
};

fn alone(pod: PodView, more: Value) -> String {
    placed(&mut cluster([node("n1", more)]), pod)
}

fn zones() -> Cluster {
    let zoned = |name: &str, zone: &str| node(name, json!({ "metadata": { "labels": { "zone": zone } } }));
    cluster([
        zoned("n1", "a"),
        zoned("n2", "a"),
        zoned("n3", "b"),
        node("n4", json!({ "spec": { "unschedulable": true } })),
    ])
}

fn web(name: &str, spec: Value) -> PodView {
    pod(name, json!({ "metadata": { "labels": { "app": "web" } }, "spec": spec }))
}

fn near(kind: &str, app: &str, topology: &str) -> Value {
    let term = json!({ "topologyKey": topology, "labelSelector": { "matchLabels": { "app": app } } });
    json!({ "affinity": { kind: { "requiredDuringSchedulingIgnoredDuringExecution": [term] } } })
}

#[test]
fn a_pod_goes_where_there_is_room() {
    let mut two = cluster([node("n1", json!({})), node("n2", json!({}))]);
    assert_eq!(placed(&mut two, asking("a", "3")), "n1");
    assert_eq!(placed(&mut two, asking("b", "3500m")), "n2");
    let output = placed(&mut two, asking("c", "2"));
    assert_eq!(
        output,
        "0/2 nodes are available: 2 Insufficient cpu. closest: n1 lacks 1 cpu; would fit when pods leave."
    );
}

#[test]
fn what_no_machine_has_can_never_fit() {
    let output = alone(asking("a", "64"), json!({}));
    assert!(output.starts_with("0/1 nodes are available: 1 Insufficient cpu. closest: n1 lacks 60 cpu; "), "{output}");
    assert!(output.ends_with("no node has 64 cpu (the largest has 4 cpu): cannot fit until a larger node joins."));
    let odd = pod("p", json!({ "spec": { "containers": [requests(json!({ "example.com/gpu": "2", "cpu": "9" }))] } }));
    let output = alone(odd, json!({}));
    assert!(
        output.starts_with("0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient example.com/gpu."),
        "{output}"
    );
}

#[test]
fn a_machine_takes_so_many_pods_and_no_more() {
    let mut one = cluster([node("n1", json!({ "status": { "allocatable": { "pods": "1" } } }))]);
    assert_eq!(placed(&mut one, asking("a", "1")), "n1");
    let output = placed(&mut one, asking("b", "1"));
    assert!(
        output.starts_with("0/1 nodes are available: 1 Too many pods. closest: n1 lacks room for 1 pod"),
        "{output}"
    );
}

#[test]
fn a_cluster_without_nodes_is_reported_as_such() {
    let output = placed(&mut Cluster::new(), asking("a", "1"));
    assert_eq!(output, "no nodes available to schedule pods; cannot fit until a node joins.");
}

#[test]
fn machines_that_are_not_there_for_it_say_why() {
    let plain = || asking("a", "1");
    let output = alone(plain(), json!({ "spec": { "unschedulable": true } }));
    assert_eq!(
        output,
        "0/1 nodes are available: 1 node(s) were unschedulable. closest: n1 if it were uncordoned; would fit when a \
         node is uncordoned."
    );
    let output = alone(plain(), json!({ "status": { "conditions": [] } }));
    assert!(
        output.contains("1 node(s) were not ready. closest: n1 is not ready; would fit when a node returns"),
        "{output}"
    );
    let taint = json!({ "spec": { "taints": [{ "key": "dedicated", "value": "db", "effect": "NoSchedule" }] } });
    assert_eq!(
        alone(plain(), taint),
        "0/1 nodes are available: 1 node(s) had untolerated taint {dedicated: db}. closest: n1 if taint dedicated=db \
         were tolerated; cannot fit until the pod or a node is changed."
    );
    let mut silent = cluster([node("n1", json!({}))]);
    silent.remove_offer("n1");
    let output = placed(&mut silent, plain());
    assert!(output.contains("1 node(s) were not offering. closest: n1 makes no offer"), "{output}");
}

#[test]
fn tolerations_open_what_taints_close() {
    let tainted = || json!({ "spec": { "taints": [{ "key": "db", "value": "yes", "effect": "NoExecute" }] } });
    let tolerant = |toleration: Value| pod("p", json!({ "spec": { "tolerations": [toleration] } }));
    for (toleration, fits) in [
        (json!({ "key": "db", "value": "yes" }), true),
        (json!({ "key": "db", "operator": "Exists", "effect": "NoExecute" }), true),
        (json!({ "operator": "Exists" }), true),
        (json!({ "key": "db", "operator": "Exists", "effect": "NoSchedule" }), false),
        (json!({ "key": "db", "value": "no" }), false),
        (json!({ "key": "dc", "value": "yes" }), false),
    ] {
        assert_eq!(alone(tolerant(toleration.clone()), tainted()) == "n1", fits, "{toleration}");
    }
    let cordon = json!({ "key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule" });
    assert_eq!(alone(tolerant(cordon), json!({ "spec": { "unschedulable": true } })), "n1");
    let unready = json!({ "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute" });
    assert_eq!(alone(tolerant(unready), json!({ "status": { "conditions": [] } })), "n1");
    let soft = json!({ "spec": { "taints": [{ "key": "a", "effect": "PreferNoSchedule" }] } });
    assert_eq!(placed(&mut cluster([node("n1", soft), node("n2", json!({}))]), asking("a", "1")), "n2");
}

#[test]
fn selectors_and_affinity_choose_machines() {
    let unmatched = "1 node(s) didn't match Pod's node affinity/selector.";
    let labelled = || json!({ "metadata": { "labels": { "disk": "ssd" } } });
    let selecting = |value: &str| pod("p", json!({ "spec": { "nodeSelector": { "disk": value } } }));
    assert_eq!(alone(selecting("ssd"), labelled()), "n1");
    assert!(alone(selecting("hdd"), labelled()).contains(unmatched));
    let affine = |field: &str, values: Value| {
        let terms = json!([{ field: [{ "key": if field == "matchFields" { "metadata.name" } else { "disk" },
            "operator": "In", "values": values }] }]);
        let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } });
        pod("p", json!({ "spec": { "affinity": { "nodeAffinity": required } } }))
    };
    assert_eq!(alone(affine("matchExpressions", json!(["hdd", "ssd"])), labelled()), "n1");
    assert!(alone(affine("matchExpressions", json!(["hdd"])), labelled()).contains(unmatched));
    assert_eq!(alone(affine("matchFields", json!(["n1"])), labelled()), "n1");
    let output = alone(affine("matchFields", json!(["n2"])), labelled());
    assert!(
        output.contains(unmatched) && output.ends_with("cannot fit until the pod or a node is changed."),
        "{output}"
    );
    let preferred =
        json!([{ "weight": 1, "preference": { "matchExpressions": [{ "key": "disk", "operator": "Exists" }] } }]);
    let liking = pod(
        "p",
        json!({ "spec": { "affinity": { "nodeAffinity":
        { "preferredDuringSchedulingIgnoredDuringExecution": preferred } } } }),
    );
    assert_eq!(placed(&mut cluster([node("n1", json!({})), node("n2", labelled())]), liking), "n2");
}

#[test]
fn impossible_wishes_are_distinguished_from_unlucky_ones() {
    let both = pod(
        "p",
        json!({ "spec": { "nodeSelector": { "a": "1" }, "affinity": { "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": "a", "operator": "NotIn", "values": ["1"] }] }] } } } } }),
    );
    let output = alone(both, json!({}));
    assert!(
        output
            .ends_with("cannot ever fit: the node selector and affinity ask for values of a that exclude each other.")
    );
    let port = json!({ "containerPort": 1, "hostPort": 80 });
    let twice = pod("p", json!({ "spec": { "containers": [{ "name": "c", "ports": [port, port] }] } }));
    let output = alone(twice, json!({}));
    assert!(output.ends_with("cannot ever fit: host port 80 is asked for twice in the pod."), "{output}");
}

#[test]
fn volumes_bind_pods_to_where_they_are() {
    let term = |zone: &str| NodeTerm { labels: vec![Requirement::equal("zone", zone)], fields: vec![] };
    let there = asking("a", "1").with_volumes(vec![vec![term("b"), term("c")]]);
    assert_eq!(placed(&mut zones(), there), "n3");
    let nowhere = asking("a", "1").with_volumes(vec![vec![term("b")], vec![term("a")]]);
    let output = placed(&mut zones(), nowhere);
    assert!(output.contains("3 node(s) had volume node affinity conflict"), "{output}");
    let waiting = asking("a", "1").with_missing(vec!["persistentvolumeclaim \"data\" not found".to_owned()]);
    let output = placed(&mut zones(), waiting);
    assert!(output.starts_with("0/4 nodes are available: persistentvolumeclaim \"data\" not found. "), "{output}");
}

#[test]
fn a_host_port_is_given_once_and_only_where_offered() {
    let port = |name: &str, number: u16| {
        pod(
            name,
            json!({ "spec": { "containers": [{ "name": "c", "ports": [{ "containerPort": 1, "hostPort": number }] }] } }),
        )
    };
    let mut one = cluster([node("n1", json!({}))]);
    assert_eq!(placed(&mut one, port("ha-proxy", 80)), "n1");
    assert_eq!(placed(&mut one, port("other", 81)), "n1");
    assert_eq!(
        placed(&mut one, port("late", 80)),
        "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports. closest: host port 80 \
         on n1 is taken by ns/ha-proxy; would fit when pods leave."
    );
    let narrow =
        OfferView { explicit_ports: PortRanges::parse_valid(["31000-32000"]), ..offer(&node("n1", json!({}))) };
    one.update_offer("n1", narrow);
    let output = placed(&mut one, port("low", 82));
    assert!(
        output.contains("closest: host port 82 lies outside 31000-32000 that n1 offers; cannot fit until"),
        "{output}"
    );
}

#[test]
fn automatic_ports_are_the_first_free_ones() {
    use crate::core::verdict::Verdict;
    let wild = |name: &str| {
        let ports = json!([{ "containerPort": 80, "name": "web" }, { "containerPort": 81 }]);
        let labels = json!({ "k8s.mesosphere.io/portMapping": "wildcard" });
        pod(
            name,
            json!({ "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "c", "ports": ports }] } }),
        )
    };
    let few = OfferView {
        automatic_ports: PortRanges::parse_valid(["31002", "31005-31007"]),
        ..offer(&node("n1", json!({})))
    };
    let mut one = cluster([node("n1", json!({}))]);
    one.update_offer("n1", few);
    let taker =
        json!({ "spec": { "containers": [{ "name": "c", "ports": [{ "containerPort": 1, "hostPort": 31005 }] }] } });
    assert_eq!(placed(&mut one, pod("taker", taker)), "n1");
    let Verdict::Place { ports, .. } = super::fixtures::verdict(&mut one, wild("a")) else { panic!("it fits") };
    assert_eq!(
        ports.iter().map(|port| (port.container_port, port.host_port)).collect::<Vec<_>>(),
        [(80, 31002), (81, 31006)]
    );
    let output = placed(&mut one, wild("b"));
    assert!(
        output.contains("1 node(s) didn't have enough automatic ports. closest: n1 has 1 of 2 automatic"),
        "{output}"
    );
}

#[test]
fn where_pods_have_no_addresses_their_ports_get_numbers_of_the_machine() {
    use crate::core::verdict::Verdict;
    let host = || {
        let node = node("n1", json!({ "metadata": { "annotations": { ENDPOINTS: ENDPOINTS_HOST_PORT } } }));
        let offer = OfferView { automatic_ports: PortRanges::parse_valid(["31000"]), ..offer(&node) };
        let mut cluster = cluster([node]);
        cluster.update_offer("n1", offer);
        cluster
    };
    let spec = json!({ "containers": [{ "name": "c", "ports": [{ "containerPort": 80 }] }] });
    let unlabelled = |name: &str| pod(name, json!({ "spec": spec }));
    let asking = |name: &str, port_mapping: &str| {
        pod(name, json!({ "metadata": { "labels": { "k8s.mesosphere.io/portMapping": port_mapping } }, "spec": spec }))
    };
    let assigned_ports =
        |cluster: &mut crate::core::Cluster, pod: crate::core::view::PodView| match super::fixtures::verdict(
            cluster, pod,
        ) {
            Verdict::Place { ports, .. } => ports.iter().map(|port| port.host_port).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
    assert_eq!(assigned_ports(&mut host(), unlabelled("a")), [31000]);
    assert_eq!(assigned_ports(&mut host(), asking("a", "wildcard")), [31000]);
    assert_eq!(assigned_ports(&mut host(), asking("a", "fixed")), Vec::<u16>::new());
    assert_eq!(assigned_ports(&mut cluster([node("n1", json!({}))]), unlabelled("a")), Vec::<u16>::new());
    let mut full = host();
    assigned_ports(&mut full, unlabelled("a"));
    let output = placed(&mut full, unlabelled("b"));
    assert!(
        output.contains("1 node(s) didn't have enough automatic ports. closest: n1 has 0 of 1 automatic"),
        "{output}"
    );
    assert_eq!(assigned_ports(&mut full, asking("c", "fixed")), Vec::<u16>::new());
}

#[test]
fn pods_are_kept_together_the_first_of_them_anywhere() {
    let output = placed(&mut zones(), web("a", near("podAffinity", "db", "zone")));
    assert!(output.contains("3 node(s) didn't match pod affinity rules"), "{output}");
    assert!(output.ends_with("would fit when a pod it wants to be near runs."), "{output}");
    let mut own = zones();
    assert_eq!(placed(&mut own, web("a", near("podAffinity", "web", "zone"))), "n1");
    assert_eq!(placed(&mut own, web("b", near("podAffinity", "web", "zone"))), "n2");
    assert_eq!(placed(&mut own, web("c", near("podAffinity", "web", "zone"))), "n1");
    let output = placed(&mut zones(), web("a", near("podAffinity", "web", "rack")));
    assert!(output.contains("didn't match pod affinity rules"), "the label must be there even for the first: {output}");
}

#[test]
fn pods_are_kept_apart_whoever_says_so() {
    let mut apart = zones();
    assert_eq!(placed(&mut apart, web("a", near("podAntiAffinity", "web", "zone"))), "n1");
    assert_eq!(placed(&mut apart, web("b", near("podAntiAffinity", "web", "zone"))), "n3");
    let output = placed(&mut apart, web("c", near("podAntiAffinity", "web", "zone")));
    assert!(output.contains("3 node(s) didn't match pod anti-affinity rules"), "{output}");
    assert!(output.contains("closest: n1 if no pod it must keep away from ran in zone=a"), "{output}");
    let output = placed(&mut apart, web("plain", json!({})));
    assert!(output.contains("3 node(s) didn't satisfy existing pods anti-affinity rules"), "{output}");
    assert_eq!(placed(&mut apart, pod("unlike", json!({}))), "n2", "others do not mind");
    let hosts = cluster([node("n1", json!({})), node("n2", json!({}))]);
    let elsewhere = |name: &str| web(name, near("podAntiAffinity", "web", "rack"));
    let mut unlabelled = hosts;
    assert_eq!(placed(&mut unlabelled, elsewhere("a")), "n1");
    assert_eq!(placed(&mut unlabelled, elsewhere("b")), "n2", "without the label there is nothing to keep apart");
}

#[test]
fn namespaces_bound_whom_rules_speak_of() {
    let term = |more: Value| {
        let mut term = json!({ "topologyKey": "zone", "labelSelector": { "matchLabels": { "app": "web" } } });
        term.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } } })
    };
    let there = |cluster: &mut Cluster| {
        let labels = json!({ "app": "web" });
        cluster.update_pod(on("n1", pod("w", json!({ "metadata": { "namespace": "other", "labels": labels } }))));
    };
    for (more, goes) in [
        (json!({}), "n2"),
        (json!({ "namespaces": ["other"] }), "n3"),
        (json!({ "namespaceSelector": {} }), "n3"),
        (json!({ "namespaceSelector": { "matchLabels": { "team": "a" } } }), "n3"),
        (json!({ "namespaceSelector": { "matchLabels": { "team": "b" } } }), "n2"),
    ] {
        let mut cluster = zones();
        cluster.update_namespace("other", [("team".to_owned(), "a".to_owned())].into());
        there(&mut cluster);
        assert_eq!(placed(&mut cluster, pod("p", json!({ "spec": term(more.clone()) }))), goes, "{more}");
    }
    let mut renamed = zones();
    let spec = term(json!({ "namespaceSelector": { "matchLabels": { "team": "a" } } }));
    there(&mut renamed);
    assert_eq!(placed(&mut renamed, pod("p", json!({ "spec": spec.clone() }))), "n2");
    renamed.update_namespace("other", [("team".to_owned(), "a".to_owned())].into());
    assert_eq!(placed(&mut renamed, pod("q", json!({ "spec": spec }))), "n3", "labels count from when they are there");
}

#[test]
fn preferred_neighbours_draw_and_repel() {
    let preferring = |kind: &str| {
        let term = json!({ "topologyKey": "zone", "labelSelector": { "matchLabels": { "app": "db" } } });
        json!({ "affinity": { kind: { "preferredDuringSchedulingIgnoredDuringExecution":
            [{ "weight": 10, "podAffinityTerm": term }] } } })
    };
    let with_db = || {
        let mut cluster = zones();
        cluster.update_pod(on("n3", pod("db", json!({ "metadata": { "labels": { "app": "db" } } }))));
        cluster
    };
    assert_eq!(placed(&mut with_db(), web("a", json!({}))), "n1");
    assert_eq!(placed(&mut with_db(), web("a", preferring("podAffinity"))), "n3");
    assert_eq!(placed(&mut with_db(), web("a", preferring("podAntiAffinity"))), "n1");
    let mut fan = zones();
    fan.update_pod(on("n3", web("fan", preferring("podAffinity"))));
    let db = pod("db", json!({ "metadata": { "labels": { "app": "db" } } }));
    assert_eq!(placed(&mut fan, db), "n3", "what others prefer counts too");
}

fn spreading(more: Value) -> Value {
    let mut rule = json!({ "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": { "matchLabels": { "app": "web" } } });
    rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "topologySpreadConstraints": [rule] })
}

#[test]
fn spreading_keeps_domains_level() {
    let mut level = zones();
    let spread = |name: &str| web(name, spreading(json!({})));
    assert_eq!(placed(&mut level, spread("a")), "n1");
    assert_eq!(placed(&mut level, spread("b")), "n3");
    assert_eq!(placed(&mut level, spread("c")), "n2");
    level.remove_node("n3");
    assert_eq!(placed(&mut level, spread("d")), "n1", "a domain without nodes does not count");
    level.update_node(node("n5", json!({ "metadata": { "labels": { "zone": "c" } } })));
    let output = placed(&mut level, spread("e"));
    assert!(output.contains("2 node(s) didn't match pod topology spread constraints"), "{output}");
    assert!(output.contains("1 node(s) were not offering"), "{output}");
    assert!(output.contains("closest: n1 if zone=a were not ahead of others by 1"), "{output}");
}

#[test]
fn spreading_says_which_machines_count() {
    let mut missing = cluster([node("n1", json!({}))]);
    let output = placed(&mut missing, web("a", spreading(json!({}))));
    assert!(
        output.contains("1 node(s) didn't match pod topology spread constraints (missing required label)"),
        "{output}"
    );
    let mut few = zones();
    let wide = |name: &str| web(name, spreading(json!({ "minDomains": 3 })));
    assert_eq!(placed(&mut few, wide("a")), "n1");
    assert_eq!(placed(&mut few, wide("b")), "n3");
    let output = placed(&mut few, wide("c"));
    assert!(output.contains("3 node(s) didn't match pod topology spread constraints"), "too few domains: {output}");
    let tainted = |policy: &str| {
        let mut cluster = zones();
        let taint = json!([{ "key": "x", "effect": "NoSchedule" }]);
        cluster
            .update_node(node("n3", json!({ "metadata": { "labels": { "zone": "b" } }, "spec": { "taints": taint } })));
        let first = placed(&mut cluster, web("a", spreading(json!({ "nodeTaintsPolicy": policy }))));
        assert_eq!(first, "n1");
        placed(&mut cluster, web("b", spreading(json!({ "nodeTaintsPolicy": policy }))))
    };
    assert_eq!(tainted("Honor"), "n2");
    assert!(tainted("Ignore").contains("2 node(s) didn't match pod topology spread constraints"));
    let selective = |policy: &str| {
        let mut cluster = zones();
        let spec = |name: &str| {
            let mut spec = spreading(json!({ "nodeAffinityPolicy": policy }));
            spec["nodeSelector"] = json!({ "zone": "a" });
            web(name, spec)
        };
        assert_eq!(placed(&mut cluster, spec("a")), "n1");
        placed(&mut cluster, spec("b"))
    };
    assert_eq!(selective("Honor"), "n2");
    assert!(selective("Ignore").contains("2 node(s) didn't match pod topology spread constraints"));
}

#[test]
fn pods_on_their_way_out_do_not_count_for_spreading() {
    let mut cluster = zones();
    let mut leaving = web("old", json!({}));
    leaving.terminating = true;
    cluster.update_pod(on("n1", leaving));
    assert_eq!(placed(&mut cluster, web("a", spreading(json!({})))), "n2");
    assert_eq!(placed(&mut cluster, web("b", spreading(json!({})))), "n3");
}

#[test]
fn spreading_if_possible_prefers_empty_domains_and_never_blocks() {
    let mut soft = cluster([
        node("n1", json!({ "metadata": { "labels": { "zone": "a" } } })),
        node("n2", json!({ "metadata": { "labels": { "zone": "b" } }, "status": { "allocatable": { "cpu": "1" } } })),
    ]);
    let any = |name: &str| web(name, spreading(json!({ "whenUnsatisfiable": "ScheduleAnyway" })));
    soft.update_pod(on("n1", web("there", json!({}))));
    assert_eq!(placed(&mut soft, any("a")), "n2");
    soft.remove_node("n2");
    assert_eq!(placed(&mut soft, any("b")), "n1");
}

#[test]
fn revisions_are_spread_apart_by_match_label_keys() {
    let mut cluster = zones();
    let revision = |name: &str, hash: &str| {
        let labels = json!({ "app": "web", "hash": hash });
        pod(name, json!({ "metadata": { "labels": labels }, "spec": spreading(json!({ "matchLabelKeys": ["hash"] })) }))
    };
    cluster.update_pod(on("n1", revision("old1", "1")));
    cluster.update_pod(on("n1", revision("old2", "1")));
    assert_eq!(placed(&mut cluster, revision("new1", "2")), "n2");
    assert_eq!(placed(&mut cluster, revision("new2", "2")), "n3");
}
