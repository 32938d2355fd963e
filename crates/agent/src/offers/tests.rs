use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use mainstay_api::{
    offer::Offer,
    ports::PortRanges,
    roles::RoleReservation,
    wellknown::mainstay::{MESOS_ROLES, ROLE_RESOURCES},
};
use mainstay_runtime::PodUid;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    preempt::{self, RunningPod},
    *,
};
use crate::{
    events::Events,
    node::Evictions,
    pods::{Pods, Source},
    settings::Offering,
    testing::{api, until},
    wake::Wake,
};

fn pod(name: &str, spec: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("{name}-uid")}, "spec": spec,
    }))
    .unwrap()
}

fn asking(name: &str, cpu: &str, memory: &str) -> Pod {
    let resources = json!({"requests": {"cpu": cpu, "memory": memory}});
    pod(name, json!({"containers": [{"name": "c", "image": "i", "resources": resources}]}))
}

fn with_port(name: &str, port: Value) -> Pod {
    pod(name, json!({"containers": [{"name": "c", "image": "i", "ports": [port]}]}))
}

fn node() -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": "n1", "labels": {"disk": "ssd", "cores": "8"}},
        "status": {
            "allocatable": {"cpu": "2", "memory": "4Gi", "pods": "3", "example.com/gpu": "1"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }))
    .unwrap()
}

fn room() -> NodeCapacity {
    NodeCapacity::new(&node(), PortRanges::parse(["31000-31004"]).unwrap(), PortRanges::parse(["1-40000"]).unwrap())
}

/// The same machine with parts of it reserved.
fn room_with(roles: &[&str]) -> NodeCapacity {
    let roles: Vec<RoleReservation> = roles.iter().map(|role| role.parse().unwrap()).collect();
    room().with_roles(&roles)
}

fn with_roles(mut pod: Pod, roles: &str) -> Pod {
    pod.metadata.annotations.get_or_insert_default().insert(MESOS_ROLES.to_owned(), roles.to_owned());
    pod
}

fn with_shares(mut pod: Pod, shares: Value) -> Pod {
    pod.metadata.annotations.get_or_insert_default().insert(ROLE_RESOURCES.to_owned(), shares.to_string());
    pod
}

fn refused(pod: &Pod, held: &[Pod]) -> Rejection {
    let held: Vec<PodDemand> = held.iter().map(PodDemand::from_pod).collect();
    check_pod(pod, &node(), &room(), &held).unwrap_err()
}

#[test]
fn a_pod_takes_what_its_containers_need_at_once() {
    let container = |cpu: &str, extra: Value| {
        let mut container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}});
        mainstay_api::patch::merge(&mut container, &extra);
        container
    };
    let always = json!({"restartPolicy": "Always"});
    for (spec, millis) in [
        (json!({"containers": [container("1", json!({})), container("500m", json!({}))]}), 1500),
        (json!({"initContainers": [container("2", json!({}))], "containers": [container("1", json!({}))]}), 2000),
        (json!({"initContainers": [container("1", always.clone())], "containers": [container("1", json!({}))]}), 2000),
        (
            json!({
                "initContainers": [container("1", always), container("2", json!({}))],
                "containers": [container("1", json!({}))],
            }),
            3000,
        ),
        (json!({"containers": [container("1", json!({}))], "overhead": {"cpu": "250m"}}), 1250),
        (json!({"containers": [container("1", json!({}))], "resources": {"requests": {"cpu": "4"}}}), 4000),
    ] {
        let demand = PodDemand::from_pod(&pod("p", spec.clone()));
        assert_eq!((demand.requests["cpu"], demand.requests["pods"]), (millis, 1), "{spec}");
    }
}

