//! `/metrics/cadvisor`: what containers and pods use, under the names and labels that dashboards expect of cAdvisor.
//!
//! A container has a sample with its name; its pod as a whole has one with an empty `container`, and so has the node, with
//! the id `/`. The network belongs to the pod, and only to one that has a network of its own.

use std::{collections::BTreeMap, fmt::Write};

use mainstay_runtime::{ContainerState, ContainerStatus, Observed, PodUid, observed::PodRef};

use super::{Reading, Usage};
use crate::node::{MachineSize, machine_size};

/// What one interface has received or sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    bytes: u64,
    packets: u64,
    errors: u64,
    dropped: u64,
}

/// By name of the interface: received, transmitted.
type Interfaces = BTreeMap<String, (Counters, Counters)>;

struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: Vec<String>,
}

/// Samples by metric, in the order they are first written.
#[derive(Default)]
struct Exposition(Vec<Family>);

impl Exposition {
    fn write_sample(
        &mut self,
        (name, kind, help): Metric,
        labels: &str,
        value: impl std::fmt::Display,
        at: Option<i64>,
    ) {
        let time = at.map(|at| format!(" {at}")).unwrap_or_default();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let sample = format!("{name}{labels} {value}{time}");
        match self.0.iter_mut().find(|family| family.name == name) {
            Some(family) => family.samples.push(sample),
            None => self.0.push(Family { name, kind, help, samples: vec![sample] }),
        }
    }

    fn text(self) -> String {
        let mut text = String::new();
        for Family { name, kind, help, samples } in self.0 {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{}", samples.join("\n"));
        }
        text
    }
}

