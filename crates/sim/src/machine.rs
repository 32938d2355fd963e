//! One hollow machine: what it holds, what it offers, what it answers to a pod. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::MicroTime};
use mainstay_api::{
    offer::{AUTOMATIC_PORTS, EXPLICIT_PORTS, OfferSpec},
    quantity,
};
use serde_json::{Value, json};

use crate::{conduct::Conduct, pod::Pod};

/// What every machine of a fleet has.
#[derive(Clone, Debug)]
pub struct Shape {
    /// In thousandths.
    pub cpu: i64,
    /// In bytes.
    pub memory: i64,
    pub pods: i64,
    /// Machines are spread over this many zones, in turn; 0 for none.
    pub zones: usize,
    pub labels: BTreeMap<String, String>,
    /// How long its offers are good for.
    pub ttl: Duration,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            cpu: 32_000,
            memory: 128 << 30,
            pods: 110,
            zones: 3,
            labels: BTreeMap::new(),
            ttl: Duration::from_secs(5),
        }
    }
}

impl Shape {
    fn amounts(&self) -> Amounts {
        Amounts { cpu: self.cpu, memory: self.memory, pods: self.pods }
    }

    /// The Node of the machine with this number, ready from the start.
    pub fn node(&self, number: usize, name: &str, now: Timestamp) -> Value {
        let mut labels = json!({
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
            "node.kubernetes.io/instance-type": "hollow",
        });
        if self.zones > 0 {
            labels["topology.kubernetes.io/zone"] = json!(format!("zone-{}", number % self.zones));
        }
        for (key, value) in &self.labels {
            labels[key] = json!(value);
        }
        let condition = |kind: &str, status: &str, reason: &str| {
            json!({
                "type": kind, "status": status, "reason": reason, "message": "a hollow machine",
                "lastHeartbeatTime": now.strftime("%FT%TZ").to_string(),
                "lastTransitionTime": now.strftime("%FT%TZ").to_string(),
            })
        };
        let amounts = self.amounts().quantities();
        json!({
            "kind": "Node", "apiVersion": "v1", "metadata": { "name": name, "labels": labels },
            "status": {
                "capacity": amounts, "allocatable": amounts,
                "addresses": [{ "type": "Hostname", "address": name }],
                "conditions": [
                    condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                    condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                    condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                    condition("Ready", "True", "KubeletReady"),
                ],
            },
        })
    }
}

/// What pods take of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub cpu: i64,
    pub memory: i64,
    pub pods: i64,
}

impl Amounts {
    fn of(pod: &Pod) -> Self {
        let mut asked = Self { pods: 1, ..Self::default() };
        let parsed = |q: &Quantity| quantity::Quantity::parse(&q.0).ok();
        let clamp = |amount: i128| i64::try_from(amount).unwrap_or(i64::MAX);
        for requests in pod.spec.containers.iter().map(|container| &container.resources.requests) {
            let cpu = requests.get("cpu").and_then(parsed).map_or(0, |q| clamp(q.as_milli()));
            let memory = requests.get("memory").and_then(parsed).map_or(0, |q| clamp(q.value()));
            asked.cpu = asked.cpu.saturating_add(cpu);
            asked.memory = asked.memory.saturating_add(memory);
        }
        asked
    }

    fn plus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_add(other.cpu),
            memory: self.memory.saturating_add(other.memory),
            pods: self.pods.saturating_add(other.pods),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(other.cpu),
            memory: self.memory.saturating_sub(other.memory),
            pods: self.pods.saturating_sub(other.pods),
        }
    }

    /// What there is too little of.
    fn short_of(self, asked: Self) -> Option<(&'static str, i64, i64)> {
        let all =
            [("cpu", self.cpu, asked.cpu), ("memory", self.memory, asked.memory), ("pods", self.pods, asked.pods)];
        all.into_iter().find(|(_, free, asked)| asked > free)
    }

    fn quantities(self) -> BTreeMap<String, Quantity> {
        let amounts =
            [("cpu", format!("{}m", self.cpu)), ("memory", self.memory.to_string()), ("pods", self.pods.to_string())];
        amounts.into_iter().map(|(name, amount)| (name.to_owned(), Quantity(amount))).collect()
    }
}

/// What a machine does about a pod it sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing new.
    Nothing,
    Start,
    Stop,
    Refuse {
        reason: String,
        message: String,
    },
}

struct Held {
    takes: Amounts,
    stopping: bool,
}

pub struct Machine {
    shape: Arc<Shape>,
    pub conduct: Conduct,
    pods: HashMap<String, Held>,
    used: Amounts,
    /// The newest version of a pod here that was seen.
    seen: u64,
    /// Room came back that nobody knows of yet.
    news: bool,
}

impl Machine {
    pub fn new(shape: Arc<Shape>, conduct: Conduct) -> Self {
        Self { shape, conduct, pods: HashMap::new(), used: Amounts::default(), seen: 0, news: false }
    }

    pub fn holds(&self) -> usize {
        self.pods.len()
    }

