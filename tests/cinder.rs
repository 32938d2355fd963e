//! Pods that use volumes of a real Cinder: a file outlives its pod, its agent and a move to another machine.
//!
//! Nova has a fake hypervisor here, so the test plays it: a disk that Nova shows at a server is a loop device of this machine, under the name that a hypervisor gives it.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mainstay_cloud::openstack::{
    Session,
    compute::{NewServer, ServerNetwork},
};
use mainstay_testing::Daemon;
use serde_json::{Value, json};

use crate::{
    harness::{Cluster, Kubectl, Version, eventually},
    openstack::Project,
};

/// Plays the hypervisor of some servers until it is dropped.
struct Hypervisor {
    stop: Arc<AtomicBool>,
    /// What should never happen.
    violations: Arc<Mutex<Vec<String>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A disk that is attached: its device, the directory of names it is in, and its size in GiB.
struct AttachedDisk {
    device: String,
    link: PathBuf,
    size: u64,
}

impl Hypervisor {
    /// `servers` have the directories in which their disks get names; `disks` is where the volumes' files are.
    fn start(session: Session, servers: Vec<(String, PathBuf)>, disks: PathBuf) -> Self {
        let (stop, violations) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<Vec<String>>>::default());
        let thread = std::thread::spawn({
            let (stop, violations) = (stop.clone(), violations.clone());
            move || {
                let runtime = tokio::runtime::Runtime::new().expect("a runtime");
                let mut attached = BTreeMap::new();
                while !stop.load(Ordering::Relaxed) {
                    runtime.block_on(look(&session, &servers, &disks, &mut attached, &violations));
                    std::thread::sleep(Duration::from_millis(100));
                }
                attached.into_values().for_each(detach);
            }
        });
        Self { stop, violations, thread: Some(thread) }
    }
}

impl Drop for Hypervisor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

fn detach(disk: AttachedDisk) {
    let _ = fs::remove_file(&disk.link);
    let _ = Command::new("losetup").args(["--detach", &disk.device]).output();
}

async fn look(
    session: &Session,
    servers: &[(String, PathBuf)],
    disks: &Path,
    attached: &mut BTreeMap<(String, String), AttachedDisk>,
    violations: &Mutex<Vec<String>>,
) {
    let mut shown = BTreeMap::new();
    for (server, by_id) in servers {
        let Ok(attachments) = session.compute().list_volume_attachments(server).await else { return };
        for attachment in attachments {
            let Ok(Some(volume)) = session.block_storage().show_volume(&attachment.volume_id).await else { return };
            shown.insert((volume.id, server.clone()), (volume.size, by_id));
        }
    }
    let gone: Vec<_> = attached.keys().filter(|key| !shown.contains_key(key)).cloned().collect();
    for key in gone {
        let disk = attached.remove(&key).unwrap();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        if mounts.lines().any(|line| line.starts_with(&format!("{} ", disk.device))) {
            violations.lock().unwrap().push(format!("volume {} was detached while it was mounted", key.0));
        }
        detach(disk);
    }
    for ((volume, server), (size, by_id)) in shown {
        let file = disks.join(&volume);
        if let Some(disk) = attached.get_mut(&(volume.clone(), server.clone())) {
            if disk.size < size {
                fs::File::options().write(true).open(&file).unwrap().set_len(size << 30).unwrap();
                run("losetup", &["--set-capacity", &disk.device]);
                disk.size = size;
            }
            continue;
        }
        if attached.keys().any(|(other, _)| *other == volume) {
            // One of the two was asked for earlier: the next look is of both as they are then.
            let servers = session.block_storage().show_volume(&volume).await.ok().flatten();
            if servers.is_some_and(|shown| shown.attachments.len() > 1) {
                violations.lock().unwrap().push(format!("volume {volume} is at two servers"));
            }
            continue;
        }
        let disk_file = fs::File::options().create(true).truncate(false).write(true).open(&file).unwrap();
        disk_file.set_len(size << 30).unwrap();
        let device = run("losetup", &["--find", "--show", file.to_str().unwrap()]).trim().to_owned();
        let link = by_id.join(format!("virtio-{}", &volume[..20]));
        symlink(&device, &link).unwrap();
        attached.insert((volume, server), AttachedDisk { device, link, size });
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("run it");
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

async fn create_server(project: &Project, name: &str) -> String {
    let session = &project.session;
    let flavors = session.compute().list_flavors().await.unwrap();
    let images = session.image().list_images(None).await.unwrap();
    let server = NewServer {
        name: name.to_owned(),
        flavor: flavors.iter().find(|flavor| flavor.name == "m1.tiny").expect("a flavor").id.clone(),
        image: images.first().map(|image| image.id.clone()),
        networks: vec![ServerNetwork { network: Some(project.network.clone()), ..ServerNetwork::default() }],
        ..NewServer::default()
    };
    let id = session.compute().create_server(&server).await.expect("create a server");
    mainstay_testing::until("an active server", async || {
        session.compute().show_server(&id).await.unwrap().is_some_and(|server| server.status == "ACTIVE")
    })
    .await;
    id
}

/// A machine of the cluster, in this machine's own network.
struct Machine {
    name: &'static str,
    data: PathBuf,
    by_id: PathBuf,
    agent: Option<Daemon>,
}

impl Machine {
    fn start(cluster: &Cluster, name: &'static str) -> Self {
        let (data, by_id) = (cluster.home().join(name), cluster.home().join(format!("{name}-by-id")));
        fs::create_dir(&by_id).unwrap();
        let mut machine = Self { name, data, by_id, agent: None };
        machine.start_agent(cluster);
        machine
    }

    fn start_agent(&mut self, cluster: &Cluster) {
        let token = cluster.mainstay("token", "create").ok().trim().to_owned();
        let mut agent = Command::new(env!("CARGO_BIN_EXE_mainstay"));
        agent.args(["agent", "--server", cluster.url(), "--token", &token, "--node-name", self.name]);
        agent.args(["--agent-port", "0", "--network", "host", "--evict-disk", "0", "--host-ports", "none"]);
        agent.arg("--disks-by-id").arg(&self.by_id).arg("--data-dir").arg(&self.data);
        let log = cluster.home().join(format!("{}.log", self.name));
        self.agent = Some(Daemon::spawn_with_log_of_before(agent, &log));
    }

    fn kill_agent(&mut self) {
        self.agent.take().expect("it runs").kill();
    }

    /// The mount of the volume, as the kernel has it.
    fn mount_options(&self, handle: &str) -> Option<String> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let point = self.data.join("agent/attached").join(handle).join("mount");
        let line = mounts.lines().find(|line| line.split(' ').nth(1) == point.to_str())?;
        line.split(' ').nth(3).map(str::to_owned)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill();
        }
        let _ = Command::new(env!("CARGO_BIN_EXE_mainstay")).arg("down").arg("--data-dir").arg(&self.data).output();
    }
}

