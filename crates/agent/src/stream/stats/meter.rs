//! Samples the usage of containers and computes rates between samples.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use mainstay_runtime::{
    Runtime, RuntimeError,
    observed::{ContainerStats, PodRef},
};
use tokio::{sync::Mutex, time::Instant};

use super::machine;

/// A reading is good for this long.
const FRESH: Duration = Duration::from_secs(1);
/// A look is worth comparing with for this long.
const USEFUL: Duration = Duration::from_secs(60);
/// What a look waits for another if there is none to compare with.
const APART: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_nanos: u64,
    /// Billionths of a cpu, on average since an earlier look.
    pub nano_cores: Option<u64>,
    pub working_set: u64,
    pub memory: u64,
    pub rss: u64,
    pub available: Option<u64>,
    pub rootfs: u64,
}

impl Usage {
    pub fn plus(self, other: &Self) -> Self {
        Self {
            cpu_nanos: self.cpu_nanos + other.cpu_nanos,
            nano_cores: match (self.nano_cores, other.nano_cores) {
                (None, None) => None,
                (a, b) => Some(a.unwrap_or(0) + b.unwrap_or(0)),
            },
            working_set: self.working_set + other.working_set,
            memory: self.memory + other.memory,
            rss: self.rss + other.rss,
            available: None,
            rootfs: self.rootfs + other.rootfs,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Reading {
    pub at: Timestamp,
    pub node: Usage,
    /// Containers of each pod by name.
    pub pods: Vec<(PodRef, Vec<(String, Usage)>)>,
}

/// What was seen at one time.
struct Sample {
    at: Instant,
    time: Timestamp,
    node: Usage,
    containers: Vec<ContainerStats>,
}

pub struct Meter {
    runtime: Arc<dyn Runtime>,
    /// Oldest first.
    samples: Mutex<Vec<Sample>>,
}

impl Meter {
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime, samples: Mutex::default() }
    }

    pub async fn read(&self) -> Result<Reading, RuntimeError> {
        let mut samples = self.samples.lock().await;
        samples.retain(|look| look.at.elapsed() < USEFUL);
        if samples.len() < 2 || samples.last().is_none_or(|look| look.at.elapsed() >= FRESH) {
            if samples.is_empty() {
                samples.push(self.sample().await?);
            }
            if let Some(alone) = samples.first().filter(|_| samples.len() == 1) {
                tokio::time::sleep_until(alone.at + APART).await;
            }
            samples.push(self.sample().await?);
        }
        // The one before last is near, so the rate is of now; whoever asks seldom gets a longer average.
        let [.., before, now] = &samples[..] else {
            return Err(RuntimeError::failed("measure", "no two samples"));
        };
        let reading = compare(before, now);
        if samples.len() > 8 {
            samples.remove(0);
        }
        Ok(reading)
    }

    async fn sample(&self) -> Result<Sample, RuntimeError> {
        let mut containers = self.runtime.stats().await?;
        containers.retain(|container| !container.ended);
        Ok(Sample { at: Instant::now(), time: Timestamp::now(), node: machine::usage(), containers })
    }
}

fn compare(before: &Sample, now: &Sample) -> Reading {
    let nanos = now.at.duration_since(before.at).as_nanos().max(1) as f64;
    let rate = |then: u64, now: u64| {
        // A counter that went back belongs to a new container.
        let used = now.checked_sub(then).unwrap_or(now);
        (used as f64 * 1e9 / nanos) as u64
    };
    let key = |stats: &ContainerStats| Some((stats.pod.as_ref()?.uid.clone(), stats.name.clone()));
    let then: BTreeMap<_, u64> = before.containers.iter().filter_map(|s| Some((key(s)?, s.cpu_nanos))).collect();
    let mut pods: Vec<(PodRef, Vec<(String, Usage)>)> = Vec::new();
    for stats in &now.containers {
        let (Some(pod), Some(key)) = (&stats.pod, key(stats)) else { continue };
        let usage = Usage {
            cpu_nanos: stats.cpu_nanos,
            nano_cores: then.get(&key).map(|then| rate(*then, stats.cpu_nanos)),
            working_set: stats.working_set,
            memory: stats.memory_usage,
            rss: stats.rss,
            available: None,
            rootfs: stats.rootfs_bytes,
        };
        match pods.iter_mut().find(|(known, _)| known.uid == pod.uid) {
            Some((_, containers)) => containers.push((stats.name.clone(), usage)),
            None => pods.push((pod.clone(), vec![(stats.name.clone(), usage)])),
        }
    }
    let node = Usage { nano_cores: Some(rate(before.node.cpu_nanos, now.node.cpu_nanos)), ..now.node.clone() };
    Reading { at: now.time, node, pods }
}

#[cfg(test)]
mod tests {
    use mainstay_runtime::PodUid;

    use super::*;

    fn sample(at: Instant, cpu: &[(&str, u64)]) -> Sample {
        let pod = || Some(PodRef { namespace: "n".into(), name: "p".into(), uid: PodUid("u".into()) });
        let stats = |(name, cpu_nanos): &(&str, u64)| ContainerStats {
            pod: pod(),
            name: (*name).into(),
            cpu_nanos: *cpu_nanos,
            ..ContainerStats::default()
        };
        Sample { at, time: Timestamp::UNIX_EPOCH, node: Usage::default(), containers: cpu.iter().map(stats).collect() }
    }

    #[test]
    fn a_rate_is_what_was_used_between_two_looks() {
        let start = Instant::now();
        let before = sample(start, &[("a", 1_000_000_000), ("restarted", 9_000_000_000)]);
        let now =
            sample(start + Duration::from_secs(2), &[("a", 2_000_000_000), ("restarted", 1_000_000_000), ("new", 5)]);
        let reading = compare(&before, &now);
        let rates: Vec<_> = reading.pods[0].1.iter().map(|(name, u)| (name.as_str(), u.nano_cores)).collect();
        assert_eq!(rates, [("a", Some(500_000_000)), ("restarted", Some(500_000_000)), ("new", None)]);
    }
}