#[test]
fn an_offer_is_what_is_left() {
    let mut chosen = with_port("q", json!({"containerPort": 80}));
    chosen.metadata.annotations = Some([("k8s.mesosphere.io/port_TCP_80".into(), "31001".into())].into());
    let offered = room().offered(&[PodDemand::from_pod(&asking("p", "500m", "1Gi")), PodDemand::from_pod(&chosen)]);
    let free: Value = serde_json::to_value(&offered.free).unwrap();
    assert_eq!(free, json!({"cpu": "1500m", "memory": "3145728Ki", "pods": "1", "example.com/gpu": "1"}));
    assert_eq!(offered.automatic_ports, ["31000", "31002-31004"]);
    assert_eq!(offered.explicit_ports, ["1-40000"]);
    let over = room().offered(&[PodDemand::from_pod(&asking("p", "5", "9Gi"))]);
    assert_eq!((over.free["cpu"].0.as_str(), over.free["memory"].0.as_str()), ("0", "0"), "never less than nothing");
}

#[test]
fn what_does_not_fit_is_refused_in_upstreams_words() {
    let reason = |pod: &Pod, held: &[Pod]| refused(pod, held).reason;
    let held = [asking("held", "1500m", "1Gi")];
    let cpu = refused(&asking("p", "1", "1Gi"), &held);
    assert_eq!(cpu.reason, "OutOfcpu");
    assert_eq!(cpu.message, "Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000");
    assert_eq!(reason(&asking("p", "100m", "4Gi"), &held), "OutOfmemory");
    let three = [asking("a", "0", "0"), asking("b", "0", "0"), asking("c", "0", "0")];
    assert_eq!(reason(&asking("p", "3", "0"), &three), "OutOfpods");
    let mut gpu = asking("p", "0", "0");
    let containers = &mut gpu.spec.as_mut().unwrap().containers;
    containers[0].resources = serde_json::from_value(json!({"requests": {"example.com/gpu": "2"}})).unwrap();
    assert_eq!(reason(&gpu, &[]), "OutOfexample.com/gpu");
    containers_of(&mut gpu, json!({"requests": {"example.com/unknown": "2"}}));
    assert_eq!(check_pod(&gpu, &node(), &room(), &[]), Ok(()), "upstream leaves that to others");

    let selecting = |extra: Value| {
        let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
        mainstay_api::patch::merge(&mut spec, &extra);
        pod("p", spec)
    };
    assert_eq!(reason(&selecting(json!({"nodeSelector": {"disk": "hdd"}})), &[]), "NodeAffinity");
    let affinity = |requirement: Value| {
        let terms = json!([{"matchExpressions": [requirement]}]);
        selecting(json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        }}}))
    };
    let fits = |pod: &Pod| check_pod(pod, &node(), &room(), &[]).is_ok();
    assert!(fits(&affinity(json!({"key": "cores", "operator": "Gt", "values": ["4"]}))));
    assert!(!fits(&affinity(json!({"key": "cores", "operator": "Lt", "values": ["4"]}))));
    assert!(!fits(&affinity(json!({"key": "disk", "operator": "NotIn", "values": ["ssd"]}))));

    let mut tainted = node();
    tainted.spec = serde_json::from_value(json!({"taints": [
        {"key": "gone", "effect": "NoExecute"}, {"key": "soft", "effect": "NoSchedule"},
    ]}))
    .unwrap();
    let plain = selecting(json!({}));
    assert_eq!(check_pod(&plain, &tainted, &room(), &[]).unwrap_err().reason, "TaintToleration");
    let tolerant = selecting(json!({"tolerations": [{"key": "gone", "operator": "Exists"}]}));
    assert_eq!(check_pod(&tolerant, &tainted, &room(), &[]), Ok(()));
}

fn containers_of(pod: &mut Pod, resources: Value) {
    pod.spec.as_mut().unwrap().containers[0].resources = serde_json::from_value(resources).unwrap();
}

