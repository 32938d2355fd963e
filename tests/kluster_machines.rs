//! A Kluster with machines in a real OpenStack, from its manifest to its receipt.
//!
//! Nova has a fake hypervisor here, which boots nothing. The test plays it: for every server that Nova shows there is a network namespace with the server's address, in which
//! a real agent runs with what the server's user data says, and nothing else. So joining, labels, taints, routes and loss are real.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use mainstay_cloud::openstack::{
    CloudsFile, Session,
    compute::{Server, ServerFilter},
};
use mainstay_testing::Daemon;
use serde_json::{Value, json};

use crate::{
    harness::{Cluster, Kubectl, Version},
    openstack::{Project, clouds_file},
};

/// Machines join, are lost and are replaced: longer than one look takes.
const PATIENCE: Duration = Duration::from_secs(150);

#[track_caller]
fn wait_until(k: &Kubectl, own: &str, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() >= deadline {
            let state = k.run("get klusters.mainstay.dev,pods,cloudresources,events -A -o wide").stdout;
            let inner = k.run(&format!("{own} get nodes,machines,csr -o wide")).stdout;
            panic!("not within {PATIENCE:?}: {what}\n{state}\n{inner}\n{}", k.cluster.log());
        }
        thread::sleep(Duration::from_millis(500));
    }
}

fn run(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split_whitespace()).output().expect("run it");
    assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The wire of all servers, with the router's address, on this machine.
struct Wire {
    bridge: String,
    /// `172.20.7`, of which all addresses are.
    prefix: String,
}

impl Wire {
    fn new() -> Self {
        let id = std::process::id();
        let wire = Self {
            bridge: format!("kk{}", id % 1_000_000),
            prefix: format!("172.{}.{}", 16 + id % 15, (id >> 4) % 256),
        };
        run("ip", &format!("link add {} type bridge", wire.bridge));
        run("ip", &format!("addr add {}.1/24 dev {}", wire.prefix, wire.bridge));
        run("ip", &format!("link set {} up", wire.bridge));
        wire
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.bridge]).status();
    }
}

/// What a server is while Nova shows it.
struct Machine {
    namespace: String,
    data: PathBuf,
    environment: Vec<(String, String)>,
    agent: Option<Daemon>,
}

impl Machine {
    /// Boots a server: its network, and what cloud-init would start.
    fn boot(wire: &Wire, home: &Path, server: &Server, user_data: &str) -> Self {
        let number = server.all_addresses().next().and_then(|address| address.rsplit('.').next()).expect("an address");
        let (namespace, link) = (format!("{}-{number}", wire.bridge), format!("{}n{number}", wire.bridge));
        run("ip", &format!("netns add {namespace}"));
        run("ip", &format!("-n {namespace} link set lo up"));
        run("ip", &format!("link add {link} type veth peer name eth0 netns {namespace}"));
        run("ip", &format!("link set {link} master {} up", wire.bridge));
        run("ip", &format!("-n {namespace} addr add {}.{number}/24 dev eth0", wire.prefix));
        run("ip", &format!("-n {namespace} link set eth0 up"));
        run("ip", &format!("-n {namespace} route add default via {}.1", wire.prefix));
        let data = home.join(&server.name);
        let mut machine = Self { namespace, data, environment: read_environment(user_data), agent: None };
        machine.start_agent();
        machine
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace)).arg(env!("CARGO_BIN_EXE_mainstay"));
        command.args(arguments).arg("--data-dir").arg(&self.data);
        command
    }

    fn start_agent(&mut self) {
        // A test machine's disk may be nearly full without that being what is tested.
        let mut command = self.command(&["agent", "--evict-disk", "0"]);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        self.agent = Some(Daemon::spawn_with_log_of_before(command, &self.data.with_extension("log")));
    }

    fn restart_agent(&mut self) {
        self.agent.take().expect("it runs").kill();
        self.start_agent();
    }

    /// How often its agent came to run pods.
    fn starts(&self) -> usize {
        self.agent.as_ref().map_or(0, |agent| agent.log().matches("runs pods here").count())
    }

    /// The server is gone, and all that ran on it.
    fn destroy(mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill();
        }
        let _ = self.command(&["down"]).output();
        let _ = Command::new("ip").args(["netns", "del", &self.namespace]).status();
    }
}