/// Name, type and help.
type Metric = (&'static str, &'static str, &'static str);

const CPU: Metric = ("container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed in seconds.");
const MEMORY: Metric = (
    "container_memory_usage_bytes",
    "gauge",
    "Current memory usage in bytes, including all memory regardless of when it was accessed",
);
const WORKING_SET: Metric = ("container_memory_working_set_bytes", "gauge", "Current working set in bytes.");
const RSS: Metric = ("container_memory_rss", "gauge", "Size of RSS in bytes.");
const FILES: Metric =
    ("container_fs_usage_bytes", "gauge", "Number of bytes that are consumed by the container on this filesystem.");
const STARTED: Metric =
    ("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds.");
const LAST_SEEN: Metric = ("container_last_seen", "gauge", "Last time a container was seen by the exporter");
const CORES: Metric = ("machine_cpu_cores", "gauge", "Number of logical CPU cores.");
const MACHINE_MEMORY: Metric = ("machine_memory_bytes", "gauge", "Amount of memory installed on the machine.");
const RECEIVED: [Metric; 4] = [
    ("container_network_receive_bytes_total", "counter", "Cumulative count of bytes received"),
    ("container_network_receive_packets_total", "counter", "Cumulative count of packets received"),
    ("container_network_receive_errors_total", "counter", "Cumulative count of errors encountered while receiving"),
    (
        "container_network_receive_packets_dropped_total",
        "counter",
        "Cumulative count of packets dropped while receiving",
    ),
];
const TRANSMITTED: [Metric; 4] = [
    ("container_network_transmit_bytes_total", "counter", "Cumulative count of bytes transmitted"),
    ("container_network_transmit_packets_total", "counter", "Cumulative count of packets transmitted"),
    ("container_network_transmit_errors_total", "counter", "Cumulative count of errors encountered while transmitting"),
    (
        "container_network_transmit_packets_dropped_total",
        "counter",
        "Cumulative count of packets dropped while transmitting",
    ),
];

/// Everything in the text format of Prometheus.
pub fn exposition(reading: &Reading, observed: &Observed) -> String {
    let running = |pod: &PodUid, name: &str| {
        let mut running = observed.containers.iter().filter(|c| c.state.is_running());
        running.find(|c| c.pod.uid == *pod && c.name == name)
    };
    let has_own_network =
        |pod: &PodUid| observed.sandboxes.iter().any(|sandbox| sandbox.pod.uid == *pod && !sandbox.host_network);
    let at = reading.at.as_millisecond();
    let mut out = Exposition::default();
    put_usage(&mut out, &labels("", "/", "", "", None), &reading.node, at);
    for (pod, containers) in &reading.pods {
        let running: Vec<(&str, &Usage, &ContainerStatus)> = containers
            .iter()
            .filter_map(|(name, usage)| Some((name.as_str(), usage, running(&pod.uid, name)?)))
            .collect();
        for (name, usage, container) in &running {
            let labels = labels(name, &cgroup_path(container), &container.image, &container.id.0, Some(pod));
            put_usage(&mut out, &labels, usage, at);
            if let ContainerState::Running { started_at } = container.state {
                out.write_sample(STARTED, &labels, started_at.as_second(), Some(at));
            }
            out.write_sample(LAST_SEEN, &labels, reading.at.as_second(), Some(at));
        }
        let total = running.iter().fold(Usage::default(), |sum, (_, usage, _)| sum.plus(usage));
        let path =
            running.first().map(|(_, _, container)| pod_cgroup(&cgroup_path(container), &pod.uid)).unwrap_or_default();
        put_usage(&mut out, &labels("", &path, "", "", Some(pod)), &total, at);
        let interfaces = running.iter().find_map(|(_, _, c)| interfaces(c.pid?)).filter(|_| has_own_network(&pod.uid));
        for (interface, (received, transmitted)) in interfaces.unwrap_or_default() {
            let labels = format!("{},interface=\"{interface}\"", labels("", &path, "", "", Some(pod)));
            for (metrics, counters) in [(RECEIVED, received), (TRANSMITTED, transmitted)] {
                let values = [counters.bytes, counters.packets, counters.errors, counters.dropped];
                metrics
                    .into_iter()
                    .zip(values)
                    .for_each(|(metric, value)| out.write_sample(metric, &labels, value, Some(at)));
            }
        }
    }
    let MachineSize { cpus, memory } = machine_size();
    out.write_sample(CORES, "", cpus, None);
    out.write_sample(MACHINE_MEMORY, "", memory, None);
    out.text()
}

fn put_usage(out: &mut Exposition, labels: &str, usage: &Usage, at: i64) {
    out.write_sample(CPU, &format!("{labels},cpu=\"total\""), usage.cpu_nanos as f64 / 1e9, Some(at));
    out.write_sample(MEMORY, labels, usage.memory, Some(at));
    out.write_sample(WORKING_SET, labels, usage.working_set, Some(at));
    out.write_sample(RSS, labels, usage.rss, Some(at));
    out.write_sample(FILES, labels, usage.rootfs, Some(at));
}

fn labels(container: &str, id: &str, image: &str, name: &str, pod: Option<&PodRef>) -> String {
    let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let (namespace, pod) = pod.map_or(("", ""), |pod| (pod.namespace.as_str(), pod.name.as_str()));
    let all = [
        ("container", container),
        ("id", id),
        ("image", image),
        ("name", name),
        ("namespace", namespace),
        ("pod", pod),
    ];
    all.map(|(key, value)| format!("{key}=\"{}\"", escape(value))).join(",")
}

/// Where the container's processes are counted; a container that has just ended has none.
fn cgroup_path(container: &ContainerStatus) -> String {
    let file = container.pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok());
    let line = file.as_deref().and_then(|text| text.lines().next());
    line.and_then(|line| line.splitn(3, ':').nth(2)).map_or_else(|| format!("/{}", container.id), str::to_owned)
}

/// The cgroup of a pod, from that of one of its containers.
fn pod_cgroup(path: &str, uid: &PodUid) -> String {
    let of_pod = path.find(&format!("pod{uid}")).map(|at| at + "pod".len() + uid.0.len());
    let end = of_pod.or_else(|| path.rfind('/')).unwrap_or(0);
    path[..end].to_owned()
}

fn interfaces(pid: u32) -> Option<Interfaces> {
    Some(parse_interfaces(&std::fs::read_to_string(format!("/proc/{pid}/net/dev")).ok()?))
}

