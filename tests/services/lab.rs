//! Machines with something to call, and somebody who calls.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use crate::harness::{
    Machines, PATIENCE,
    command::{Output, run},
    eventually, tool,
};

pub struct Lab {
    pub machines: Machines,
    /// A directory that pods of all machines see as `/shared`.
    pub shared: PathBuf,
}

/// One request of a caller, as it noted it.
#[derive(Debug)]
pub struct Request {
    pub began: f64,
    pub took: f64,
    pub answer: Result<String, String>,
}

pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64()
}

/// A program of `tools/test-deps` as a shell calls it, with its libraries.
#[track_caller]
pub fn program(suite: &str, path: &str) -> String {
    let directory = fs::canonicalize(tool(suite)).expect("tools are there");
    let (libraries, program) = (directory.join("libraries"), tool(&format!("{suite}/{path}")));
    format!("LD_LIBRARY_PATH={} {}", libraries.display(), program.display())
}

#[track_caller]
pub fn curl() -> String {
    format!("{} -sS --max-time 10", program("curl", "usr/bin/curl"))
}

#[track_caller]
pub fn dig() -> String {
    program("dns-client", "usr/bin/dig")
}

fn tools() -> PathBuf {
    tool("bin").parent().expect("it is in a directory").to_owned()
}

impl Lab {
    #[track_caller]
    pub fn new(names: &[&str]) -> Self {
        Self::of(Machines::joined(names))
    }

    pub fn of(machines: Machines) -> Self {
        let shared = machines.dir().join("shared");
        fs::create_dir_all(&shared).expect("make a directory");
        Self { machines, shared }
    }

    #[track_caller]
    pub fn kubectl(&self, line: &str) -> String {
        self.try_kubectl(line).ok().trim_end().to_owned()
    }

    #[track_caller]
    pub fn try_kubectl(&self, line: &str) -> Output {
        self.machines.kubectl_within(&line.split(' ').collect::<Vec<_>>(), "", PATIENCE * 3)
    }

    #[track_caller]
    pub fn create(&self, object: &Value) {
        self.machines.kubectl(&["create", "-f", "-"], &object.to_string()).ok();
    }

    /// What runs in a pod: one of the programs of `pods/` with arguments.
    pub fn pod(&self, script: &str, arguments: &[&str]) -> Value {
        let mut command = vec![tool("venv/bin/python").display().to_string(), format!("/pods/{script}")];
        command.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self.container(&command)
    }