/// The variables that cloud-init writes for the agent, as systemd reads them.
fn read_environment(user_data: &str) -> Vec<(String, String)> {
    let text = String::from_utf8(BASE64_STANDARD.decode(user_data).expect("base64")).expect("a text");
    let document: Value =
        serde_json::from_str(text.strip_prefix("#cloud-config\n").expect("cloud-init")).expect("YAML");
    let files = document["write_files"].as_array().expect("files");
    let file = files.iter().find(|file| file["path"] == "/etc/mainstay/agent.env").expect("variables");
    let unquote = |value: &str| {
        let inner = value.trim_matches('"');
        let mut plain = String::new();
        let mut chars = inner.chars();
        while let Some(each) = chars.next() {
            plain.push(if each == '\\' { chars.next().unwrap_or_default() } else { each });
        }
        plain
    };
    let lines = file["content"].as_str().expect("text").lines();
    lines.filter_map(|line| line.split_once('=')).map(|(name, value)| (name.to_owned(), unquote(value))).collect()
}

/// Boots every server that Nova shows as active, and destroys what it shows no more, until it is dropped.
struct Hypervisor {
    stop: Arc<AtomicBool>,
    machines: Arc<Mutex<BTreeMap<String, Machine>>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Hypervisor {
    fn start(session: Session, admin: Session, wire: Wire, home: PathBuf) -> Self {
        let (stop, machines) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<BTreeMap<String, Machine>>>::default());
        let (is_over, all) = (stop.clone(), machines.clone());
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            while !is_over.load(Ordering::Relaxed) {
                if let Ok(servers) = runtime.block_on(session.compute().list_servers(&ServerFilter::default())) {
                    let active: Vec<&Server> = servers.iter().filter(|server| server.status == "ACTIVE").collect();
                    let mut machines = all.lock().unwrap();
                    let gone = machines.extract_if(.., |name, _| !active.iter().any(|server| server.name == *name));
                    gone.for_each(|(_, machine)| machine.destroy());
                    for server in active {
                        if machines.contains_key(&server.name) {
                            continue;
                        }
                        let user_data = runtime.block_on(admin.compute().show_user_data(&server.id));
                        let Ok(Some(user_data)) = user_data else { continue };
                        machines.insert(server.name.clone(), Machine::boot(&wire, &home, server, &user_data));
                    }
                }
                thread::sleep(Duration::from_millis(300));
            }
            std::mem::take(&mut *all.lock().unwrap()).into_values().for_each(Machine::destroy);
        });
        Self { stop, machines, thread: Some(thread) }
    }
}

impl Drop for Hypervisor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

/// A network behind a router to the outside, which is the only one of the project.
async fn create_router(session: &Session, range: &str) -> String {
    let network = session.network();
    let inner = network.create_network("machines", "").await.expect("create a network").id;
    let subnet = network.create_subnet(&inner, "machines", range).await.expect("create a subnet").id;
    let all = network.list_networks().await.expect("list networks");
    let public = all.iter().find(|network| network.external).map(|network| network.id.clone());
    let router = network.create_router("router", public.as_deref()).await.expect("create a router").id;
    network.add_router_interface(&router, &subnet).await.expect("add the subnet to the router");
    router
}