#[test]
fn ports_are_taken_once_and_lie_where_the_machine_says() {
    let explicit = |name: &str, port: u16| with_port(name, json!({"containerPort": 80, "hostPort": port}));
    let taken = refused(&explicit("p", 8080), &[explicit("q", 8080)]);
    assert_eq!(taken.reason, "NodePorts");
    assert!(taken.message.ends_with("didn't have free ports for the requested pod ports: TCP 8080"), "{taken:?}");
    let outside = refused(&explicit("p", 50_000), &[]);
    assert!(outside.message.contains("host port 50000 is not among those of this machine (1-40000)"), "{outside:?}");
    let udp = with_port("p", json!({"containerPort": 80, "hostPort": 8080, "protocol": "UDP"}));
    let held = [PodDemand::from_pod(&explicit("q", 8080))];
    assert_eq!(check_pod(&udp, &node(), &room(), &held), Ok(()));
    let one = with_port("p", json!({"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1"}));
    let other = with_port("q", json!({"containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.2"}));
    assert_eq!(check_pod(&one, &node(), &room(), &[PodDemand::from_pod(&other)]), Ok(()));
    assert!(check_pod(&one, &node(), &room(), &held).is_err(), "all addresses include that one");
    let mut automatic = with_port("p", json!({"containerPort": 80}));
    automatic.metadata.annotations = Some([("k8s.mesosphere.io/port_TCP_80".into(), "31007".into())].into());
    assert!(refused(&automatic, &[]).message.contains("31007 is not among"), "outside of the automatic ones");
}

#[test]
fn host_ports_of_ordinary_init_containers_are_not_held_as_the_scheduler_has_it() {
    let port = json!([{"containerPort": 80, "hostPort": 8080}]);
    let with_init = |name: &str, restart_policy: Value| {
        let init = json!({"name": "i", "image": "i", "ports": port, "restartPolicy": restart_policy});
        pod(name, json!({"initContainers": [init], "containers": [{"name": "c", "image": "i"}]}))
    };
    let explicit = with_port("q", json!({"containerPort": 80, "hostPort": 8080}));
    let held = [PodDemand::from_pod(&explicit)];
    assert_eq!(check_pod(&with_init("p", Value::Null), &node(), &room(), &held), Ok(()));
    assert_eq!(refused(&with_init("p", json!("Always")), &[explicit]).reason, "NodePorts", "a sidecar holds its ports");
}

#[test]
fn an_assigned_port_replaces_the_one_that_a_container_on_the_nodes_network_names() {
    let mut assigned = with_port("p", json!({"containerPort": 80}));
    assigned.metadata.annotations = Some([("k8s.mesosphere.io/port_TCP_80".into(), "31001".into())].into());
    assigned.spec.as_mut().unwrap().host_network = Some(true);
    assert_eq!(PodDemand::taken_ports([&PodDemand::from_pod(&assigned)]), [31_001].into());
}

#[test]
fn pools_offer_what_their_pods_leave_them() {
    // The row's example: cpu(*) 0.5 and cpu(public) 1.5; a pod that asks for 2 with "*,public" takes all of both.
    let room = room_with(&["public=cpu:1500m,memory:1Gi,ports:31003-31004"]);
    let demands = |pods: &[Pod]| pods.iter().map(PodDemand::from_pod).collect::<Vec<_>>();
    let free = |held: &[Pod]| {
        let pools = room.offered(&demands(held)).pools;
        let cpu = |pool: &mainstay_api::offer::OfferPool| (pool.role.clone(), pool.free["cpu"].0.clone());
        pools.iter().map(cpu).collect::<Vec<_>>()
    };
    let pools =
        |rest: &str, public: &str| vec![("*".to_owned(), rest.to_owned()), ("public".to_owned(), public.to_owned())];
    assert_eq!(free(&[]), pools("500m", "1500m"));
    assert_eq!(free(&[with_roles(asking("p", "2", "0"), "*,public")]), pools("0", "0"));
    assert_eq!(free(&[with_roles(asking("p", "1", "0"), "*,public")]), pools("0", "1"));
    assert_eq!(free(&[with_roles(asking("p", "1", "0"), "public , *")]), pools("500m", "500m"));
    // What was recorded when it was bound stands, whatever else would be tried first now; what nobody recorded comes after it.
    let bound = with_shares(with_roles(asking("p", "1", "0"), "*,public"), json!({"public": {"cpu": "1"}}));
    assert_eq!(free(std::slice::from_ref(&bound)), pools("500m", "500m"));
    assert_eq!(free(&[with_roles(asking("q", "800m", "0"), "public,*"), bound]), pools("200m", "0"));
    let liar = with_shares(asking("p", "500m", "0"), json!({"public": {"cpu": "500m"}}));
    assert_eq!(free(&[liar]), pools("0", "1500m"), "a record of a role that is not the pod's is none");
    let offered = room.offered(&[]);
    assert_eq!(offered.automatic_ports, ["31000-31004"], "of all roles");
    assert_eq!(offered.pools[0].automatic_ports, ["31000-31002"]);
    assert_eq!(offered.pools[1].automatic_ports, ["31003-31004"]);
    assert_eq!(offered.pools[1].capacity["memory"].0, "1048576Ki");
    assert!(room_with(&[]).offered(&[]).pools.is_empty());
}

