use mainstay_api::node_loss::Timing;

use k8s_openapi::api::coordination::v1::Lease;

use super::*;
use crate::node::heartbeat::LEASES;

#[test]
fn taints_are_read_as_people_write_them() {
    let read = |text: &str| taint(text).map(|taint| (taint.key, taint.value, taint.effect));
    assert_eq!(read("a/b=c:NoSchedule"), Some(("a/b".into(), Some("c".into()), "NoSchedule".into())));
    assert_eq!(read("a:NoExecute"), Some(("a".into(), None, "NoExecute".into())));
    assert_eq!(read("a"), None);
}

struct Machine {
    keeper: Arc<NodeReporter>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    recorded: mainstay_events::EventWriter,
    pods: Arc<Pods>,
}

fn test_settings() -> Settings {
    Settings {
        timing: Timing { heartbeat: Duration::from_millis(50), ..Timing::default() },
        labels: vec![("rack".into(), "7".into())],
        taints: vec!["dedicated=db:PreferNoSchedule".into()],
        ..crate::testing::settings()
    }
}

fn machine(client: &Client, measured: impl Fn() -> NodeMeasurement + Send + Sync + 'static) -> Machine {
    machine_with(client, test_settings(), measured)
}

fn machine_with(
    client: &Client,
    settings: Settings,
    measured: impl Fn() -> NodeMeasurement + Send + Sync + 'static,
) -> Machine {
    let wake = Wake::default();
    let (events, recorded) = Events::new("m1");
    let pods = Arc::new(Pods::new(wake.clone()));
    let runtime = Arc::new(mainstay_runtime::fake::Fake::new());
    let fence = crate::fence::FenceParts::testing(client, runtime.clone(), &pods, &events, &wake);
    let parts = Parts {
        fence: crate::fence::Fence::new(fence),
        client: client.clone(),
        servers: Servers::named(&["https://first", "https://second"]).unwrap(),
        settings: Arc::new(settings),
        runtime,
        pods: pods.clone(),
        events,
        wake,
        suspect: Box::new(|| None),
        route_problem: RouteProblem::default(),
        route_check: Default::default(),
    };
    let keeper = NodeReporter::measuring(parts, measured);
    let stop = CancellationToken::new();
    let task = tokio::spawn(keeper.clone().run(stop.clone()));
    Machine { keeper, stop, task, recorded, pods }
}