#[test]
fn machines_of_a_kluster_join_are_replaced_and_leave_nothing_but_a_receipt() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (project, wire) = (runtime.block_on(Project::create()), Wire::new());
    let router = runtime.block_on(create_router(&project.session, &format!("{}.0/24", wire.prefix)));
    let admin = Session::new(CloudsFile::read(Some(&clouds_file())).unwrap().cloud(Some("admin")).unwrap()).unwrap();
    // Pods of the image `host` see what is on the root file system alone.
    let program = tempfile::Builder::new().prefix("mainstay-test-").tempdir_in("/opt").expect("make a directory");
    let (copy, config) = (program.path().join("mainstay"), program.path().join("clouds.yaml"));
    fs::copy(env!("CARGO_BIN_EXE_mainstay"), &copy).expect("copy the program");
    fs::write(&config, &project.yaml).expect("write clouds.yaml");
    let flags = ["--cloud-config", config.to_str().unwrap(), "--kluster-program", copy.to_str().unwrap()];
    let k = Kubectl::of(Version::V1_32, Cluster::with_pods(&flags));
    let home = tempfile::Builder::new().prefix("mainstay-test-").tempdir().expect("make a directory");
    let hypervisor = Hypervisor::start(project.session.clone(), admin, wire, home.path().to_owned());

    k.apply(
        "
apiVersion: mainstay.dev/v1
kind: Kluster
metadata: {name: berlin}
spec:
  clusterCIDR: 100.64.0.0/16
  nodePools:
  - {name: small, size: 2, flavor: m1.tiny, image: tiny, labels: {team: a}, taints: [{key: gpu, value: '1', effect: NoSchedule}]}
",
    );
    wait_until(&k, "", "the Kluster runs", || k.value("kluster berlin", "{.status.phase}") == "Running");
    k.ok("wait --for=condition=Ready kluster/berlin --timeout=60s");
    let kubeconfig = k.ok("get secret berlin-kubeconfig -o 'go-template={{.data.kubeconfig | base64decode}}'");
    let file = k.cluster.home().join("berlin.kubeconfig");
    fs::write(&file, kubeconfig).expect("write the kubeconfig");
    let own = format!("--kubeconfig {}", file.display());
    let nodes = || -> Vec<Value> {
        let listed = k.run(&format!("{own} get nodes -o json")).stdout;
        let listed: Value = serde_json::from_str(&listed).unwrap_or_default();
        listed["items"].as_array().cloned().unwrap_or_default()
    };
    let has_condition = |node: &Value, kind: &str, status: &str| {
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|condition| condition["type"] == kind && condition["status"] == status)
    };
    // A machine that is ready, and to whose pods the router leads.
    let works =
        |node: &Value| has_condition(node, "Ready", "True") && has_condition(node, "NetworkUnavailable", "False");
    wait_until(&k, &own, "both machines have joined", || nodes().iter().filter(|node| works(node)).count() == 2);
    wait_until(&k, &own, "the pool's status", || k.value("kluster berlin", "{.status.nodePools[0].healthy}") == "2");
    for node in nodes() {
        let (labels, taints) = (&node["metadata"]["labels"], node["spec"]["taints"].to_string());
        assert_eq!((&labels["team"], &labels["ccloud.sap.com/nodepool"]), (&json!("a"), &json!("small")), "{labels}");
        assert_eq!(labels["kubernikus.cloud.sap/template-version"], "9");
        assert!(taints.contains("\"gpu\"") && taints.contains("NoSchedule"), "{taints}");
    }
    let routes = || {
        let found = runtime.block_on(project.session.network().show_router(&router)).expect("read the router");
        let mut routes: Vec<String> =
            found.expect("the router").routes.into_iter().map(|route| route.destination).collect();
        routes.sort();
        routes
    };
    let ranges = || {
        let mut ranges: Vec<String> =
            nodes().iter().filter_map(|node| Some(node["spec"]["podCIDR"].as_str()?.to_owned())).collect();
        ranges.sort();
        ranges
    };
    assert_eq!(routes(), ranges());

    // What somebody takes off a Node stays off, also when its agent starts anew.
    let names: Vec<String> =
        nodes().iter().filter_map(|node| Some(node["metadata"]["name"].as_str()?.to_owned())).collect();
    k.ok(&format!("{own} label node {} team-", names[0]));
    k.ok(&format!("{own} taint node {} gpu-", names[0]));
    // Its status is written every five minutes, its Lease every few seconds.
    let lease =
        || k.run(&format!("{own} -n kube-node-lease get lease {} -o jsonpath={{.spec.renewTime}}", names[0])).stdout;
    hypervisor.machines.lock().unwrap().get_mut(&names[0]).expect("a machine").restart_agent();
    wait_until(&k, &own, "its agent runs again", || hypervisor.machines.lock().unwrap()[&names[0]].starts() == 2);
    let before = lease();
    wait_until(&k, &own, "the agent renewed its Lease", || lease() != before);
    let node: Value = serde_json::from_str(&k.ok(&format!("{own} get node {} -o json", names[0]))).expect("a node");
    assert!(
        node["metadata"]["labels"]["team"].is_null() && !node["spec"]["taints"].to_string().contains("gpu"),
        "{node}"
    );

    // The cloud loses a server: another one takes its place, and its Node and its route go.
    let servers =
        runtime.block_on(project.session.compute().list_servers(&ServerFilter::default())).expect("list servers");
    let lost = servers.iter().find(|server| server.name == names[1]).expect("a server");
    runtime.block_on(project.session.compute().delete_server(&lost.id)).expect("delete a server");
    wait_until(&k, &own, "another machine in its place", || {
        let nodes = nodes();
        nodes.iter().filter(|node| works(node)).count() == 2
            && nodes.iter().all(|node| node["metadata"]["name"] != *names[1])
    });
    wait_until(&k, &own, "the routes of those two", || routes() == ranges());

    k.ok("delete kluster berlin --wait=false");
    wait_until(&k, &own, "the Kluster is gone", || k.run("get kluster berlin").code != 0);
    let servers =
        runtime.block_on(project.session.compute().list_servers(&ServerFilter::default())).expect("list servers");
    assert_eq!(servers.iter().map(|server| server.name.as_str()).collect::<Vec<_>>(), [""; 0]);
    assert_eq!(routes(), [""; 0]);
    assert_eq!(k.ok("get cloudresources -o name"), "");
    let receipts = k.json("get teardownreceipts -o json");
    let status = &receipts["items"][0]["status"];
    assert_eq!(status["result"], "Complete", "{status}");
    let items = status["items"].as_array().expect("items");
    let count = |resource: &str| items.iter().filter(|item| item["resource"] == resource).count();
    assert_eq!((count("Server"), count("Route")), (2, 2), "{status}");
    assert!(items.iter().all(|item| item["gone"].is_string()), "{status}");
}