#[test]
fn a_pod_gets_no_more_than_its_roles_have() {
    let room = room_with(&["public=cpu:1500m,memory:1Gi,ports:31003-31004"]);
    let check = |pod: &Pod, held: &[Pod]| {
        let held: Vec<PodDemand> = held.iter().map(PodDemand::from_pod).collect();
        check_pod(pod, &node(), &room, &held)
    };
    let words = |pod: &Pod, held: &[Pod]| check(pod, held).map_err(|own| (own.reason, own.message));
    assert_eq!(check(&with_roles(asking("p", "2", "0"), "*,public"), &[]), Ok(()));
    let lacking = "Node didn't have enough resource for the pod's roles: cpu, requested: 600, free: 500 for *";
    assert_eq!(words(&asking("p", "600m", "0"), &[]), Err(("OutOfcpu".to_owned(), lacking.to_owned())));
    let held = [with_roles(asking("q", "1", "0"), "public")];
    let lacking = "Node didn't have enough resource for the pod's roles: cpu, requested: 600, free: 500 for public";
    let large = with_roles(asking("p", "600m", "0"), "public,unknown");
    assert_eq!(words(&large, &held), Err(("OutOfcpu".to_owned(), lacking.to_owned())));
    assert_eq!(check(&with_roles(asking("p", "1", "0"), "*,public,unknown"), &held), Ok(()));
    for (roles, shown) in [("batch", "batch"), ("", "none")] {
        let message = format!("Node has nothing for the roles that the pod may use: {shown}");
        let rejected = words(&with_roles(asking("p", "0", "0"), roles), &[]);
        assert_eq!(rejected, Err(("UnservedRoles".to_owned(), message)));
    }
    let port = |number: i32| with_port("p", json!({"containerPort": 80, "hostPort": number}));
    assert!(check(&port(31_003), &[]).unwrap_err().message.contains("host port 31003 is not among"));
    assert_eq!(check(&with_roles(port(31_003), "public"), &[]), Ok(()));
    assert!(check(&with_roles(port(8080), "public"), &[]).is_err());
    assert_eq!(check(&with_roles(port(8080), "public,*"), &[]), Ok(()));
}

#[test]
fn critical_pods_make_room_in_their_own_pools() {
    let room = room_with(&["public=cpu:1500m"]);
    let held = |name: &str, roles: &str, cpu: &str| RunningPod {
        uid: PodUid(name.into()),
        priority: 0,
        stays: false,
        demand: PodDemand::from_pod(&with_roles(asking(name, cpu, "0"), roles)),
    };
    let all = [held("a", "public", "1500m"), held("b", "*", "500m")];
    let made = |roles: &str| {
        let demand = PodDemand::from_pod(&with_roles(asking("p", "400m", "0"), roles));
        preempt::make_room(&demand, &room, &all).map(|victims| victims.into_iter().map(|uid| uid.0).collect::<Vec<_>>())
    };
    assert_eq!(made("public"), Some(vec!["a".to_owned()]));
    assert_eq!(made("*"), Some(vec!["b".to_owned()]));
    assert_eq!(made("batch"), None);
}

#[test]
fn the_least_important_make_room_and_no_more_than_needed() {
    let held = |name: &str, priority, stays, cpu: &str| RunningPod {
        uid: PodUid(name.into()),
        priority,
        stays,
        demand: PodDemand::from_pod(&asking(name, cpu, "0")),
    };
    let demand = PodDemand::from_pod(&asking("p", "1", "0"));
    let made = |all: &[RunningPod]| {
        let victims = preempt::make_room(&demand, &room(), all)?;
        Some(victims.into_iter().map(|uid| uid.0).collect::<Vec<_>>())
    };
    let all = [held("low", 1, false, "200m"), held("mid", 5, false, "1"), held("high", 9, false, "800m")];
    assert_eq!(made(&all).unwrap(), ["mid"], "the small one need not go as well");
    assert_eq!(made(&all[..1]).unwrap(), Vec::<String>::new());
    assert_eq!(made(&[held("static", 0, true, "2")]), None);
}

