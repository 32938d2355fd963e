//! What is written at one server is carried out, watched and read at the other.

use serde_json::json;

use super::{BOTH, Pair};
use crate::{
    harness::{
        Following, eventually,
        machines::{SECOND, SERVER},
    },
    services::lab::{curl, dig},
};

#[test]
fn a_deployment_and_its_service_work_whichever_server_is_asked() {
    let mut pair = Pair::start();
    let follow = ["get", "deployments", "--watch", "-o", r#"jsonpath={.metadata.name}={.status.readyReplicas}{"\n"}"#];
    let mut observed = Following::start(pair.lab.machines.kubectl_command(SECOND, &follow), "kubectl get --watch");
    let address = pair.lab.start_service("web", json!({}));
    pair.lab.start_web("web", 3);
    observed.until("that three pods are ready", |line| line == "web=3");
    let pods = pair.lab.ready_pods("web");
    let on: Vec<String> = pods
        .iter()
        .map(|pod| pair.kubectl_at(SECOND, &format!("get pod {pod} -o jsonpath={{.spec.nodeName}}")))
        .collect();
    assert!(on.iter().any(|node| node == "a") && on.iter().any(|node| node == "b"), "{on:?}");
    answers(&pair, &address, &pods);

    // The other way round: written at the second, done by the first, which leads.
    pair.lab.machines.ask(SECOND);
    let mut observed = Following::start(pair.lab.machines.kubectl_command(SERVER, &follow), "kubectl get --watch");
    pair.lab.kubectl("scale deployment web --replicas=2");
    observed.until("that two pods are ready", |line| line == "web=2");
    let pods = pair.lab.serves("web", 2);
    answers(&pair, &address, &pods);

    // Both servers reach both machines.
    for server in BOTH {
        for pod in &pods {
            let output = pair.kubectl_at(server, &format!("exec {pod} -- printenv NAME"));
            assert_eq!(output, *pod, "through {server}");
        }
    }
    assert!(pair.leads(SERVER, "mainstay-controllers"));
}

/// Both servers list these pods and no others, and they answer on both machines, by address and by name.
#[track_caller]
fn answers(pair: &Pair, address: &str, pods: &[String]) {
    let mut expected = pods.to_vec();
    expected.sort();
    let ready = "jsonpath={.items[*].endpoints[?(@.conditions.ready==true)].targetRef.name}";
    for server in BOTH {
        for (what, path) in [
            ("endpointslices -l kubernetes.io/service-name=web", ready),
            ("endpoints web", "jsonpath={.subsets[*].addresses[*].targetRef.name}"),
        ] {
            eventually(&format!("{what} at {server} are those of {expected:?}"), || {
                let output = pair.kubectl_at(server, &format!("get {what} -o {path}"));
                let mut names: Vec<&str> = output.split_whitespace().collect();
                names.sort_unstable();
                (names == expected).then_some(())
            });
        }
    }
    for machine in ["a", "b"] {
        let asked = format!("{} +short +time=2 @10.96.0.10 web.default.svc.cluster.local", dig());
        eventually("the name is known", || (pair.lab.on(machine, &asked).stdout.trim() == address).then_some(()));
        let call = format!("for n in 1 2 3 4 5 6 7 8; do {} http://{address}/; done", curl());
        eventually(&format!("only {expected:?} answer on {machine}"), || {
            let output = pair.lab.on(machine, &call).ok();
            let mut names = output.lines().filter_map(|line| line.split_whitespace().next());
            names.all(|name| expected.iter().any(|pod| pod == name)).then_some(())
        });
    }
}