fn pod(name: &str, machine: &str, script: &str) -> String {
    let on = json!({"key": "metadata.name", "operator": "In", "values": [machine]});
    let required = json!({"nodeSelectorTerms": [{"matchFields": [on]}]});
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1, "securityContext": {"fsGroup": 4321},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            "containers": [{"name": "c", "image": "host", "command": ["sh", "-c", script],
                            "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    })
    .to_string()
}

/// Whether agents that are started here may grow a filesystem that is mounted: the kernel asks for CAP_SYS_RESOURCE.
fn can_grow_mounted() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    u64::from_str_radix(effective, 16).unwrap() & (1 << 24) != 0
}

fn phase(kubectl: &Kubectl, pod: &str) -> String {
    kubectl.json(&format!("get pod {pod} -o json"))["status"]["phase"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_file_outlives_its_pod_its_agent_and_a_move_to_another_machine() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let project = runtime.block_on(Project::create());
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("clouds.yaml");
    fs::write(&config, &project.yaml).expect("write clouds.yaml");
    let flags = ["--cloud-config", config.to_str().unwrap(), "--cloud-controllers", "volumes"];
    let kubectl = Kubectl::of(Version::V1_32, Cluster::start_with(&flags));
    let cluster = &kubectl.cluster;
    let mut machines = ["left", "right"].map(|name| Machine::start(cluster, name));
    let mut servers = Vec::new();
    for machine in &machines {
        let server = runtime.block_on(create_server(&project, machine.name));
        eventually("a node", || kubectl.run(&format!("get node {}", machine.name)).code == 0);
        let patch = json!({"spec": {"providerID": format!("openstack:///{server}")}}).to_string();
        kubectl.ok(&format!("patch node {} -p {patch}", machine.name));
        servers.push((server, machine.by_id.clone()));
    }
    let hypervisor = Hypervisor::start(project.session.clone(), servers.clone(), directory.path().to_owned());
    kubectl.apply(
        &json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "cinder-default"},
            "provisioner": "cinder.csi.openstack.org", "allowVolumeExpansion": true,
        })
        .to_string(),
    );
    kubectl.apply(
        &json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "cinder-default",
                     "resources": {"requests": {"storage": "1Gi"}}},
        })
        .to_string(),
    );
    let script = "test -e /data/file || echo hello > /data/file; chmod 666 /data/file; sync; while :; do sleep 1; done";
    kubectl.apply(&pod("writer", "left", script));
    eventually("a pod that runs", || phase(&kubectl, "writer") == "Running");
    eventually("its file", || kubectl.run("exec writer -- cat /data/file").stdout == "hello\n");
    let volume = kubectl.value("pvc data", "{.spec.volumeName}");
    let handle = kubectl.value(&format!("pv {volume}"), "{.spec.csi.volumeHandle}");
    let options = machines[0].mount_options(&handle).expect("it is mounted");
    assert!(options.contains("nosuid") && options.contains("nodev"), "{options}");
    assert!(kubectl.ok("exec writer -- stat -c %g /data").trim() == "4321");
    let in_use = |machine: &str| kubectl.value(&format!("node {machine}"), "{.status.volumesInUse[*]}");
    assert_eq!(in_use("left"), format!("kubernetes.io/csi/cinder.csi.openstack.org^{handle}"));

    // The agent is started anew: nothing is unmounted, and what it had is known.
    machines[0].kill_agent();
    machines[0].start_agent(cluster);
    eventually("its node again", || kubectl.run("exec writer -- true").code == 0);
    assert_eq!(
        kubectl.ok("exec writer -- stat -c %a /data/file").trim(),
        "666",
        "the agent leaves alone what is in volumes"
    );
    // The claim grows while its pod runs.
    let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}).to_string();
    kubectl.ok(&format!("patch pvc data -p {larger}"));
    let is_restarted = !can_grow_mounted();
    if is_restarted {
        // The kernel refuses to grow what is mounted: it grows with the next mount.
        eventually("a larger volume", || kubectl.value(&format!("pv {volume}"), "{.spec.capacity.storage}") == "2Gi");
        kubectl.ok("delete pod writer");
        kubectl.apply(&pod("writer", "left", script));
        eventually("a pod that runs again", || phase(&kubectl, "writer") == "Running");
    }
    eventually("a claim of the new size", || {
        let claim = kubectl.json("get pvc data -o json");
        let is_pending = claim["status"]["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|condition: &Value| condition["type"] == "FileSystemResizePending"));
        claim["status"]["capacity"]["storage"] == "2Gi" && !is_pending
    });
    let blocks = kubectl.ok("exec writer -- stat -f -c %b*%S /data");
    let (blocks, size) = blocks.trim().split_once('*').unwrap();
    let bytes = blocks.parse::<u64>().unwrap() * size.parse::<u64>().unwrap();
    assert!(bytes > 1_700_000_000, "the filesystem has {bytes} bytes");
    assert_eq!(kubectl.ok("exec writer -- cat /data/file").trim(), "hello");
    let restarts = kubectl.value("pod writer", "{.status.containerStatuses[0].restartCount}");
    assert_eq!(restarts, "0");

    // A second machine waits until the first has let go.
    kubectl.apply(&pod("reader", "right", "cat /data/file; while :; do sleep 1; done"));
    eventually("the reason why it waits", || {
        let events = kubectl.ok("get events --field-selector involvedObject.name=reader");
        events.contains("FailedAttachVolume") && events.contains(&volume)
    });
    kubectl.ok("delete pod writer");
    eventually("a pod that runs on the other machine", || phase(&kubectl, "reader") == "Running");
    eventually("the file of the first", || kubectl.run("logs reader").stdout == "hello\n");
    assert_eq!(machines[0].mount_options(&handle), None);
    assert_eq!(in_use("left"), "");
    assert_eq!(in_use("right"), format!("kubernetes.io/csi/cinder.csi.openstack.org^{handle}"));

    kubectl.ok("delete pod reader");
    kubectl.ok("delete pvc data");
    eventually("no attachment", || kubectl.ok("get volumeattachments -o name").is_empty());
    eventually("no volume", || kubectl.ok("get pv -o name").is_empty());
    assert_eq!(runtime.block_on(project.session.block_storage().list_volumes()).unwrap(), []);
    assert_eq!(*hypervisor.violations.lock().unwrap(), [] as [&str; 0]);
    drop(hypervisor);
    for (server, _) in servers {
        runtime.block_on(project.session.compute().delete_server(&server)).unwrap();
    }
}
