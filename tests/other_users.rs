//! What other users of the machine can do with our files: nothing, whatever the umask of whoever started us; and containers
//! that run as any user can still do all that they need.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use mainstay_testing::Daemon;

use crate::harness::{
    Cluster, Kubectl, PATIENCE, Version,
    command::{self, Output},
    eventually, host,
};

const NOBODY: u32 = 65534;

const VOLUMES: &str = "[{name: secret, secret: {secretName: s}}, {name: map, configMap: {name: m}}, \
    {name: disk, emptyDir: {}}, {name: memory, emptyDir: {medium: Memory}}]";

const MOUNTS: &str = "[{name: secret, mountPath: /v/secret}, {name: map, mountPath: /v/map}, \
    {name: disk, mountPath: /v/disk}, {name: memory, mountPath: /v/memory}]";

const PODS: &str = r#"
apiVersion: v1
kind: Secret
metadata: {name: s}
stringData: {password: hunter2, script: "echo ran"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: m}
data: {key: value}
---
apiVersion: v1
kind: Pod
metadata: {name: root}
spec:
  terminationGracePeriodSeconds: 0
  volumes: VOLUMES
  containers:
  - name: c
    image: host
    command: [sh, -c, 'for v in disk memory; do cp /usr/bin/id /v/$v/x && chmod 4755 /v/$v/x; done; echo of the pod > /dev/shm/own; umask; sleep 1000']
    env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: s, key: password}}}]
    volumeMounts: MOUNTS