impl Machine {
    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

fn fine() -> NodeMeasurement {
    let plenty = crate::node::pressure::Amount { capacity: 100 << 30, available: 90 << 30 };
    NodeMeasurement { memory: plenty, disk: plenty, inodes: plenty, pids: plenty }
}

fn ready(node: &Node) -> Option<(String, String, Timestamp)> {
    let condition = status::condition(node.status.as_ref()?, "Ready")?;
    let since = condition.last_transition_time.clone()?.0;
    Some((condition.status.clone(), condition.reason.clone()?, since))
}

#[tokio::test]
async fn a_machine_registers_beats_and_comes_back_when_it_is_deleted() {
    let client = crate::testing::api(&["default", LEASES]).await;
    let (nodes, leases) = (Api::<Node>::all(client.clone()), Api::<Lease>::namespaced(client.clone(), LEASES));
    let machine = machine(&client, fine);
    let node = || async { nodes.get_opt("m1").await.unwrap() };
    let is_ready = async || node().await.as_ref().and_then(ready).is_some_and(|(status, ..)| status == "True");
    crate::testing::until("the node is ready", is_ready).await;
    let first = node().await.unwrap();
    let spec = first.spec.as_ref().unwrap();
    assert_eq!(spec.pod_cidr.as_deref(), Some("10.244.0.0/24"));
    assert_eq!(spec.taints.as_ref().unwrap()[0].key, "dedicated");
    let labels = first.metadata.labels.as_ref().unwrap();
    assert_eq!((labels["rack"].as_str(), labels["kubernetes.io/os"].as_str()), ("7", "linux"));
    let info = first.status.as_ref().unwrap().node_info.as_ref().unwrap();
    assert_eq!(info.kubelet_version, crate::node::VERSION);
    let renewed = || async { leases.get_opt("m1").await.unwrap()?.spec?.renew_time };
    crate::testing::until("there is a lease", async || renewed().await.is_some()).await;
    let beat = renewed().await;
    crate::testing::until("the lease is renewed", async || renewed().await > beat).await;
    let lease = leases.get("m1").await.unwrap();
    assert_eq!(lease.metadata.owner_references.unwrap()[0].uid, first.metadata.uid.clone().unwrap());
    nodes.delete("m1", &Default::default()).await.unwrap();
    machine.keeper.look_again();
    crate::testing::until("the node is back", is_ready).await;
    let again = node().await.unwrap();
    assert_eq!(again.spec.unwrap().pod_cidr.as_deref(), Some("10.244.1.0/24"), "a range given back is used last");
    machine.stop().await;
}

#[tokio::test]
async fn a_label_that_the_api_refuses_keeps_neither_the_node_nor_the_other_labels_away() {
    let client = crate::testing::api(&["default", LEASES]).await;
    let nodes = Api::<Node>::all(client.clone());
    let flags = [("rack", "7"), ("not a name", "x"), ("zone", "not a value!")];
    let labels = flags.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    let machine = machine_with(&client, Settings { labels, ..test_settings() }, fine);
    let labels = || async { nodes.get_opt("m1").await.unwrap()?.metadata.labels };
    let has_rack = async || labels().await.is_some_and(|labels| labels.contains_key("rack"));
    crate::testing::until("the label that is valid is set", has_rack).await;
    let set = labels().await.unwrap();
    assert_eq!((set["rack"].as_str(), set.get("not a name"), set.get("zone")), ("7", None, None));
    machine.stop().await;
}

#[tokio::test]
async fn the_host_name_label_is_the_name_of_the_node_until_somebody_corrects_it() {
    let client = crate::testing::api(&["default", LEASES]).await;
    let nodes = Api::<Node>::all(client.clone());
    let first = machine(&client, fine);
    let labels = || async { nodes.get_opt("m1").await.unwrap()?.metadata.labels };
    crate::testing::until("the node is there", async || labels().await.is_some()).await;
    assert_eq!(labels().await.unwrap()[HOSTNAME], "m1");
    first.stop().await;
    let correction = Patch::Merge(json!({ "metadata": { "labels": { HOSTNAME: "former", OS: "plan9" } } }));
    nodes.patch("m1", &PatchParams::default(), &correction).await.unwrap();
    let second = machine(&client, fine);
    let is_restored = async || labels().await.is_some_and(|labels| labels[OS] == "linux");
    crate::testing::until("the machine's own label is restored", is_restored).await;
    assert_eq!(labels().await.unwrap()[HOSTNAME], "former");
    second.stop().await;
}

#[tokio::test]
async fn ready_outlives_a_restart_and_ends_with_an_orderly_stop() {
    let client = crate::testing::api(&["default", LEASES]).await;
    let nodes = Api::<Node>::all(client.clone());
    let current = || async { nodes.get_opt("m1").await.unwrap().as_ref().and_then(ready) };
    let first = machine(&client, fine);
    crate::testing::until("the node is ready", async || current().await.is_some()).await;
    let before = current().await.unwrap();
    first.stop().await;
    assert_eq!(current().await.unwrap(), before);
    let second = machine(&client, fine);
    let mut found = second.keeper.node();
    tokio::time::timeout(Duration::from_secs(20), found.wait_for(Option::is_some)).await.unwrap().unwrap();
    assert_eq!(current().await.unwrap(), before, "no transition");
    let keeper = second.keeper.clone();
    second.stop().await;
    keeper.retire(crate::node::PodsAfterStop::KeepRunning).await;
    let (status, reason, _) = current().await.unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("False", "AgentStopped"));
}

#[tokio::test]
async fn a_server_that_keeps_refusing_is_left_and_an_api_that_is_away_is_found_again_when_it_returns() {
    let client = crate::testing::api(&["default"]).await; // no namespace for leases: they cannot be written
    let leases = Api::<Lease>::namespaced(client.clone(), LEASES);
    let machine = machine(&client, fine);
    crate::testing::until("the node is there", async || machine.keeper.node().borrow().is_some()).await;
    let called = || machine.keeper.parts.servers.in_turn().remove(0);
    crate::testing::until("another server is called", async || called().host() == Some("second")).await;
    let metadata = ObjectMeta { name: Some(LEASES.into()), ..ObjectMeta::default() };
    let namespace = k8s_openapi::api::core::v1::Namespace { metadata, ..Default::default() };
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    crate::testing::until("the lease is written", async || leases.get_opt("m1").await.unwrap().is_some()).await;
    machine.stop().await;
}

#[tokio::test]
async fn heartbeats_name_the_offer_that_they_renew() {
    let client = crate::testing::api(&["default", LEASES]).await;
    let leases = Api::<Lease>::namespaced(client.clone(), LEASES);
    let machine = machine(&client, fine);
    let named = async || {
        let annotations = leases.get_opt("m1").await.unwrap()?.metadata.annotations;
        annotations.and_then(|annotations| annotations.get("mainstay.dev/renewed-offer").cloned())
    };
    let renewed = machine.keeper.renewed_offer();
    renewed.send_replace(Some("42".into()));
    crate::testing::until("the Lease names it", async || named().await.as_deref() == Some("42")).await;
    renewed.send_replace(None);
    crate::testing::until("the Lease names none", async || named().await.is_none()).await;
    machine.stop().await;
}

