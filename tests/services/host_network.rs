//! Machines whose pods have no addresses of their own: Services end at ports of the machines.

use std::collections::BTreeSet;

use serde_json::json;

use super::lab::{Lab, curl, set};
use crate::harness::{Machines, eventually};

#[test]
fn where_pods_have_no_addresses_services_end_at_ports_of_their_machines() {
    let lab = Lab::of(Machines::joined_with(&["a", "b"], &["--network", "host"]));
    let address = lab.start_service("web", json!({ "ports": [{ "port": 80, "targetPort": 80 }] }));
    let mut pod = lab.container(&["sh", "-c", "exec $PYTHON /pods/web.py $HOST_PORT_TCP_80"].map(str::to_owned));
    let container = &mut pod["containers"][0];
    let python = crate::harness::tool("venv/bin/python");
    container["env"].as_array_mut().unwrap().push(json!({ "name": "PYTHON", "value": python }));
    container["ports"] = json!([{ "containerPort": 80 }]);
    lab.create(&set("Deployment", "web", 3, pod.clone()));
    let pods: BTreeSet<String> = lab.serves("web", 3).into_iter().collect();
    for machine in lab.machines.names() {
        let line = format!("for n in $(seq 40); do {} http://{address}/ || exit; done", curl());
        eventually(&format!("all are reached from {machine}"), || {
            let output = lab.on(machine, &line).stdout;
            let called: BTreeSet<String> =
                output.lines().filter_map(|line| line.split_once(' ')).map(|(pod, _)| pod.to_owned()).collect();
            (called == pods).then_some(())
        });
    }
    let endpoints = lab.kubectl(
        "get endpointslices -l kubernetes.io/service-name=web -o jsonpath={.items[*].endpoints[*].addresses[0]}",
    );
    let hosts: BTreeSet<&str> = endpoints.split(' ').collect();
    assert!(hosts.iter().all(|host| host.starts_with("198.51.100.")), "{endpoints}");
    lab.start_client("b");
    let output = lab.by_client(&format!("{} http://web.default.svc.cluster.local/", curl())).ok();
    assert!(output.starts_with("web-"), "by name, from a pod: {output}");

    pod["containers"][0]["command"] = json!(["sh", "-c", "test -z $HOST_PORT_TCP_80 && exec sleep 100000"]);
    let mut fixed = set("Deployment", "fixed", 1, pod);
    fixed["spec"]["template"]["metadata"]["labels"]["k8s.mesosphere.io/portMapping"] = "fixed".into();
    lab.create(&fixed);
    let pod = lab.serves("fixed", 1).remove(0);
    let given = r"{.metadata.annotations.k8s\.mesosphere\.io/port_TCP_80}";
    assert_eq!(lab.value(&format!("pod {pod}"), given), "", "a pod may keep out of it");
}
