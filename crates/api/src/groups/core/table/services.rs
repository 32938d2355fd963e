//! Rows of services and of their endpoints.

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    groups::networking::table::load_balancer,
    ports::TCP,
    table::{
        Columns,
        column::{AGE, NAME, SELECTOR, text as column, wide},
        labels::labels,
        read::{NONE, age, first_three, int, join, list, name, scalar, text, text_or, texts},
    },
};

pub static SERVICES: Columns = Columns {
    definitions: &[
        NAME,
        column("Type", "How the service is reached."),
        column("Cluster-IP", "Its address within the cluster."),
        column("External-IP", "Its addresses from outside."),
        column("Port(s)", "Its ports, and those opened for it on every node."),
        AGE,
        wide(SELECTOR),
    ],
    cells: service,
};

pub static ENDPOINTS: Columns = Columns {
    definitions: &[NAME, column("Endpoints", "Addresses that serve, with their ports."), AGE],
    cells: |object, now| vec![name(object), endpoints(list(object, "/subsets")).into(), age(object, now)],
};

fn service(object: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<_> = list(object, "/spec/ports").iter().map(port).collect();
    vec![
        name(object),
        text(object, "/spec/type").into(),
        text_or(object, "/spec/clusterIPs/0", text_or(object, "/spec/clusterIP", NONE)).into(),
        external(object).into(),
        join(ports.iter().map(String::as_str), NONE).into(),
        age(object, now),
        labels(object, "/spec/selector"),
    ]
}

fn external(object: &Value) -> String {
    let balancer = load_balancer(object);
    let external = texts(list(object, "/spec/externalIPs"), "");
    match text(object, "/spec/type") {
        "ClusterIP" | "NodePort" => join(external, NONE),
        "LoadBalancer" => join([balancer.as_str()].into_iter().filter(|b| !b.is_empty()).chain(external), "<pending>"),
        "ExternalName" => text(object, "/spec/externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

/// `80/TCP`, or `80:30080/TCP` with a node port.
fn port(port: &Value) -> String {
    let protocol = text_or(port, "/protocol", TCP);
    match (int(port, "/port"), int(port, "/nodePort")) {
        (number, ..=0) => format!("{number}/{protocol}"),
        (number, node) => format!("{number}:{node}/{protocol}"),
    }
}

fn endpoints(subsets: &[Value]) -> String {
    if subsets.is_empty() {
        return NONE.to_owned();
    }
    let mut all = Vec::new();
    for subset in subsets {
        let addresses = || texts(list(subset, "/addresses"), "/ip");
        let ports = list(subset, "/ports");
        if ports.is_empty() {
            all.extend(addresses().map(str::to_owned)); // a headless service may have none
        }
        for port in ports {
            let port = scalar(port, "/port").unwrap_or_default();
            all.extend(
                addresses().map(|ip| if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }),
            );
        }
    }
    first_three(&all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::{heads, row};

    #[test]
    fn a_service_shows_how_it_is_reached() {
        let object = json!({"spec": {
            "type": "NodePort",
            "clusterIP": "10.96.0.7",
            "clusterIPs": ["10.96.0.7", "fd00::7"],
            "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}],
            "selector": {"app": "web"},
        }});
        assert_eq!(
            row(&SERVICES, object),
            json!(["x", "NodePort", "10.96.0.7", "<none>", "80:30080/TCP,53/UDP", "5m", "app=web"])
        );
        let object = json!({"spec": {"type": "ExternalName", "externalName": "example.com"}});
        assert_eq!(
            row(&SERVICES, object),
            json!(["x", "ExternalName", "<none>", "example.com", "<none>", "5m", "<none>"])
        );
        assert_eq!(
            heads(&SERVICES),
            "Name:string | Type:string | Cluster-IP:string | External-IP:string | Port(s):string | Age:string | \
             +Selector:string"
        );
    }

    #[test]
    fn the_external_address_depends_on_the_type() {
        let ingress = json!({"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}, {"hostname": "lb"}]}});
        let cases = [
            (json!({"spec": {"type": "ClusterIP"}}), "<none>"),
            (json!({"spec": {"type": "ClusterIP", "externalIPs": ["9.9.9.9", "8.8.8.8"]}}), "9.9.9.9,8.8.8.8"),
            (json!({"spec": {"type": "LoadBalancer"}}), "<pending>"),
            (json!({"spec": {"type": "LoadBalancer"}, "status": ingress}), "1.2.3.4,lb"),
            (
                json!({"spec": {"type": "LoadBalancer", "externalIPs": ["9.9.9.9"]}, "status": ingress}),
                "1.2.3.4,lb,9.9.9.9",
            ),
            (json!({"spec": {"type": "LoadBalancer", "externalIPs": ["9.9.9.9"]}}), "9.9.9.9"),
            (json!({"spec": {}}), "<unknown>"),
        ];
        for (object, expected) in cases {
            assert_eq!(external(&object), expected, "{object}");
        }
    }

    #[test]
    fn endpoints_show_three_and_count_the_rest() {
        let address = |ip: &str| json!({"ip": ip});
        let cases = [
            (json!([]), "<none>"),
            (json!([{"addresses": [address("10.0.0.1")]}]), "10.0.0.1"),
            (
                json!([{"addresses": [address("10.0.0.1"), address("fd00::1")], "ports": [{"port": 80}]}]),
                "10.0.0.1:80,[fd00::1]:80",
            ),
            (
                json!([{
                    "addresses": [address("10.0.0.1"), address("10.0.0.2"), address("10.0.0.3")],
                    "ports": [{"port": 80}, {"port": 443}],
                }]),
                "10.0.0.1:80,10.0.0.2:80,10.0.0.3:80 + 3 more...",
            ),
            (json!([{"notReadyAddresses": [address("10.0.0.1")], "ports": [{"port": 80}]}]), ""),
        ];
        for (subsets, expected) in cases {
            assert_eq!(row(&ENDPOINTS, json!({"subsets": subsets})), json!(["x", expected, "5m"]));
        }
    }
}
