//! `/stats/summary`, `/metrics/resource` and `/metrics/cadvisor`: what the machine and its containers use.
//!
//! Nothing is measured until someone asks. A rate needs two looks, so the first to ask after a pause waits a second
//! for it; who asks again soon gets the rate since then.

mod cadvisor;
mod machine;
mod meter;

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

pub use meter::{Meter, Reading, Usage};

use super::{
    find::unavailable,
    response::{self, HandlerResult},
    server::Parts,
};

pub async fn summary(parts: &Parts) -> HandlerResult {
    let reading = parts.meter().read().await.map_err(unavailable)?;
    Ok(response::json(&summarized(&parts.node_name, &reading)))
}

pub async fn resource_metrics(parts: &Parts) -> HandlerResult {
    let reading = parts.meter().read().await.map_err(unavailable)?;
    Ok(response::typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", exposed(&reading)))
}

pub async fn cadvisor_metrics(parts: &Parts) -> HandlerResult {
    let reading = parts.meter().read().await.map_err(unavailable)?;
    let observed = parts.runtime.observe(None).await.map_err(unavailable)?;
    let text = cadvisor::exposition(&reading, &observed);
    Ok(response::typed(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}

fn usage(at: Timestamp, usage: &Usage) -> (Value, Value) {
    let mut cpu = json!({ "time": at, "usageCoreNanoSeconds": usage.cpu_nanos });
    if let Some(rate) = usage.nano_cores {
        cpu["usageNanoCores"] = json!(rate);
    }
    let mut memory = json!({
        "time": at, "usageBytes": usage.memory, "workingSetBytes": usage.working_set, "rssBytes": usage.rss,
    });
    if let Some(available) = usage.available {
        memory["availableBytes"] = json!(available);
    }
    (cpu, memory)
}

fn summarized(node: &str, reading: &Reading) -> Value {
    let at = reading.at;
    let (cpu, memory) = usage(at, &reading.node);
    let pods: Vec<Value> = reading
        .pods
        .iter()
        .map(|(pod, containers)| {
            let total = containers.iter().fold(Usage::default(), |sum, (_, usage)| sum.plus(usage));
            let containers: Vec<Value> = containers
                .iter()
                .map(|(name, used)| {
                    let (cpu, memory) = usage(at, used);
                    json!({ "name": name, "cpu": cpu, "memory": memory, "rootfs": { "usedBytes": used.rootfs } })
                })
                .collect();
            let (cpu, memory) = usage(at, &total);
            json!({
                "podRef": { "name": pod.name, "namespace": pod.namespace, "uid": pod.uid },
                "containers": containers, "cpu": cpu, "memory": memory,
            })
        })
        .collect();
    json!({ "node": { "nodeName": node, "cpu": cpu, "memory": memory }, "pods": pods })
}

/// In the format Prometheus scrapes, under the names a kubelet uses.
fn exposed(reading: &Reading) -> String {
    let at = reading.at.as_millisecond();
    let mut families: [(&str, &str, &str, Vec<String>); 6] = [
        ("container_cpu_usage_seconds_total", "counter", "CPU time used by the container in core-seconds", vec![]),
        ("container_memory_working_set_bytes", "gauge", "Current working set of the container in bytes", vec![]),
        ("node_cpu_usage_seconds_total", "counter", "CPU time used by the node in core-seconds", vec![]),
        ("node_memory_working_set_bytes", "gauge", "Current working set of the node in bytes", vec![]),
        ("pod_cpu_usage_seconds_total", "counter", "CPU time used by the pod in core-seconds", vec![]),
        ("pod_memory_working_set_bytes", "gauge", "Current working set of the pod in bytes", vec![]),
    ];
    let mut put = |family: usize, labels: &str, usage: &Usage| {
        families[family].3.push(format!("{labels} {} {at}", usage.cpu_nanos as f64 / 1e9));
        families[family + 1].3.push(format!("{labels} {} {at}", usage.working_set));
    };
    put(2, "", &reading.node);
    for (pod, containers) in &reading.pods {
        let of_pod = format!("namespace=\"{}\",pod=\"{}\"", pod.namespace, pod.name);
        for (name, usage) in containers {
            put(0, &format!("{{container=\"{name}\",{of_pod}}}"), usage);
        }
        let total = containers.iter().fold(Usage::default(), |sum, (_, usage)| sum.plus(usage));
        put(4, &format!("{{{of_pod}}}"), &total);
    }
    let mut text = String::new();
    for (name, kind, help, lines) in families {
        text += &format!("# HELP {name} [STABLE] {help}\n# TYPE {name} {kind}\n");
        for line in lines {
            text += &format!("{name}{line}\n");
        }
    }
    text + "# HELP resource_scrape_error [STABLE] 1 if there was an error while getting metrics, 0 otherwise\n\
            # TYPE resource_scrape_error gauge\nresource_scrape_error 0\n"
}

#[cfg(test)]
mod tests {
    use mainstay_runtime::{PodUid, observed::PodRef};

    use super::*;

    #[test]
    fn both_forms_report_the_same() {
        let pod = PodRef { namespace: "shop".into(), name: "web".into(), uid: PodUid("u".into()) };
        let used = |cpu, set| Usage { cpu_nanos: cpu, nano_cores: Some(7), working_set: set, ..Usage::default() };
        let reading = Reading {
            at: Timestamp::from_second(5).unwrap(),
            node: used(9_000_000_000, 100),
            pods: vec![(pod, vec![("a".into(), used(1_500_000_000, 10)), ("b".into(), used(500_000_000, 20))])],
        };
        let summary = summarized("n1", &reading);
        assert_eq!(summary["pods"][0]["cpu"]["usageNanoCores"], json!(14));
        assert_eq!(summary["pods"][0]["memory"]["workingSetBytes"], json!(30));
        assert_eq!(summary["node"]["nodeName"], json!("n1"));
        let text = exposed(&reading);
        for line in [
            "node_cpu_usage_seconds_total 9 5000",
            r#"container_cpu_usage_seconds_total{container="a",namespace="shop",pod="web"} 1.5 5000"#,
            r#"pod_memory_working_set_bytes{namespace="shop",pod="web"} 30 5000"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }
}