/// `/proc/net/dev`, without loopback.
fn parse_interfaces(text: &str) -> Interfaces {
    let parse = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> = numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let counters = |from: usize| {
            let number = |index: usize| numbers.get(from + index).copied();
            Some(Counters { bytes: number(0)?, packets: number(1)?, errors: number(2)?, dropped: number(3)? })
        };
        Some((name.trim().to_owned(), (counters(0)?, counters(8)?)))
    };
    text.lines().filter_map(parse).filter(|(name, _)| name != "lo").collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use mainstay_runtime::{ContainerId, SandboxId, SandboxStatus};

    use super::*;

    #[test]
    fn counters_of_interfaces_are_read_and_loopback_is_left_out() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
                    face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop\n    \
                    lo:     9       9    0    0    0     0          0         0        9       9    0    0    0     0       0          0\n  \
                    eth0:  1000      10    1    2    0     0          0         0     2000      20    3    4    0     0       0          0\n";
        let received = Counters { bytes: 1000, packets: 10, errors: 1, dropped: 2 };
        let transmitted = Counters { bytes: 2000, packets: 20, errors: 3, dropped: 4 };
        assert_eq!(parse_interfaces(text), [("eth0".to_owned(), (received, transmitted))].into());
    }

    #[test]
    fn a_pods_cgroup_is_above_those_of_its_containers() {
        let of = |path: &str| pod_cgroup(path, &PodUid("1-2".into()));
        assert_eq!(of("/mainstay/burstable/pod1-2/sandbox/container"), "/mainstay/burstable/pod1-2");
        assert_eq!(of("/elsewhere/container"), "/elsewhere");
    }

    #[test]
    fn containers_pods_and_the_node_have_samples_as_cadvisor_labels_them() {
        let pod = PodRef { namespace: "shop".into(), name: "web".into(), uid: PodUid("u".into()) };
        let sandbox = SandboxStatus {
            id: SandboxId("s".into()),
            pod: pod.clone(),
            attempt: 0,
            ready: true,
            created_at: Timestamp::UNIX_EPOCH,
            host_network: false,
            addresses: vec![],
            annotations: BTreeMap::new(),
        };
        let container = ContainerStatus {
            id: ContainerId("c1".into()),
            sandbox: sandbox.id.clone(),
            pod: pod.clone(),
            name: "a".into(),
            attempt: 0,
            image: "busybox".into(),
            image_id: String::new(),
            created_at: Timestamp::UNIX_EPOCH,
            state: ContainerState::Running { started_at: Timestamp::from_second(3).unwrap() },
            annotations: BTreeMap::new(),
            log_path: Default::default(),
            pid: None,
        };
        let observed = Observed { sandboxes: vec![sandbox], containers: vec![container] };
        let usage = Usage { cpu_nanos: 1_500_000_000, working_set: 10, ..Usage::default() };
        let gone = ("gone".to_owned(), usage.clone());
        let reading = Reading {
            at: Timestamp::from_second(5).unwrap(),
            node: Usage::default(),
            pods: vec![(pod, vec![("a".into(), usage), gone])],
        };
        let text = exposition(&reading, &observed);
        let lines: Vec<&str> = text.lines().collect();
        let labels = r#"container="a",id="/c1",image="busybox",name="c1",namespace="shop",pod="web""#;
        for expected in [
            format!("container_cpu_usage_seconds_total{{{labels},cpu=\"total\"}} 1.5 5000"),
            format!("container_memory_working_set_bytes{{{labels}}} 10 5000"),
            format!("container_start_time_seconds{{{labels}}} 3 5000"),
            r#"container_memory_working_set_bytes{container="",id="",image="",name="",namespace="shop",pod="web"} 10 5000"#
                .to_owned(),
            "# TYPE container_memory_usage_bytes gauge".to_owned(),
        ] {
            assert!(lines.contains(&expected.as_str()), "{expected} in\n{text}");
        }
        let families = lines.iter().filter(|line| line.starts_with("# TYPE container_cpu_usage_seconds_total"));
        assert_eq!(families.count(), 1);
        assert!(!text.contains("gone"), "a container that does not run has no sample");
    }
}