struct Machine {
    client: Client,
    pods: Arc<Pods>,
    evictions: Evictions,
    admission: Arc<OfferAdmission>,
    node: watch::Sender<Option<Node>>,
}

async fn machine() -> Machine {
    machine_avoiding(Box::new(|_| None)).await
}

fn offering() -> Offering {
    let ranges = |range: &str| PortRanges::parse([range]).unwrap();
    Offering { automatic: ranges("31000-31004"), explicit: ranges("1-40000"), ..Offering::default() }
}

async fn machine_avoiding(avoids: Avoids) -> Machine {
    machine_with(avoids, offering()).await
}

async fn machine_with(avoids: Avoids, offering: Offering) -> Machine {
    let client = api(&["default"]).await;
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node()).await.unwrap();
    let wake = Wake::default();
    let (pods, evictions) = (Arc::new(Pods::new(wake.clone())), Evictions::new(wake));
    let node = watch::Sender::new(Some(node()));
    let (events, _) = Events::new("m1");
    let admission = OfferAdmission::new(
        client.clone(),
        pods.clone(),
        node.subscribe(),
        evictions.clone(),
        events,
        offering,
        avoids,
    );
    Machine { client, pods, evictions, admission, node }
}

impl Machine {
    /// A pod of the API, on this machine by its own wish or by somebody's placement.
    async fn placed(&self, mut pod: Pod, by_binding: bool) -> Pod {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        let name = pod.metadata.name.clone().unwrap();
        pod.metadata.uid = None;
        if !by_binding {
            pod.spec.as_mut().unwrap().node_name = Some("n1".into());
        }
        pods.create(&PostParams::default(), &pod).await.unwrap();
        if by_binding {
            let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}});
            let _: Value = pods.create_subresource("binding", &name, &PostParams::default(), &binding).await.unwrap();
        }
        pods.get(&name).await.unwrap()
    }

    async fn now(&self, name: &str) -> Pod {
        Api::<Pod>::namespaced(self.client.clone(), "default").get(name).await.unwrap()
    }
}

#[tokio::test]
async fn what_fits_is_taken_and_what_does_not_is_given_back() {
    let machine = machine().await;
    let stop = CancellationToken::new();
    let small = machine.placed(asking("small", "1500m", "1Gi"), true).await;
    assert_eq!(machine.admission.admit(&small, &stop).await, Verdict::Admitted);
    machine.pods.upsert(Source::Api, small.clone());
    let large = machine.placed(asking("large", "1", "1Gi"), true).await;
    assert_eq!(machine.admission.admit(&large, &stop).await, Verdict::NotOurs);
    machine.admission.close().await;
    let back = machine.now("large").await;
    assert_eq!(back.spec.unwrap().node_name, None);
    let conditions = back.status.unwrap().conditions.unwrap();
    let words = conditions.iter().find(|c| c.type_ == "PodScheduled").unwrap().message.clone().unwrap();
    assert_eq!(
        words,
        "node n1 refused: OutOfcpu: Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000"
    );
    let uid = PodUid(large.metadata.uid.clone().unwrap());
    assert!(machine.evictions.evicted(&uid).is_none());

    // Whatever the watch delivers before it is known to be gone, it stays given back; then it may come again.
    assert_eq!(machine.admission.admit(&large, &stop).await, Verdict::NotOurs);
    machine.admission.retain(&[]);
    machine.pods.remove(Source::Api, &PodUid(small.metadata.uid.unwrap()));
    machine.pods.release(&uid);
    assert_eq!(machine.admission.admit(&large, &stop).await, Verdict::NotOurs, "the small one is still ending");
    machine.admission.forget(&uid);
    machine.pods.active_pods().iter().for_each(|(uid, _)| machine.pods.release(uid));
    assert_eq!(machine.admission.admit(&large, &stop).await, Verdict::Admitted);
}

