//! Adapts pods to a node whose pods share its network instead of having addresses of their own.
//!
//! It shares the machine's network and listens on the ports that were given to it. Whoever asks its ports by the numbers in its
//! spec, probes above all, means those.

use k8s_openapi::{
    api::core::v1::{Container, Pod},
    apimachinery::pkg::util::intstr::IntOrString,
};

use mainstay_api::ports::{AssignedHostPort, TCP, assigned_host_ports};

use crate::probe::port;

/// The pod as such a machine runs it.
pub fn settle(pod: &mut Pod) {
    let given = assigned_host_ports(pod);
    let Some(spec) = &mut pod.spec else { return };
    let own = spec.host_network.replace(true) != Some(true);
    if own && matches!(spec.dns_policy.as_deref(), None | Some("ClusterFirst")) {
        // It did not ask for the machine's network, and goes on asking for names in the cluster's.
        spec.dns_policy = Some("ClusterFirstWithHostNet".into());
    }
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        redirect(container, &given);
    }
}

fn redirect(container: &mut Container, given: &[AssignedHostPort]) {
    let names = Container { ports: container.ports.clone(), ..Container::default() };
    let meant = |asked: &mut IntOrString| {
        let number = port(asked, &names).ok();
        let found = given.iter().find(|chosen| chosen.protocol == TCP && Some(chosen.container_port) == number);
        if let Some(chosen) = found {
            *asked = IntOrString::Int(i32::from(chosen.host_port));
        }
    };
    let probes = [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe];
    for probe in probes.into_iter().flatten() {
        probe.http_get.iter_mut().for_each(|http| meant(&mut http.port));
        probe.tcp_socket.iter_mut().for_each(|tcp| meant(&mut tcp.port));
        for grpc in probe.grpc.iter_mut() {
            let mut asked = IntOrString::Int(grpc.port);
            meant(&mut asked);
            if let IntOrString::Int(port) = asked {
                grpc.port = port;
            }
        }
    }
    let hooks = container.lifecycle.iter_mut().flat_map(|hooks| [&mut hooks.post_start, &mut hooks.pre_stop]);
    for hook in hooks.flatten() {
        hook.http_get.iter_mut().for_each(|http| meant(&mut http.port));
        hook.tcp_socket.iter_mut().for_each(|tcp| meant(&mut tcp.port));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn probes_ask_the_port_that_was_given_and_others_stay() {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": { "annotations": { "k8s.mesosphere.io/port_TCP_80": "31007" } },
            "spec": { "containers": [{
                "name": "c", "ports": [{ "name": "web", "containerPort": 80 }],
                "readinessProbe": { "httpGet": { "port": "web" } },
                "livenessProbe": { "tcpSocket": { "port": 80 } },
                "startupProbe": { "grpc": { "port": 9000 } },
            }]},
        }))
        .unwrap();
        settle(&mut pod);
        let spec = pod.spec.unwrap();
        assert_eq!(spec.host_network, Some(true));
        assert_eq!(spec.dns_policy.as_deref(), Some("ClusterFirstWithHostNet"), "names stay those of the cluster");
        let container = &spec.containers[0];
        let given = IntOrString::Int(31007);
        assert_eq!(container.readiness_probe.as_ref().unwrap().http_get.as_ref().unwrap().port, given);
        assert_eq!(container.liveness_probe.as_ref().unwrap().tcp_socket.as_ref().unwrap().port, given);
        assert_eq!(container.startup_probe.as_ref().unwrap().grpc.as_ref().unwrap().port, 9000);
    }
}