#[tokio::test]
async fn a_shortage_of_memory_is_reported_and_costs_one_pod() {
    let client = crate::testing::api(&["default", LEASES]).await;
    let nodes = Api::<Node>::all(client.clone());
    let short = || {
        let memory = crate::node::pressure::Amount { capacity: 8 << 30, available: 1 << 20 };
        NodeMeasurement { memory, ..fine() }
    };
    let mut machine = machine(&client, short);
    let pod = |name: &str, priority: i32| -> k8s_openapi::api::core::v1::Pod {
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "default", "uid": name },
            "spec": { "priority": priority, "containers": [{ "name": "c", "image": "busybox" }] },
        }))
        .unwrap()
    };
    machine.pods.upsert(crate::pods::Source::Api, pod("high", 100));
    machine.pods.upsert(crate::pods::Source::Api, pod("low", 0));
    machine.pods.upsert(crate::pods::Source::File, pod("static", -10));
    machine.keeper.keep_up_once(false).await;
    machine.keeper.keep_up_once(false).await;
    let evicted = |name: &str| machine.keeper.evictions().evicted(&mainstay_runtime::PodUid(name.into()));
    let eviction = evicted("low").expect("the lowest priority goes");
    assert!(
        eviction
            .message
            .starts_with("The node was low on resource: memory. Threshold quantity: 100Mi, available: 1Mi. ")
    );
    assert!(evicted("high").is_none(), "one at a time");
    assert!(evicted("static").is_none());
    let pressed = || async {
        let node = nodes.get_opt("m1").await.unwrap()?;
        Some(status::condition(node.status.as_ref()?, "MemoryPressure")?.status.clone())
    };
    crate::testing::until("the node tells", async || pressed().await.as_deref() == Some("True")).await;
    let mut reasons = std::collections::BTreeSet::new();
    while !(reasons.contains("Evicted") && reasons.contains("NodeHasInsufficientMemory")) {
        reasons.extend(std::iter::from_fn(|| machine.recorded.try_next()).map(|event| event.note.reason.into_owned()));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    machine.stop().await;
}

#[tokio::test]
async fn an_evicted_pod_that_is_still_on_the_machine_is_waited_for() {
    let client = crate::testing::api(&["default", LEASES]).await;
    let short = || {
        let disk = crate::node::pressure::Amount { capacity: 500 << 20, available: 0 };
        NodeMeasurement { disk, ..fine() }
    };
    let machine = machine(&client, short);
    let pod = |name: &str, phase: &str| -> k8s_openapi::api::core::v1::Pod {
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "default", "uid": name },
            "spec": { "containers": [{ "name": "c", "image": "busybox" }] }, "status": { "phase": phase },
        }))
        .unwrap()
    };
    let runtime = &machine.keeper.parts.runtime;
    let held = runtime.create_sandbox(&sandbox("filler")).await.unwrap();
    machine.pods.upsert(crate::pods::Source::Api, pod("filler", "Running"));
    machine.keeper.keep_up_once(false).await;
    let evicted = |name: &str| machine.keeper.evictions().evicted(&mainstay_runtime::PodUid(name.into())).is_some();
    assert!(evicted("filler"));
    // It has ended and the API knows, but what it wrote is still there.
    machine.pods.upsert(crate::pods::Source::Api, pod("filler", "Failed"));
    machine.pods.upsert(crate::pods::Source::Api, pod("modest", "Running"));
    machine.keeper.keep_up_once(false).await;
    assert!(!evicted("modest"), "the first one's space is not free yet");
    runtime.remove_sandbox(&held).await.unwrap();
    machine.keeper.keep_up_once(false).await;
    assert!(evicted("modest"), "the first one was not enough");
    machine.stop().await;
}

fn sandbox(uid: &str) -> mainstay_runtime::spec::SandboxSpec {
    let uid = mainstay_runtime::PodUid(uid.into());
    mainstay_runtime::spec::SandboxSpec {
        pod: mainstay_runtime::observed::PodRef { namespace: "default".into(), name: uid.0.clone(), uid },
        attempt: 0,
        hostname: "p".into(),
        log_directory: std::env::temp_dir(),
        host_network: true,
        host_ipc: false,
        pid: Default::default(),
        cgroup: String::new(),
        resources: Default::default(),
        sysctls: BTreeMap::new(),
        ports: Vec::new(),
        dns: Default::default(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        users: None,
        runtime_handler: String::new(),
        selinux: None,
    }
}

#[tokio::test]
async fn a_second_agent_of_a_node_is_refused_while_the_first_sends_heartbeats() {
    use crate::node::sole_agent::check_sole_agent;

    let client = crate::testing::api(&["default", LEASES]).await;
    let leases = Api::<Lease>::namespaced(client.clone(), LEASES);
    let first = machine(&client, NodeMeasurement::default);
    crate::testing::until("the lease is written", async || leases.get_opt("m1").await.unwrap().is_some()).await;
    let copied = Settings { instance: "a-copy".to_owned(), ..test_settings() };
    let refused = check_sole_agent(&client, &copied).await.unwrap_err();
    assert_eq!(refused.node, "m1");
    assert!(refused.other.contains(&test_settings().instance), "{refused}");
    check_sole_agent(&client, &test_settings()).await.expect("it is started again");
    first.stop().await;
    check_sole_agent(&client, &copied).await.expect("the first has ended");
}
