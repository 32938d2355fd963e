//! `mainstay up --demo`: three web servers from the machine's own root filesystem, one of them killed and healed, then all three
//! replaced behind an address that stays, in front of whoever watches. The cluster goes on running afterwards.
//!
//! The servers are this very program, mounted into the pods from where it lies: nothing is fetched and nothing need be
//! installed.

mod caller;
pub mod web;

use std::{
    fs,
    net::IpAddr,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, anyhow, bail};
use k8s_openapi::api::core::v1::{Event, Pod, Service};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use mainstay_api::wellknown::namespace;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::Deserialize;
use serde_json::json;

use self::caller::Caller;

const REPLICAS: usize = 3;
const PORT: u16 = 8080;
const SERVICE_PORT: u16 = 80;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Tells the story. Errors say how far it came; they do not end the cluster.
pub async fn run(client: Client, kubeconfig: &Path) -> anyhow::Result<()> {
    let demo = Demo::new(client)?;
    println!();
    println!("Demo: three web servers, made of nothing but this machine and this program.");
    demo.clear().await?;
    let started = Instant::now();
    let addresses = demo.start(started).await?;
    let service = demo.address().await?;
    println!("  Service {NAME} stands for all three at {service}, as {NAME}.default.svc.cluster.local within pods");
    println!();
    demo.heal(&addresses).await?;
    println!();
    demo.replace(service).await?;
    println!();
    println!("Try next, in another terminal:");
    println!("  export KUBECONFIG={}", kubeconfig.display());
    println!("  kubectl get pods -o wide --watch          # keep an eye on them");
    println!("  kubectl logs -f {NAME}-0                  # what it answers");
    println!("  kubectl exec -it {NAME}-0 -- sh           # a shell in its container");
    println!("  curl http://{service}/");
    println!("  kubectl delete pods,services -l app={NAME}");
    println!();
    println!("Ctrl-C leaves the pods running; `mainstay down` ends them and leaves nothing behind.");
    Ok(())
}

const NAME: &str = "demo-web";

struct Demo {
    pods: Api<Pod>,
    services: Api<Service>,
    events: Api<Event>,
    /// This program.
    program: String,
    /// In the arguments of this demo's processes, and of no others.
    token: String,
}