#[tokio::test]
async fn a_pod_whose_like_failed_here_is_sent_elsewhere_once() {
    let why = "pods of ReplicaSet web failed here";
    let machine = machine_avoiding(Box::new(move |_| Some(why.to_owned()))).await;
    let stop = CancellationToken::new();
    let replacement = machine.placed(asking("web-2", "1", "1Gi"), true).await;
    assert_eq!(machine.admission.admit(&replacement, &stop).await, Verdict::NotOurs);
    machine.admission.close().await;
    let back = machine.now("web-2").await;
    assert_eq!(back.spec.as_ref().unwrap().node_name, None);
    let message = back.status.unwrap().conditions.unwrap().into_iter().find_map(|c| c.message);
    assert_eq!(message.as_deref(), Some("node n1 refused: FailedHere: pods of ReplicaSet web failed here"));

    let mut returned = replacement.clone();
    returned.metadata.annotations = back.metadata.annotations;
    returned.metadata.uid = Some("again".to_owned());
    assert_eq!(machine.admission.admit(&returned, &stop).await, Verdict::Admitted, "no other node took it");
    let named = machine.placed(asking("named", "100m", "0"), false).await;
    assert_eq!(machine.admission.admit(&named, &stop).await, Verdict::Admitted, "it asked for this node");
}

#[tokio::test]
async fn what_has_begun_is_never_refused_and_who_named_the_machine_fails_there() {
    let machine = machine().await;
    let stop = CancellationToken::new();
    let mut begun = machine.placed(asking("begun", "64", "1Gi"), true).await;
    begun.status.as_mut().unwrap().start_time = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(machine.admission.admit(&begun, &stop).await, Verdict::Admitted, "an agent that starts again");
    let known = machine.placed(asking("known", "64", "1Gi"), true).await;
    machine.pods.upsert(Source::Api, known.clone());
    assert_eq!(machine.admission.admit(&known, &stop).await, Verdict::Admitted);
    let own = machine.placed(asking("own", "64", "1Gi"), false).await;
    assert_eq!(machine.admission.admit(&own, &stop).await, Verdict::Admitted);
    let why = machine.evictions.evicted(&PodUid(own.metadata.uid.unwrap())).unwrap();
    assert_eq!(why.reason, "OutOfcpu");
    let before = machine.pods.active_pods().len();
    machine.pods.upsert(Source::Api, machine.now("own").await);
    assert_eq!(machine.pods.active_pods().len(), before, "it takes nothing");
    assert!(why.message.starts_with("Pod was rejected: Node didn't have enough resource: cpu"), "{why:?}");
    let mut shown = asking("shown", "64", "0");
    shown.metadata.annotations = Some([("kubernetes.io/config.mirror".into(), "x".into())].into());
    assert_eq!(machine.admission.admit(&shown, &stop).await, Verdict::NotOurs);
}

#[tokio::test]
async fn a_critical_pod_drives_others_out() {
    let machine = machine().await;
    let stop = CancellationToken::new();
    let plain = machine.placed(asking("plain", "2", "0"), true).await;
    machine.pods.upsert(Source::Api, plain.clone());
    let mut critical = machine.placed(asking("critical", "1", "0"), true).await;
    critical.spec.as_mut().unwrap().priority = Some(preempt::CRITICAL);
    assert_eq!(machine.admission.admit(&critical, &stop).await, Verdict::Admitted);
    let why = machine.evictions.evicted(&PodUid(plain.metadata.uid.unwrap())).unwrap();
    assert_eq!((why.reason.as_ref(), why.message.as_str()), ("Preempting", "Preempted in order to admit critical pod"));
}

