//! `mainstay upgrade`: another program in place of the one that runs, while pods serve requests. Takes root.

use std::{
    fs::{self, OpenOptions},
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::harness::{
    Cluster, Kubectl, Version,
    command::{Output, run},
    eventually,
};

const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1 # the program has no handler for SIGTERM
      containers:
      - name: c
        image: host
        command: [python3, -c, "import http.server as h; h.ThreadingHTTPServer(('', 80), h.SimpleHTTPRequestHandler).serve_forever()"]
        workingDir: /usr/share
        readinessProbe: {tcpSocket: {port: 80}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80}]
"#;

/// A copy of the binary, small, with something behind its end that makes it another file.
fn copy_program(to: &Path, mark: &str) {
    let stripped = Command::new("strip").arg("-o").arg(to).arg(env!("CARGO_BIN_EXE_mainstay")).status();
    if !stripped.is_ok_and(|status| status.success()) {
        fs::copy(env!("CARGO_BIN_EXE_mainstay"), to).expect("copy the binary");
    }
    let mut file = OpenOptions::new().append(true).open(to).expect("open the copy");
    file.write_all(mark.as_bytes()).expect("mark the copy");
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).expect("make it a program");
}

/// A program that says all the right things and then does not do what it is for.
fn broken_program(to: &Path, body: &str) {
    let source = to.with_extension("c");
    let text = format!(
        "#include <stdio.h>\n#include <string.h>\n#include <unistd.h>\nint main(int n, char **a) {{\n\
         if (n > 1 && !strcmp(a[1], \"--version\")) {{ puts(\"mainstay 9.9.9\"); return 0; }}\n\
         if (n > 1 && !strcmp(a[1], \"check-data\")) return 0;\n{body}\n}}\n"
    );
    fs::write(&source, text).expect("write a source file");
    let built = Command::new("cc").arg("-o").arg(to).arg(&source).status();
    assert!(built.expect("run cc").success(), "cc failed");
}

struct Setting {
    k: Kubectl,
    programs: tempfile::TempDir,
    installed: PathBuf,
    service: SocketAddr,
}

impl Setting {
    fn new() -> Self {
        let programs = tempfile::Builder::new().prefix("mainstay-test-").tempdir().expect("make a directory");
        let installed = programs.path().join("mainstay");
        copy_program(&installed, "one");
        let k = Kubectl::of(Version::V1_32, Cluster::with_pods_of(&installed, &[]));
        k.create(WEB);
        k.ok("rollout status deployment web --timeout=60s");
        let service = format!("{}:80", k.value("service web", "{.spec.clusterIP}")).parse().expect("an address");
        eventually("the Service answers", || get(service).ok());
        let setting = Self { k, programs, installed, service };
        setting.wait_until_ready();
        setting
    }

    fn wait_until_ready(&self) {
        let report = self.k.cluster.data_dir().join("process.json");
        eventually("the process is ready", || {
            fs::read_to_string(&report).ok()?.contains("\"ready\":true").then_some(())
        });
    }

    fn upgrade(&self, binary: &Path, timeout: &str) -> Output {
        let mut command = Command::new(&self.installed);
        command.arg("upgrade").arg("--binary").arg(binary).arg("--data-dir").arg(self.k.cluster.data_dir());
        command.args(["--timeout", timeout]);
        run(command, "mainstay upgrade", "", Duration::from_secs(180))
    }

    /// Uids, restart counts and containers of all pods.
    fn pods(&self) -> Vec<(Value, Value, Value)> {
        let list: Value = serde_json::from_str(&self.k.ok("get pods -l app=web -o json")).expect("a list");
        let container = |pod: &Value, field: &str| pod["status"]["containerStatuses"][0][field].clone();
        let each = |pod: &Value| {
            (pod["metadata"]["uid"].clone(), container(pod, "restartCount"), container(pod, "containerID"))
        };
        list["items"].as_array().expect("items").iter().map(each).collect()
    }
}

fn get(address: SocketAddr) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).map_err(text)?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(text)?;
    stream.write_all(b"HEAD / HTTP/1.0\r\n\r\n").map_err(text)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(text)?;
    if answer.starts_with("HTTP/1.0 200") { Ok(()) } else { Err(format!("{answer:?}")) }
}

/// Calls a Service without a pause until it is asked for the outcome.
struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(usize, Vec<String>)>,
}

impl Load {
    fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut calls, mut failures, began) = (0, Vec::new(), Instant::now());
            while !stopped.load(Ordering::Relaxed) {
                calls += 1;
                if let Err(error) = get(address) {
                    failures.push(format!("after {:.1} s: {error}", began.elapsed().as_secs_f64()));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            (calls, failures)
        });
        Self { stop, thread }
    }

    #[track_caller]
    fn assert_unharmed(self) {
        self.stop.store(true, Ordering::Relaxed);
        let (calls, failures) = self.thread.join().expect("the load");
        assert!(calls > 20, "{calls} calls");
        assert!(failures.is_empty(), "{} of {calls} calls failed: {failures:#?}", failures.len());
    }
}