impl Demo {
    fn new(client: Client) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("find this program")?;
        let program = program.to_str().ok_or_else(|| anyhow!("this program lies at a path that is not text"))?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            pods: Api::namespaced(client.clone(), namespace::DEFAULT),
            services: Api::namespaced(client.clone(), namespace::DEFAULT),
            events: Api::namespaced(client, namespace::DEFAULT),
            program: program.to_owned(),
            token: format!("{}-{}", std::process::id(), now.as_nanos()),
        })
    }

    /// Ends the pods of this demo, or of an earlier one.
    async fn clear(&self) -> anyhow::Result<()> {
        let ours = ListParams::default().labels(&format!("app={NAME}"));
        let before = self.pods.list(&ours).await.context("list pods")?.items;
        if before.is_empty() {
            return Ok(());
        }
        let at_once = DeleteParams { grace_period_seconds: Some(1), ..DeleteParams::default() };
        for pod in before.iter().filter_map(|pod| pod.metadata.name.as_deref()) {
            if let Err(error) = self.pods.delete(pod, &at_once).await
                && !is_code(&error, 404)
            {
                return Err(error).context("delete a pod");
            }
        }
        until("the pods of the demo do not end", async || {
            Ok(self.pods.list(&ours).await?.items.is_empty().then_some(()))
        })
        .await
    }

    /// Creates everything and waits until all answer.
    async fn start(&self, started: Instant) -> anyhow::Result<Vec<IpAddr>> {
        match self.services.create(&PostParams::default(), &service()?).await {
            Err(error) if !is_code(&error, 409) => return Err(error).context("create the service"),
            _ => {}
        }
        self.create().await?;
        let mut addresses = Vec::new();
        for number in 0..REPLICAS {
            let name = name(number);
            let (address, answer) = self.answers(&name).await?;
            println!("  {name}  {address}  after {:.2} s: {answer}", started.elapsed().as_secs_f64());
            addresses.push(address);
        }
        Ok(addresses)
    }

    async fn create(&self) -> anyhow::Result<()> {
        for number in 0..REPLICAS {
            let pod = describe(number, &self.program, &self.token)?;
            // The service account of a new namespace takes a moment to appear.
            until("the pods are refused", async || match self.pods.create(&PostParams::default(), &pod).await {
                Ok(_) => Ok(Some(())),
                Err(error) if is_code(&error, 409) => Ok(Some(())),
                Err(error) => Err(error.into()),
            })
            .await?;
        }
        Ok(())
    }

    /// Where the Service answers, once it does.
    async fn address(&self) -> anyhow::Result<IpAddr> {
        until(&format!("the address of Service {NAME} does not answer"), async || {
            let service = self.services.get(NAME).await?;
            let address = service.spec.and_then(|spec| spec.cluster_ip).and_then(|address| address.parse().ok());
            let Some(address) = address else { return Ok(None) };
            Ok(web::ask((address, SERVICE_PORT)).await.ok().map(|_| address))
        })
        .await
    }

    /// Deletes all pods at once and makes others, while somebody calls the Service without a pause.
    async fn replace(&self, service: IpAddr) -> anyhow::Result<()> {
        println!("Replacing all three at once, while somebody calls http://{service}/ without a pause:");
        let caller = Caller::start(service);
        self.clear().await?;
        self.create().await?;
        for number in 0..REPLICAS {
            self.answers(&name(number)).await?;
        }
        self.address().await?;
        let calls = caller.stop().await?;
        println!(
            "  {} calls answered, {} failed; one that came while there was nobody waited {:.0} ms for its answer",
            calls.answered,
            calls.failed,
            calls.longest.as_secs_f64() * 1e3
        );
        if let Some(error) = calls.last_error {
            println!("  the last failure: {error}");
        }
        Ok(())
    }

    /// Kills one of the processes and watches what becomes of its pod.
    async fn heal(&self, addresses: &[IpAddr]) -> anyhow::Result<()> {
        let name = name(1);
        let pid = self.process_of(&name)?;
        println!("Killing {name}: kill -9 {pid}");
        let killed = Instant::now();
        kill(pid, Signal::SIGKILL).with_context(|| format!("kill process {pid}"))?;
        let pod = until(&format!("{name} is not restarted"), async || {
            let pod = self.pods.get(&name).await?;
            Ok((restarts(&pod) > 0 && is_running(&pod)).then_some(pod))
        })
        .await?;
        let restarted = killed.elapsed();
        until(&format!("{name} does not answer again"), async || Ok(web::ask((addresses[1], PORT)).await.ok())).await?;
        println!(
            "  {name}  {}  answers again after {:.0} ms (seen running after {:.0} ms)",
            addresses[1],
            killed.elapsed().as_secs_f64() * 1e3,
            restarted.as_secs_f64() * 1e3
        );
        println!("  why: {}", describe_last_exit(&pod).unwrap_or_else(|| "not reported".to_owned()));
        // Events are written a moment after what they tell of.
        let event = until(&format!("the restart of {name} has no event"), async || {
            Ok(self.events_of(&pod).await.into_iter().find(|event| event.starts_with("HealRestart")))
        })
        .await?;
        println!("  event: {event}");
        Ok(())
    }

    async fn answers(&self, name: &str) -> anyhow::Result<(IpAddr, String)> {
        let found = until(&format!("{name} does not answer"), async || {
            let pod = self.pods.get(name).await?;
            let status = pod.status.as_ref().and_then(|status| status.pod_ip.as_deref());
            let Some(address) = status.and_then(|address| address.parse::<IpAddr>().ok()) else { return Ok(None) };
            Ok(web::ask((address, PORT)).await.ok().map(|answer| (address, answer)))
        })
        .await;
        match found {
            Ok(found) => Ok(found),
            Err(error) => {
                let pod = self.pods.get(name).await.ok();
                let events = match &pod {
                    Some(pod) => self.events_of(pod).await.join("; "),
                    None => String::new(),
                };
                Err(error.context(format!("{} {events}", pod.as_ref().map(state).unwrap_or_default())))
            }
        }
    }

    /// The first process of this pod's container, as the machine sees it.
    fn process_of(&self, name: &str) -> anyhow::Result<Pid> {
        for entry in fs::read_dir("/proc").context("read /proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|pid| pid.parse::<i32>().ok()) else { continue };
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let arguments: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            let says = |argument: &str| arguments.contains(&argument.as_bytes());
            if says(&self.token) && says(name) {
                return Ok(Pid::from_raw(pid));
            }
        }
        bail!("the process of {name} cannot be found")
    }

    async fn events_of(&self, pod: &Pod) -> Vec<String> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let about = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        let mut events = self.events.list(&about).await.map(|list| list.items).unwrap_or_default();
        events.sort_by(|a, b| a.last_timestamp.cmp(&b.last_timestamp));
        events
            .iter()
            .map(|event| {
                let part = |text: &Option<String>| text.clone().unwrap_or_default();
                format!("{}: {}", part(&event.reason), part(&event.message))
            })
            .collect()
    }
}