---
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Never
  securityContext: {runAsUser: 1234, runAsGroup: 1234}
  volumes: VOLUMES
  containers:
  - name: c
    image: host
    workingDir: /made/for/it
    volumeMounts: MOUNTS
    command:
    - sh
    - -exc
    - |
      grep hunter2 /v/secret/password
      sh /v/secret/script
      test ! -w /v/secret
      grep value /v/map/key
      test -s /var/run/secrets/kubernetes.io/serviceaccount/token
      grep nameserver /etc/resolv.conf
      grep user /etc/hosts /etc/hostname
      echo x > /v/disk/x
      echo x > /v/memory/x
      echo x > /dev/shm/x
      test "$(umask)" = 0022
      ls /sys/fs/cgroup/* > /dev/null
      pwd
      echo last words > /dev/termination-log
"#;

/// A cluster whose data directory lies where everybody could get to it.
fn start(umask: &'static str) -> Kubectl {
    let k = Kubectl::of(Version::V1_32, Cluster::with_pods_and_umask(umask, &[]));
    fs::set_permissions(k.cluster.home(), Permissions::from_mode(0o755)).expect("open the directory above");
    k
}

fn run_pods(k: &Kubectl) {
    eventually("service accounts are there", || (k.run("get serviceaccount default").code == 0).then_some(()));
    k.create(&PODS.replace("VOLUMES", VOLUMES).replace("MOUNTS", MOUNTS));
    eventually("the user's pod ends", || {
        let phase = k.value("pod user", "{.status.phase}");
        assert_ne!(phase, "Failed", "{}\n{}", k.ok("logs user"), k.ok("describe pod user"));
        (phase == "Succeeded").then_some(())
    });
    eventually("root's pod has set its stage", || (k.run("logs root").stdout.trim() == "0022").then_some(()));
    let message = k.value("pod user", "{.status.containerStatuses[0].state.terminated.message}");
    assert_eq!(message.trim(), "last words");
}

fn run_dir(data_dir: &Path) -> PathBuf {
    Path::new("/run").join(host::instance(data_dir))
}

fn as_nobody(program: &Path, arguments: &[&Path]) -> Output {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".into()]);
    // setpriv itself still has root's capabilities when it looks for a program.
    command.args(["sh", "-c", "exec \"$@\"", "sh"]).arg(program).args(arguments).current_dir("/");
    command::run(command, &format!("{} as nobody", program.display()), "", PATIENCE)
}

/// Others can read, write or run nothing by its path, and could not if a directory above were open, either.
#[track_caller]
fn assert_closed(roots: &[&Path]) {
    let accessible = Command::new("setpriv")
        .args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".into(), "find".into()])
        .args(roots)
        .args(["(", "-readable", "-o", "-writable", "-o", "-executable", ")", "-not", "-type", "l"])
        .current_dir("/")
        .output()
        .expect("run find as nobody");
    let mut open: Vec<String> = String::from_utf8_lossy(&accessible.stdout).lines().map(str::to_owned).collect();
    for root in roots {
        collect_open(root, Path::new(""), &mut open);
    }
    assert!(open.is_empty(), "open to others: {open:#?}");
}

fn collect_open(root: &Path, below: &Path, open: &mut Vec<String>) {
    let parts: Vec<&str> = below.iter().map(|part| part.to_str().expect("our names are UTF-8")).collect();
    let of_containers = match parts[..] {
        ["shm", _] | ["volumes", _] | ["agent", "pods", _, "volumes" | "etc", _] => true,
        ["agent", "pods", _, "subpaths" | "containers", _, _] => true,
        ["runtime", "images", "empty"] | ["runtime", "images", "layers", _, "fs"] => true,
        ["runtime", "images", "rootfs", _, "upper" | "work" | "merged"] => true,
        // Records of the library that makes containers.
        ["runtime", "sandboxes", _, "containers", _, "oci", _] => true,
        _ => false,
    };
    let path = if parts.is_empty() { root.to_owned() } else { root.join(below) };
    let Ok(found) = fs::symlink_metadata(&path) else { return };
    if of_containers || found.is_symlink() {
        return;
    }
    if found.mode() & 0o077 != 0 {
        open.push(format!("{} {:04o}", path.display(), found.mode() & 0o7777));
    }
    for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
        collect_open(root, &below.join(entry.file_name()), open);
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).mode() & 0o7777
}

#[test]
fn nothing_of_ours_is_open_to_others_under_any_umask() {
    let mut k = start("0000");
    run_pods(&k);
    let data = k.cluster.data_dir();
    let run = run_dir(&data);
    assert_closed(&[&data, &run]);

    // What a container can leave in a volume.
    let volumes = data.join("agent/pods").join(k.value("pod root", "{.metadata.uid}")).join("volumes");
    for volume in ["disk", "memory"] {
        let planted = volumes.join(volume).join("x");
        assert_eq!(mode(&planted), 0o4755, "the container did its part");
        let output = as_nobody(&planted, &[]);
        assert!(output.code != 0 && !output.stdout.contains("euid=0"), "{output}");
    }
    for closed in [volumes.join("secret/injected"), run.join("shm/injected")] {
        assert_ne!(as_nobody(Path::new("/usr/bin/touch"), &[&closed]).code, 0, "{}", closed.display());
    }
    // Not even for those who are behind the closed door.
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("read the mounts");
    let of = |path: &Path| {
        let path = path.canonicalize().expect("it is there");
        let line = mounts.lines().find(|line| line.split(' ').nth(4) == path.to_str());
        line.unwrap_or_else(|| panic!("{} is not a mount", path.display())).split(' ').nth(5).expect("it has options")
    };
    let shm = fs::read_dir(run.join("shm")).expect("list pods' shared memory").flatten().next().expect("there is one");
    for path in [volumes.join("secret"), volumes.join("memory"), shm.path()] {
        let options: Vec<&str> = of(&path).split(',').collect();
        assert!(options.contains(&"nosuid") && options.contains(&"nodev"), "{}: {options:?}", path.display());
    }
    assert_eq!(mode(&volumes.join("secret")), 0o755, "nobody but us writes to it");
    assert_eq!(mode(&volumes.join("map")), 0o755);

    let backup = k.cluster.home().join("backup");
    let saved = |k: &Kubectl| {
        let _ = fs::remove_file(&backup);
        k.cluster.mainstay("backup", backup.to_str().expect("it is UTF-8")).ok();
        mode(&backup)
    };
    assert_eq!(saved(&k), 0o600, "from the running server");

    // As an earlier version left them.
    k.cluster.kill();
    assert_eq!(saved(&k), 0o600, "from the files");
    for (path, mode) in
        [(&data, 0o755), (&run, 0o755), (&run.join("s"), 0o777), (&data.join("store/store.db-wal"), 0o644)]
    {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    k.cluster.start_again();
    assert_closed(&[&data, &run]);
    let log = k.cluster.log();
    for path in [&data, &run] {
        let named = |line: &&str| line.contains(&format!("path={} ", path.display())) && line.contains("mode=\"0755\"");
        let lines: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).filter(named).collect();
        assert_eq!(lines.len(), 1, "{}:\n{log}", path.display());
    }
    assert_eq!(k.ok("exec root -- cat /dev/shm/own"), "of the pod");

    k.cluster.kill();
    k.cluster.start_again();
    assert!(!k.cluster.log().contains("open to other users"), "{}", k.cluster.log());
}

#[test]
fn pods_of_any_user_run_under_a_closed_umask() {
    run_pods(&start("0077"));
}

#[test]
fn a_store_that_was_left_open_is_closed_with_one_warning() {
    let mut cluster = Cluster::start();
    let data = cluster.data_dir();
    cluster.kill(); // leaves a write-ahead log
    let store = data.join("store");
    for (path, mode) in
        [(&data, 0o755), (&store, 0o755), (&store.join("store.db"), 0o644), (&store.join("store.db-wal"), 0o644)]
    {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    cluster.start_again();
    assert_closed(&[&data]);
    let log = cluster.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("open to other users")).collect();
    let [line] = lines[..] else { panic!("not one warning:\n{log}") };
    assert!(line.contains("WARN") && line.contains(&format!("path={} mode=\"0755\"", data.display())), "{line}");
}

/// A machine that is no server: `mainstay agent` with a pod from a file.
struct Agent {
    daemon: Daemon,
    dir: tempfile::TempDir,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.daemon.kill();
        let mut down = Command::new(env!("CARGO_BIN_EXE_mainstay"));
        let down = down.arg("down").arg("--data-dir").arg(self.dir.path().join("data")).stdout(Stdio::null()).status();
        assert!(std::thread::panicking() || down.is_ok_and(|status| status.success()), "mainstay down failed");
    }
}

#[test]
fn an_agents_machine_is_closed_too() {
    let dir = tempfile::Builder::new().prefix("mainstay-test-").tempdir().expect("make a directory");
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("open the directory above");
    let manifests = dir.path().join("manifests");
    fs::create_dir(&manifests).expect("make a directory");
    let pod = "
apiVersion: v1
kind: Pod
metadata: {name: static}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: v, emptyDir: {}}]
  containers:
  - {name: c, image: host, command: [sh, -c, 'cp /usr/bin/id /v/x; chmod 4755 /v/x; trap \"exit 0\" TERM; while :; do sleep 0.1; done'], volumeMounts: [{name: v, mountPath: /v}]}
";
    fs::write(manifests.join("pod.yaml"), pod).expect("write a manifest");
    let data = dir.path().join("data");
    let mut command = Command::new("sh");
    command
        .args(["-c", "umask 0000; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_mainstay"), "agent", "--agent-port", "0"])
        .args(["--evict-disk", "0", "--node-name", "here", "--data-dir"])
        .arg(&data)
        .arg("--static-pods")
        .arg(&manifests);
    let agent = Agent { daemon: Daemon::spawn(command, &dir.path().join("agent.log")), dir };
    let planted = eventually("the pod has planted its program", || {
        let pods = fs::read_dir(data.join("agent/pods")).ok()?.flatten();
        pods.map(|pod| pod.path().join("volumes/v/x")).find(|path| path.exists() && mode(path) == 0o4755)
    });
    assert_closed(&[&data, &run_dir(&data)]);
    assert_ne!(as_nobody(&planted, &[]).code, 0);
    let sockets = fs::read_dir(run_dir(&data).join("s")).expect("list sockets").flatten();
    assert!(sockets.into_iter().any(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket())), "the shim has one");
    drop(agent);
}

#[test]
fn a_machine_that_hides_its_cgroups_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().expect("make a directory");
    let mut command = Command::new("unshare");
    // As `ip netns exec` does it.
    command
        .args(["--mount", "sh", "-c", "umount -l /sys && mount -t sysfs none /sys && exec \"$@\"", "sh"])
        .args([env!("CARGO_BIN_EXE_mainstay"), "agent", "--static-pods", "/nowhere", "--agent-port", "0", "--data-dir"])
        .arg(dir.path().join("data"));
    let text = command::run(command, "mainstay agent without cgroups", "", PATIENCE).refused();
    assert!(text.contains("/sys/fs/cgroup/cgroup.procs is missing") && text.contains("nsenter --net"), "{text}");
    assert!(!text.contains("nftables") && !text.contains("overlayfs"), "those are there: {text}");
}

#[test]
fn a_second_process_is_refused_before_it_changes_anything() {
    let cluster = Cluster::start();
    let kubeconfig = fs::metadata(cluster.kubeconfig()).expect("it is there");
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    command.args(["server", "--listen", "127.0.0.1:0", "--data-dir"]).arg(cluster.data_dir());
    let text = command::run(command, "a second server", "", PATIENCE).refused();
    assert!(text.contains("runs here already"), "{text}");
    let now = fs::metadata(cluster.kubeconfig()).expect("it is there");
    assert_eq!((now.ino(), now.mtime_nsec()), (kubeconfig.ino(), kubeconfig.mtime_nsec()));
}

#[test]
fn a_data_directory_that_another_user_made_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().expect("make a directory");
    for (made, theirs) in [("own", "own"), ("ours", "ours/pki")] {
        let (data, theirs) = (dir.path().join(made), dir.path().join(theirs));
        fs::create_dir_all(&theirs).expect("make it");
        std::os::unix::fs::chown(&theirs, Some(NOBODY), Some(NOBODY)).expect("give it away");
        let mut up = Command::new(env!("CARGO_BIN_EXE_mainstay"));
        up.args(["server", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&data);
        let refused = command::run(up, "mainstay server", "", PATIENCE);
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        let expected = format!("{} belongs to user {NOBODY}", theirs.display());
        assert!(refused.stderr.contains(&expected) && refused.stderr.contains("chown -R"), "{}", refused.stderr);
        assert_eq!(mode(&theirs), 0o755);
        assert!(!data.join("mainstay.pid").exists());
    }
}

#[test]
fn a_token_does_not_stay_on_the_command_line() {
    let dir = tempfile::Builder::new().prefix("mainstay-test-").tempdir().expect("make a directory");
    let token = format!("abcdef.0123456789abcdef.{}", "0".repeat(64));
    // Nobody answers there; it goes on trying.
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    command
        .args(["agent", "--server", "https://127.0.0.1:1", "--token", &token, "--node-name", "here", "--data-dir"])
        .arg(dir.path().join("data"));
    let agent = Agent { daemon: Daemon::spawn(command, &dir.path().join("agent.log")), dir };
    let of_process = PathBuf::from(format!("/proc/{}", agent.daemon.pid()));
    eventually("the data directory is taken", || agent.dir.path().join("data/mainstay.pid").exists().then_some(()));
    let line = fs::read_to_string(of_process.join("cmdline")).expect("read the command line");
    assert!(line.contains("--node-name\0here") && !line.contains("0123456789abcdef"), "{line}");
    let environment = fs::read_to_string(of_process.join("environ")).expect("root reads the environment");
    assert!(environment.contains(&token), "it is not lost");
    assert_ne!(as_nobody(Path::new("/bin/cat"), &[&of_process.join("environ")]).code, 0);
    drop(agent);
}