    /// A pod that is bound to this machine.
    pub fn saw(&mut self, pod: &Pod) -> Answer {
        self.seen = self.seen.max(pod.version());
        if pod.is_over() {
            self.release(pod.uid());
            return Answer::Nothing;
        }
        if let Some(held) = self.pods.get_mut(pod.uid()) {
            let begins = pod.is_leaving() && !std::mem::replace(&mut held.stopping, pod.is_leaving());
            return if begins { Answer::Stop } else { Answer::Nothing };
        }
        if pod.is_leaving() {
            return Answer::Stop; // it was never here
        }
        let takes = Amounts::of(pod);
        let starts_anew = pod.status.phase == "Pending" || pod.status.phase.is_empty();
        if starts_anew && let Some(answer) = self.refuses(takes) {
            self.news = true; // it may have been believed to be taken
            return answer;
        }
        self.used = self.used.plus(takes);
        self.pods.insert(pod.uid().to_owned(), Held { takes, stopping: false });
        if starts_anew { Answer::Start } else { Answer::Nothing }
    }

    fn refuses(&self, takes: Amounts) -> Option<Answer> {
        if self.conduct == Conduct::Refusing {
            let message = "the machine takes no pods".to_owned();
            return Some(Answer::Refuse { reason: "Unwilling".to_owned(), message });
        }
        let (what, free, asked) = self.shape.amounts().minus(self.used).short_of(takes)?;
        let message = format!("{asked} {what} requested, {free} free");
        Some(Answer::Refuse { reason: format!("OutOf{what}"), message })
    }

    /// A pod that is no longer here, or no longer at all.
    pub fn lost(&mut self, pod: &Pod) {
        self.seen = self.seen.max(pod.version());
        self.release(pod.uid());
    }

    fn release(&mut self, uid: &str) {
        if let Some(held) = self.pods.remove(uid) {
            self.used = self.used.minus(held.takes);
            self.news = true;
        }
    }

    /// Whether something is to be told before the next renewal. A pod that came as it was
    /// placed is no news: who placed it has counted it already.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    pub fn offer(&self, now: Timestamp) -> OfferSpec {
        let used = if self.conduct == Conduct::Lying { Amounts::default() } else { self.used };
        OfferSpec {
            free: self.shape.amounts().minus(used).quantities(),
            automatic_ports: vec![AUTOMATIC_PORTS.to_owned()],
            explicit_ports: vec![EXPLICIT_PORTS.to_owned()],
            ttl_seconds: i32::try_from(self.shape.ttl.as_secs()).unwrap_or(i32::MAX).max(1),
            renew_time: Some(MicroTime(now)),
            seen: self.seen.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, version: u64, cpu: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "namespace": "default", "name": uid, "uid": uid, "resourceVersion": version.to_string() },
            "spec": { "nodeName": "m", "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] },
            "status": { "phase": "Pending" },
        }))
        .unwrap()
    }

    fn leaving(mut pod: Pod) -> Pod {
        pod.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        pod
    }

    fn machine(conduct: Conduct) -> Machine {
        Machine::new(Arc::new(Shape { cpu: 1000, pods: 3, ..Shape::default() }), conduct)
    }

    fn free(machine: &Machine, what: &str) -> String {
        machine.offer(Timestamp::UNIX_EPOCH).free[what].0.clone()
    }

    #[test]
    fn a_pod_takes_its_requests_and_starts_once() {
        let mut machine = machine(Conduct::Honest);
        assert_eq!(machine.saw(&pod("a", 5, "300m")), Answer::Start);
        assert_eq!(machine.saw(&pod("a", 6, "300m")), Answer::Nothing);
        assert_eq!((free(&machine, "cpu"), free(&machine, "pods")), ("700m".into(), "2".into()));
        assert_eq!(machine.offer(Timestamp::UNIX_EPOCH).seen, "6");
        assert!(!machine.take_news(), "who placed it knows");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_reason() {
        let mut machine = machine(Conduct::Honest);
        machine.saw(&pod("a", 5, "800m"));
        let answer = machine.saw(&pod("b", 6, "300m"));
        let message = "300 cpu requested, 200 free".to_owned();
        assert_eq!(answer, Answer::Refuse { reason: "OutOfcpu".to_owned(), message });
        assert_eq!(machine.holds(), 1);
        assert!(machine.take_news());
    }

    #[test]
    fn room_comes_back_when_a_pod_is_gone_and_that_is_news() {
        let mut machine = machine(Conduct::Honest);
        machine.saw(&pod("a", 5, "800m"));
        assert_eq!(machine.saw(&leaving(pod("a", 6, "800m"))), Answer::Stop);
        assert_eq!(machine.saw(&leaving(pod("a", 7, "800m"))), Answer::Nothing);
        assert_eq!(free(&machine, "cpu"), "200m", "it holds its room until it is gone");
        machine.lost(&pod("a", 9, "800m"));
        assert_eq!((free(&machine, "cpu"), machine.take_news(), machine.take_news()), ("1000m".into(), true, false));
        assert_eq!(machine.offer(Timestamp::UNIX_EPOCH).seen, "9");
    }

    #[test]
    fn a_liar_offers_what_it_does_not_have_and_then_refuses() {
        let mut machine = machine(Conduct::Lying);
        machine.saw(&pod("a", 5, "800m"));
        assert_eq!(free(&machine, "cpu"), "1000m");
        assert!(matches!(machine.saw(&pod("b", 6, "800m")), Answer::Refuse { .. }));
    }

    #[test]
    fn a_pod_that_already_runs_is_taken_up_again_without_a_word() {
        let mut machine = machine(Conduct::Honest);
        let mut running = pod("a", 5, "800m");
        running.status.phase = "Running".to_owned();
        assert_eq!(machine.saw(&running), Answer::Nothing);
        assert_eq!(free(&machine, "cpu"), "200m");
    }
}