    pub fn container(&self, command: &[String]) -> Value {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/services/pods");
        let field =
            |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
        let volumes = [
            ("tools", tools(), tools()),
            ("pods", fs::canonicalize(scripts).expect("scripts"), "/pods".into()),
            ("shared", self.shared.clone(), "/shared".into()),
        ];
        let mounts = volumes.clone().map(|(name, _, path)| json!({ "name": name, "mountPath": path }));
        let volumes = volumes.map(|(name, path, _)| json!({ "name": name, "hostPath": { "path": path } }));
        json!({
            "terminationGracePeriodSeconds": 5,
            "containers": [{
                "name": "c", "image": "host", "command": command,
                "env": [field("NAME", "metadata.name"), field("NODE", "spec.nodeName")],
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        })
    }

    /// A pod of its own on one machine.
    #[track_caller]
    pub fn start_pod(&self, name: &str, machine: &str, mut spec: Value) {
        spec["nodeName"] = machine.into();
        spec["terminationGracePeriodSeconds"] = 1.into();
        let meta = json!({ "name": name, "labels": { "app": name } });
        self.create(&json!({ "apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec }));
        self.kubectl(&format!("wait --for=condition=Ready pod/{name} --timeout=25s"));
    }

    /// A pod that does nothing, from which things are called.
    #[track_caller]
    pub fn start_client(&self, machine: &str) {
        self.start_pod("client", machine, self.container(&["sleep".into(), "100000".into()]));
    }

    /// What a shell in the client says to this.
    #[track_caller]
    pub fn by_client(&self, line: &str) -> Output {
        self.machines.kubectl(&["exec", "client", "--", "sh", "-c", line], "")
    }

    /// So many pods of an app that serve what `pods/web.py` does at port 80, once they are ready.
    #[track_caller]
    pub fn start_web(&self, app: &str, replicas: usize) {
        self.start_web_with(app, replicas, json!({}));
    }

    #[track_caller]
    pub fn start_web_with(&self, app: &str, replicas: usize, more: Value) {
        fs::create_dir_all(self.shared.join("stops")).expect("make a directory");
        let mut pod = self.pod("web.py", &["80", "/shared/stops"]);
        pod["containers"][0]["readinessProbe"] = json!({ "tcpSocket": { "port": 80 }, "periodSeconds": 1 });
        pod["containers"][0]["ports"] = json!([{ "name": "http", "containerPort": 80 }]);
        pod.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.create(&set("Deployment", app, replicas, pod));
        self.serves(app, replicas);
    }

    /// When a pod of `start_web` was asked to stop.
    pub fn stopped_at(&self, pod: &str) -> Option<f64> {
        fs::read_to_string(self.shared.join("stops").join(pod)).ok()?.parse().ok()
    }

    /// Waits until so many pods of an app are ready and the rest are gone.
    #[track_caller]
    pub fn serves(&self, app: &str, count: usize) -> Vec<String> {
        eventually(&format!("{count} pods of {app} serve"), || {
            let (ready, all) = (self.ready_pods(app), self.pods(app).len());
            (ready.len() == count && all == count).then_some(ready)
        })
    }

    pub fn pods(&self, app: &str) -> Vec<String> {
        let output = self.kubectl(&format!("get pods -l app={app} -o jsonpath={{.items[*].metadata.name}}"));
        output.split_whitespace().map(str::to_owned).collect()
    }

    pub fn ready_pods(&self, app: &str) -> Vec<String> {
        let each = r#"{.metadata.name}/{.status.conditions[?(@.type=="Ready")].status}/{.metadata.deletionTimestamp} "#;
        let path = format!("jsonpath={{range .items[*]}}{each}{{end}}");
        let output = self.machines.kubectl(&["get", "pods", "-l", &format!("app={app}"), "-o", &path], "").ok();
        output.split_whitespace().filter_map(|pod| pod.strip_suffix("/True/")).map(str::to_owned).collect()
    }

    /// A Service of an app, and its address.
    #[track_caller]
    pub fn start_service(&self, app: &str, spec: Value) -> String {
        self.start_service_with(app, spec, json!({}))
    }

    #[track_caller]
    pub fn start_service_with(&self, app: &str, spec: Value, annotations: Value) -> String {
        let mut whole = json!({ "selector": { "app": app }, "ports": [{ "name": "http", "port": 80 }] });
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let meta = json!({ "name": app, "annotations": annotations });
        self.create(&json!({ "apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": whole }));
        self.kubectl(&format!("get service {app} -o jsonpath={{.spec.clusterIP}}"))
    }

    #[track_caller]
    pub fn value(&self, what: &str, path: &str) -> String {
        self.kubectl(&format!("get {what} -o jsonpath={path}"))
    }

    /// Calls these from a pod on a machine, again and again. What comes of it is in `requests` of the same name.
    #[track_caller]
    pub fn start_load(&self, name: &str, machine: &str, threads: usize, timeout: Duration, urls: &[&str]) {
        let (file, threads, timeout) =
            (format!("/shared/{name}"), threads.to_string(), timeout.as_secs_f64().to_string());
        let arguments = [&[file.as_str(), &threads, &timeout], urls].concat();
        self.start_pod(name, machine, self.pod("load.py", &arguments));
        eventually("the load has begun", || (self.requests(name).len() > 20).then_some(()));
    }

    /// What a caller has noted so far.
    pub fn requests(&self, name: &str) -> Vec<Request> {
        let noted = fs::read_to_string(self.shared.join(name)).unwrap_or_default();
        let whole = noted.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().filter_map(request).collect()
    }

    /// Those of the requests that failed and began after this.
    pub fn failures(&self, name: &str, since: f64) -> Vec<Request> {
        self.requests(name).into_iter().filter(|request| request.began >= since && request.answer.is_err()).collect()
    }

    /// Waits until so many more requests have been answered.
    #[track_caller]
    pub fn answered(&self, name: &str, more: usize) {
        let answered = || self.requests(name).iter().filter(|request| request.answer.is_ok()).count();
        let before = answered();
        eventually("requests are answered", || (answered() >= before + more).then_some(()));
    }

    /// What a shell on a machine says to this.
    #[track_caller]
    pub fn on(&self, machine: &str, line: &str) -> Output {
        self.machines.shell(machine, line)
    }
}

fn request(line: &str) -> Option<Request> {
    let mut parts = line.splitn(5, ' ');
    let (began, took) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let (_, outcome, output) = (parts.next()?, parts.next()?, parts.next()?.to_owned());
    Some(Request { began, took, answer: if outcome == "ok" { Ok(output) } else { Err(output) } })
}

/// A set of pods that are all alike.
pub fn set(kind: &str, app: &str, replicas: usize, pod: Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": app },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": app } },
            "template": { "metadata": { "labels": { "app": app } }, "spec": pod },
        },
    })
}

/// `kill -9`, `kill -STOP` and the like.
#[track_caller]
pub fn signal(name: &str, pids: &[u32]) {
    let mut command = std::process::Command::new("kill");
    command.arg(format!("-{name}")).args(pids.iter().map(u32::to_string));
    run(command, &format!("kill -{name}"), "", PATIENCE).ok();
}