#[tokio::test]
async fn an_unchanged_offer_is_not_written_and_one_that_was_lost_is_made_anew() {
    let machine = machine().await;
    let offering = Offering { ttl: Duration::from_secs(1), ..Offering::default() };
    let stop = CancellationToken::new();
    let publish = |name: &str| {
        let (client, pods) = (machine.client.clone(), machine.pods.clone());
        let renewed = watch::Sender::default();
        let (node, closed) = (machine.node.subscribe(), watch::channel(false).1);
        let publisher = OfferPublisher::new(client, name.into(), pods, node, renewed.clone(), &offering, closed);
        tokio::spawn(publisher.run(stop.clone()));
        renewed
    };
    let offers: Api<Offer> = Api::all(machine.client.clone());
    let version =
        async |name: &str| offers.get_opt(name).await.unwrap().and_then(|offer| offer.metadata.resource_version);
    machine.pods.replace(Source::File, vec![]);
    machine.pods.replace(Source::Api, vec![]);
    let renewed = publish("n1");
    until("the first offers", async || version("n1").await.is_some()).await;
    let written = version("n1").await;
    until("heartbeats renew what was written", async || *renewed.borrow() == written).await;

    // The second one looks up its offer after the first one did: they have the same period.
    let other = publish("n2");
    until("the second offers", async || other.borrow().is_some()).await;
    for _ in 0..2 {
        let lost = version("n2").await;
        offers.delete("n2", &Default::default()).await.unwrap();
        until("what was lost is made anew", async || version("n2").await.is_some_and(|now| Some(now) != lost)).await;
    }
    until("heartbeats renew the new one", async || *other.borrow() == version("n2").await).await;
    assert_eq!((version("n1").await, renewed.borrow().clone()), (written.clone(), written));

    machine.pods.set_observed_version(17);
    until("how far was looked is written", async || offers.get("n1").await.unwrap().spec.seen == "17").await;
    machine.node.send_replace(None);
    until("nothing is renewed that is not offered", async || renewed.borrow().is_none()).await;
    stop.cancel();
}

#[tokio::test]
async fn an_offer_follows_what_is_held_and_ends_with_its_agent() {
    let machine = machine().await;
    let offering = Offering { ttl: Duration::from_secs(600), ..Offering::default() };
    let closing = watch::Sender::new(false);
    let publisher = OfferPublisher::new(
        machine.client.clone(),
        "n1".into(),
        machine.pods.clone(),
        machine.node.subscribe(),
        watch::Sender::default(),
        &offering,
        closing.subscribe(),
    );
    let stop = CancellationToken::new();
    let running = tokio::spawn(publisher.run(stop.clone()));
    let offers: Api<Offer> = Api::all(machine.client.clone());
    let free = async || {
        let offer = offers.get_opt("n1").await.unwrap()?;
        Some((offer.spec.free["cpu"].0.clone(), offer.spec.free["pods"].0.clone(), offer.spec.seen))
    };
    let offered = async |cpu: &str, pods: &str, seen: &str| {
        let wanted = Some((cpu.to_owned(), pods.to_owned(), seen.to_owned()));
        until(&format!("{wanted:?} is offered"), async || free().await == wanted).await;
    };
    machine.pods.replace(Source::File, vec![]);
    assert!(free().await.is_none(), "nothing before all sources have spoken");
    machine.pods.replace(Source::Api, vec![]);
    offered("2", "3", "0").await;
    machine.pods.upsert(Source::Api, asking("p", "500m", "1Gi"));
    machine.pods.set_observed_version(17);
    offered("1500m", "2", "17").await;

    // Somebody lies in its name: the next news is the truth again.
    let lie = json!({"spec": {"free": {"cpu": "64"}}});
    offers.patch("n1", &PatchParams::default(), &Patch::Merge(lie)).await.unwrap();
    let uid = PodUid("p-uid".into());
    machine.pods.remove(Source::Api, &uid);
    machine.pods.upsert(Source::File, asking("static", "250m", "0"));
    offered("1250m", "1", "17").await;
    machine.pods.release(&uid);
    offered("1750m", "2", "17").await;

    machine.node.send_modify(|node| {
        let status = node.as_mut().unwrap().status.as_mut().unwrap();
        status.conditions.as_mut().unwrap()[0].status = "False".into();
    });
    until("a machine that is not ready offers nothing", async || free().await.is_none()).await;
    machine.node.send_replace(Some(node()));
    offered("1750m", "2", "17").await;
    closing.send_replace(true);
    until("a machine that evicts its pods offers nothing", async || free().await.is_none()).await;
    closing.send_replace(false);
    offered("1750m", "2", "17").await;
    stop.cancel();
    running.await.unwrap();
    assert!(free().await.is_none(), "who stops takes the offer back");
}
