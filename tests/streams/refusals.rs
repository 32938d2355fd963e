use std::net::TcpListener;

use crate::cluster::{Cluster, KUBECTLS};

#[test]
fn a_pod_without_a_machine_has_no_streams() {
    let cluster = Cluster::start();
    cluster.placed("nowhere", None);
    for k in KUBECTLS {
        assert_eq!(cluster.ok(k, "logs nowhere"), "");
        let refused = cluster.refused(k, "exec nowhere -- true");
        assert!(refused.contains("pod nowhere does not have a host assigned"), "{refused}");
    }
}

#[test]
fn a_machine_that_does_not_answer_is_named() {
    let cluster = Cluster::start();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    cluster.node("dead", closed);
    cluster.placed("lost", Some("dead"));
    for k in KUBECTLS {
        let text = format!("dial tcp 127.0.0.1:{closed}: connect: connection refused");
        for line in ["logs lost", "exec lost -- true"] {
            let refused = cluster.refused(k, line);
            assert!(refused.contains(&text), "{line}: {refused}");
        }
    }
}

/// The certificate tells which machine answers, wherever its address leads.
#[test]
fn a_machine_that_is_another_gets_nothing() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    let real = cluster.ok(KUBECTLS[1], "get node node-a -o jsonpath={.status.daemonEndpoints.kubeletEndpoint.Port}");
    cluster.node("other", real.parse().unwrap());
    cluster.placed("web-2", Some("other"));
    let refused = cluster.refused(KUBECTLS[1], "logs web-2");
    assert!(refused.contains("who answered is not system:node:other"), "{refused}");
}

#[test]
fn streams_end_when_the_server_stops() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    cluster.runtime.fake.print("web/a", "one");
    let streams: Vec<_> = KUBECTLS
        .iter()
        .flat_map(|k| {
            [cluster.begin(k, "logs -f web"), cluster.begin(k, "exec web -- sh -c 'echo one; exec sleep 600'")]
        })
        .collect();
    for stream in &streams {
        stream.prints("one");
    }
    cluster.stop();
    for stream in streams {
        stream.ends();
    }
}
