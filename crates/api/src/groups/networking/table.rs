//! Columns of `networking.k8s.io/v1`.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use crate::table::{
    Columns,
    column::{AGE, NAME, text as column},
    labels::selector,
    read::{NONE, age, join, list, map, name, text, text_or, texts},
};

pub static INGRESSES: Columns = Columns {
    definitions: &[
        NAME,
        column("Class", "The ingress class that serves it."),
        column("Hosts", "Host names of its rules; * for any."),
        column("Address", "Where traffic for it enters."),
        column("Ports", "80, and 443 if it terminates TLS."),
        AGE,
    ],
    cells: ingress,
};

pub static INGRESS_CLASSES: Columns = Columns {
    definitions: &[
        NAME,
        column("Controller", "Who serves ingresses of the class."),
        column("Parameters", "An object with further settings."),
        AGE,
    ],
    cells: |object, now| {
        let controller = text(object, "/spec/controller");
        vec![name(object), controller.into(), parameters(object).into(), age(object, now)]
    },
};

pub static IP_ADDRESSES: Columns = Columns {
    definitions: &[NAME, column("ParentRef", "What the address belongs to.")],
    cells: |object, _| vec![name(object), parent(object).into()],
};

pub static NETWORK_POLICIES: Columns = Columns {
    definitions: &[NAME, column("Pod-Selector", "The pods it applies to, by their labels."), AGE],
    cells: |object, now| vec![name(object), selector(object, "/spec/podSelector"), age(object, now)],
};

pub static SERVICE_CIDRS: Columns = Columns {
    definitions: &[NAME, column("CIDRs", "Ranges from which services get their addresses."), AGE],
    cells: |object, now| {
        let ranges = join(texts(list(object, "/spec/cidrs"), ""), "");
        vec![name(object), ranges.into(), age(object, now)]
    },
};

/// Addresses or names of a load balancer, sorted, each once.
pub fn load_balancer(object: &Value) -> String {
    let points = list(object, "/status/loadBalancer/ingress");
    let addresses = points.iter().map(|point| text_or(point, "/ip", text(point, "/hostname")));
    let addresses: BTreeSet<_> = addresses.filter(|address| !address.is_empty()).collect();
    join(addresses, "")
}

fn ingress(object: &Value, now: Timestamp) -> Vec<Value> {
    let tls = !list(object, "/spec/tls").is_empty();
    vec![
        name(object),
        text_or(object, "/spec/ingressClassName", NONE).into(),
        hosts(list(object, "/spec/rules")).into(),
        load_balancer(object).into(),
        if tls { "80, 443" } else { "80" }.into(),
        age(object, now),
    ]
}

/// The first three hosts; the rest counts rules, those without a host included.
fn hosts(rules: &[Value]) -> String {
    let (mut shown, mut more) = (Vec::new(), false);
    for host in texts(rules, "/host") {
        more |= shown.len() == 3;
        if !more && !host.is_empty() {
            shown.push(host);
        }
    }
    match (shown.is_empty(), more) {
        (true, _) => "*".to_owned(),
        (false, false) => shown.join(","),
        (false, true) => format!("{} + {} more...", shown.join(","), rules.len() - 3),
    }
}

fn parameters(object: &Value) -> String {
    if map(object, "/spec/parameters").is_none() {
        return NONE.to_owned();
    }
    let group = text(object, "/spec/parameters/apiGroup");
    let dot = if group.is_empty() { "" } else { "." };
    format!("{}{dot}{group}/{}", text(object, "/spec/parameters/kind"), text(object, "/spec/parameters/name"))
}

/// `services/default/web`.
fn parent(object: &Value) -> String {
    let Some(parent) = object.pointer("/spec/parentRef").filter(|parent| parent.is_object()) else {
        return NONE.to_owned();
    };
    let (group, namespace) = (text(parent, "/group"), text(parent, "/namespace"));
    let dot = if group.is_empty() { "" } else { "." };
    let slash = if namespace.is_empty() { "" } else { "/" };
    let resource = format!("{}{dot}{group}", text(parent, "/resource")).to_lowercase();
    format!("{resource}{slash}{namespace}/{}", text(parent, "/name"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::{heads, row};

    #[test]
    fn ingresses_show_hosts_addresses_and_ports() {
        let object = json!({
            "spec": {"ingressClassName": "nginx", "rules": [{"host": "a"}, {"host": "b"}], "tls": [{}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.2"}, {"hostname": "lb"}, {"ip": "10.0.0.1"}]}},
        });
        assert_eq!(row(&INGRESSES, object), json!(["x", "nginx", "a,b", "10.0.0.1,10.0.0.2,lb", "80, 443", "5m"]));
        assert_eq!(row(&INGRESSES, json!({"spec": {}})), json!(["x", "<none>", "*", "", "80", "5m"]));
        assert_eq!(
            heads(&INGRESSES),
            "Name:string | Class:string | Hosts:string | Address:string | Ports:string | Age:string"
        );
    }

    #[test]
    fn more_than_three_hosts_are_counted() {
        let rules = |names: &[&str]| names.iter().map(|name| json!({"host": name})).collect::<Vec<_>>();
        assert_eq!(hosts(&rules(&["a", "b", "c"])), "a,b,c");
        assert_eq!(hosts(&rules(&["a", "b", "c", "d", "e"])), "a,b,c + 2 more...");
        assert_eq!(hosts(&rules(&["", "b"])), "b");
    }

    #[test]
    fn references_read_as_kind_group_and_name() {
        let class = json!({"spec": {
            "controller": "example.com/ing",
            "parameters": {"apiGroup": "k8s.example.com", "kind": "IngressParameters", "name": "p"},
        }});
        assert_eq!(
            row(&INGRESS_CLASSES, class),
            json!(["x", "example.com/ing", "IngressParameters.k8s.example.com/p", "5m"])
        );
        assert_eq!(row(&INGRESS_CLASSES, json!({"spec": {"controller": "c"}})), json!(["x", "c", "<none>", "5m"]));
        let address = json!({"spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "web"}}});
        assert_eq!(row(&IP_ADDRESSES, address), json!(["x", "services/default/web"]));
        let address = json!({"spec": {"parentRef": {"group": "g.io", "resource": "things", "name": "t"}}});
        assert_eq!(row(&IP_ADDRESSES, address), json!(["x", "things.g.io/t"]));
        assert_eq!(row(&IP_ADDRESSES, json!({})), json!(["x", "<none>"]));
    }

    #[test]
    fn policies_and_ranges() {
        let policy = json!({"spec": {"podSelector": {"matchLabels": {"app": "db"}}}});
        assert_eq!(row(&NETWORK_POLICIES, policy), json!(["x", "app=db", "5m"]));
        assert_eq!(row(&NETWORK_POLICIES, json!({"spec": {"podSelector": {}}})), json!(["x", "<none>", "5m"]));
        let range = json!({"spec": {"cidrs": ["10.96.0.0/16", "fd00::/112"]}});
        assert_eq!(row(&SERVICE_CIDRS, range), json!(["x", "10.96.0.0/16,fd00::/112", "5m"]));
    }
}