#[test]
fn an_upgrade_and_the_way_back_interrupt_neither_pods_nor_their_clients() {
    let setting = Setting::new();
    let (before, first) = (setting.pods(), setting.programs.path().join("first"));
    fs::copy(&setting.installed, &first).expect("keep the first program");
    let second = setting.programs.path().join("second");
    copy_program(&second, "two");
    let load = Load::start(setting.service);
    for (number, program) in [&second, &first, &second].into_iter().enumerate() {
        let said = setting.upgrade(program, "60s").ok();
        assert!(said.contains("runs after") && said.contains("mainstay.old"), "{said}");
        assert_eq!(fs::read(&setting.installed).unwrap(), fs::read(program).unwrap(), "upgrade {number}");
        assert_eq!(setting.pods(), before, "upgrade {number}");
    }
    // Right after, the machine takes pods.
    setting.k.ok("scale deployment web --replicas=3");
    setting.k.ok("rollout status deployment web --timeout=30s");
    load.assert_unharmed();
    let said = setting.upgrade(&second, "60s").ok();
    assert!(said.contains("nothing to do"), "{said}");
    // What the shims of before leave when their pods end is not kept as zombies.
    setting.k.ok("delete deployment web --timeout=60s");
    eventually("no pod is left", || setting.k.ok("get pods -o name").is_empty().then_some(()));
    let stat = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let own = crate::harness::host::of_instance(&setting.k.cluster.data_dir());
    assert!(own.iter().all(|pid| !stat(*pid).contains(") Z ")), "zombies among {own:?}");
}

#[test]
fn a_program_that_ends_or_never_gets_ready_is_replaced_by_the_old_one() {
    let setting = Setting::new();
    let (before, old) = (setting.pods(), fs::read(&setting.installed).unwrap());
    let load = Load::start(setting.service);
    for (name, body, why) in [("ends", "return 3;", "its process ended"), ("hangs", "for (;;) pause();", "has not")] {
        let program = setting.programs.path().join(name);
        broken_program(&program, body);
        let output = setting.upgrade(&program, "5s");
        assert_eq!(output.code, 1, "{output}");
        assert!(output.stderr.contains(why), "{output}");
        assert!(output.stderr.contains("went back to Mainstay 0."), "{output}");
        assert_eq!(fs::read(&setting.installed).unwrap(), old);
        setting.wait_until_ready();
        assert_eq!(setting.pods(), before, "{name}");
    }
    load.assert_unharmed();
}

#[test]
fn what_is_no_mainstay_or_too_old_for_the_data_is_refused_and_nothing_happens() {
    let setting = Setting::new();
    let (before, old) = (setting.pods(), fs::read(&setting.installed).unwrap());
    let pid = fs::read_to_string(setting.k.cluster.data_dir().join("mainstay.pid")).unwrap();
    let script = setting.programs.path().join("script");
    fs::write(&script, "#!/bin/sh\necho mainstay 1.0.0\nexit 0\n").unwrap();
    let refused = |binary: &Path, why: &str| {
        let output = setting.upgrade(binary, "5s");
        assert!(output.code == 1 && output.stderr.contains(why), "{output}");
    };
    refused(&script, "no ELF file");
    refused(Path::new("/bin/true"), "is not a Mainstay");
    refused(&setting.programs.path().join("missing"), "No such file");
    let formats = setting.k.cluster.data_dir().join("formats.json");
    let known = fs::read_to_string(&formats).unwrap();
    fs::write(&formats, known.replace("sandbox\":1", "sandbox\":7").replace("0.1.0", "8.8.8")).unwrap();
    let other = setting.programs.path().join("other");
    copy_program(&other, "other");
    refused(&other, "the record of a sandbox has format 7");
    fs::write(&formats, known).unwrap();
    assert_eq!(fs::read(&setting.installed).unwrap(), old);
    assert_eq!(fs::read_to_string(setting.k.cluster.data_dir().join("mainstay.pid")).unwrap(), pid);
    assert_eq!(setting.pods(), before);
}

#[test]
fn a_data_directory_of_a_later_version_is_refused_by_a_start_and_left_as_it_is() {
    let mut cluster = Cluster::start();
    assert!(cluster.terminate().success());
    let formats = cluster.data_dir().join("formats.json");
    let newer =
        fs::read_to_string(&formats).unwrap().replace("store file\":1", "store file\":2").replace("0.1.0", "7.0.0");
    fs::write(&formats, &newer).unwrap();
    let said = cluster.mainstay_alone("server").refused();
    assert!(said.contains("the store file has format 2") && said.contains("use Mainstay 7.0.0"), "{said}");
    assert_eq!(fs::read_to_string(&formats).unwrap(), newer);
}
