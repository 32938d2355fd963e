//! `/configz`: the agent's settings under the names that upstream's `KubeletConfiguration` gives them.

use serde_json::{Value, json};

use crate::settings::Settings;

pub fn configuration(settings: &Settings) -> Value {
    let seconds = |time: std::time::Duration| format!("{}s", time.as_secs_f64());
    let eviction = &settings.eviction;
    json!({ "kubeletconfig": {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "port": settings.port,
        "staticPodPath": settings.static_pods,
        "podLogsDir": settings.log_directory,
        "clusterDNS": settings.cluster_dns,
        "clusterDomain": settings.cluster_domain,
        "maxPods": settings.max_pods,
        "podPidsLimit": crate::spec::PIDS,
        "registerWithTaints": settings.taints,
        "nodeStatusReportFrequency": seconds(settings.status_interval),
        "nodeLeaseRenewInterval": seconds(settings.heartbeat_period()),
        "imageGCHighThresholdPercent": eviction.image_gc_high,
        "imageGCLowThresholdPercent": eviction.image_gc_low,
        "evictionHard": {
            "memory.available": eviction.memory_available.to_string(),
            "nodefs.available": format!("{}%", eviction.disk_available),
            "nodefs.inodesFree": format!("{}%", eviction.inodes_available),
            "pid.available": format!("{}%", eviction.pids_available),
        },
        "systemReserved": {
            "cpu": format!("{}m", settings.reserved.cpu_millis),
            "memory": settings.reserved.memory.to_string(),
            "ephemeral-storage": settings.reserved.ephemeral_storage.to_string(),
        },
        "crashLoopBackOff": { "maxContainerRestartPeriod": seconds(settings.restart_backoff.longest) },
    } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_upstreams_names() {
        let config = configuration(&crate::testing::settings());
        let config = &config["kubeletconfig"];
        assert_eq!((&config["maxPods"], &config["clusterDomain"]), (&json!(110), &json!("cluster.local")));
        assert_eq!(config["evictionHard"]["nodefs.available"], json!("10%"));
        assert_eq!(config["nodeLeaseRenewInterval"], json!("2s"));
    }
}