fn describe(number: usize, program: &str, token: &str) -> anyhow::Result<Pod> {
    let name = name(number);
    let pod = json!({
        "metadata": { "name": name, "labels": { "app": NAME } },
        "spec": {
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 5,
            "containers": [{
                "name": "web",
                "image": mainstay_runtime::images::HOST_IMAGE,
                "imagePullPolicy": "Never",
                "command": ["/mainstay", "demo-web", "--port", PORT.to_string(), "--name", name, "--run", token],
                "ports": [{ "containerPort": PORT }],
                "readinessProbe": { "httpGet": { "port": PORT }, "periodSeconds": 1 },
                "volumeMounts": [{ "name": "program", "mountPath": "/mainstay", "readOnly": true }],
            }],
            "volumes": [{ "name": "program", "hostPath": { "path": program, "type": "File" } }],
        },
    });
    Pod::deserialize(&pod).context("describe a pod")
}

fn name(number: usize) -> String {
    format!("{NAME}-{number}")
}

fn service() -> anyhow::Result<Service> {
    let service = json!({
        "metadata": { "name": NAME, "labels": { "app": NAME } },
        "spec": { "selector": { "app": NAME }, "ports": [{ "port": SERVICE_PORT, "targetPort": PORT }] },
    });
    Service::deserialize(&service).context("describe the service")
}

/// Looks again until there is an answer. The last error is the reason if there never is.
async fn until<T>(what: &str, look: impl AsyncFn() -> anyhow::Result<Option<T>>) -> anyhow::Result<T> {
    let started = Instant::now();
    loop {
        let looked = look().await;
        let late = started.elapsed() > PATIENCE;
        match looked {
            Ok(Some(found)) => return Ok(found),
            Ok(None) if late => bail!("{what} after {PATIENCE:?}"),
            Err(error) if late => return Err(error.context(format!("{what} after {PATIENCE:?}"))),
            Ok(None) | Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

fn container(pod: &Pod) -> Option<&k8s_openapi::api::core::v1::ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

fn restarts(pod: &Pod) -> i32 {
    container(pod).map_or(0, |container| container.restart_count)
}

fn is_running(pod: &Pod) -> bool {
    container(pod).and_then(|container| container.state.as_ref()).is_some_and(|state| state.running.is_some())
}

/// How the container before this one ended.
fn describe_last_exit(pod: &Pod) -> Option<String> {
    let ended = container(pod)?.last_state.as_ref()?.terminated.as_ref()?;
    let reason = ended.reason.as_deref().unwrap_or("ended");
    let signal = match ended.exit_code {
        137 => ", which is signal 9: killed",
        _ => "",
    };
    Some(format!(
        "its process ended with exit code {}{signal} ({reason}); restartPolicy Always started it anew, restart {}",
        ended.exit_code,
        restarts(pod)
    ))
}

/// Where a pod stands that should be further.
fn state(pod: &Pod) -> String {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("unknown");
    let waiting = container(pod).and_then(|container| container.state.as_ref()?.waiting.as_ref());
    let waiting = waiting.map(|waiting| {
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        format!(", {} {}", part(&waiting.reason), part(&waiting.message))
    });
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let node = if node.is_none() { ", given to no machine yet" } else { "" };
    format!("the pod is {phase}{node}{};", waiting.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: serde_json::Value) -> Pod {
        serde_json::from_value(json!({ "metadata": {}, "spec": { "containers": [] }, "status": status })).unwrap()
    }

    #[test]
    fn the_reason_of_a_restart_is_shown() {
        let status = json!({ "containerStatuses": [{
            "name": "web", "image": "host", "imageID": "", "ready": true, "restartCount": 1,
            "state": { "running": {} },
            "lastState": { "terminated": { "exitCode": 137, "reason": "Error" } },
        }]});
        let pod = pod(status);
        assert!(restarts(&pod) == 1 && is_running(&pod));
        let why = describe_last_exit(&pod).unwrap();
        assert!(why.contains("exit code 137") && why.contains("Error") && why.contains("restart 1"), "{why}");
    }

    #[test]
    fn a_pod_that_waits_says_for_what() {
        let status = json!({ "phase": "Pending", "containerStatuses": [{
            "name": "web", "image": "host", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": "ErrImageNeverPull", "message": "not present" } },
        }]});
        let state = state(&pod(status));
        assert!(state.contains("Pending") && state.contains("ErrImageNeverPull not present"), "{state}");
        assert!(state.contains("no machine"), "{state}");
    }

    #[test]
    fn what_is_made_is_what_the_api_knows() {
        let pod = describe(2, "/opt/mainstay", "token").unwrap();
        let spec = pod.spec.unwrap();
        assert_eq!(spec.containers[0].command.as_ref().unwrap()[5], "demo-web-2");
        assert_eq!(spec.volumes.unwrap()[0].host_path.as_ref().unwrap().path, "/opt/mainstay");
        assert_eq!(service().unwrap().spec.unwrap().ports.unwrap()[0].port, 80);
    }
}
