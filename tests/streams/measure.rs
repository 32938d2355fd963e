use mainstay_runtime::observed::ContainerStats;

use crate::cluster::{Cluster, KUBECTLS};

#[test]
fn top_shows_nodes_and_pods() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a", "b"]);
    let status = cluster.runtime.fake.container("web/a").unwrap();
    let stats = |name: &str, megabytes: u64| ContainerStats {
        pod: Some(status.pod.clone()),
        name: name.into(),
        working_set: megabytes << 20,
        ..ContainerStats::default()
    };
    cluster.runtime.fake.set_stats(vec![stats("a", 30), stats("b", 12)]);
    for k in KUBECTLS {
        let pods = cluster.ok(k, "top pods --no-headers");
        assert_eq!(pods.split_whitespace().collect::<Vec<_>>(), ["web", "0m", "42Mi"], "{pods}");
        let containers = cluster.ok(k, "top pod web --containers --no-headers");
        assert!(containers.lines().any(|l| l.split_whitespace().eq(["web", "a", "0m", "30Mi"])), "{containers}");
        let nodes = cluster.ok(k, "top nodes --no-headers");
        assert!(nodes.starts_with("node-a ") && nodes.contains("Mi"), "{nodes}");
        let table = cluster.ok(k, "get podmetrics");
        assert!(table.lines().next().unwrap().split_whitespace().eq(["NAME", "CPU", "MEMORY", "WINDOW"]), "{table}");
    }
}
