//! `fieldRef`: fields of the pod as environment variables and downward API files.

use std::{collections::BTreeMap, net::IpAddr};

use super::About;

/// `None` if there is no such field. What the pod does not have yet is empty.
pub fn value(about: &About<'_>, path: &str) -> Option<String> {
    let meta = &about.pod.metadata;
    let spec = about.pod.spec.as_ref();
    let text = |value: Option<&String>| Some(value.cloned().unwrap_or_default());
    if let Some((list, key)) = path.strip_suffix("']").and_then(|path| path.split_once("['")) {
        let map = match list {
            "metadata.labels" => meta.labels.as_ref(),
            "metadata.annotations" => meta.annotations.as_ref(),
            _ => return None,
        };
        return text(map.and_then(|map| map.get(key)));
    }
    let host_network = spec.and_then(|spec| spec.host_network).unwrap_or_default();
    let own = if host_network { &about.machine.addresses[..] } else { about.addresses };
    match path {
        "metadata.name" => text(meta.name.as_ref()),
        "metadata.namespace" => text(meta.namespace.as_ref()),
        "metadata.uid" => text(meta.uid.as_ref()),
        "metadata.labels" => Some(lines(meta.labels.as_ref())),
        "metadata.annotations" => Some(lines(meta.annotations.as_ref())),
        "spec.nodeName" => text(spec.and_then(|spec| spec.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|spec| spec.service_account_name.as_ref())),
        "status.hostIP" => Some(join(&about.machine.addresses[..about.machine.addresses.len().min(1)])),
        "status.hostIPs" => Some(join(&about.machine.addresses)),
        "status.podIP" => Some(join(&own[..own.len().min(1)])),
        "status.podIPs" => Some(join(own)),
        _ => None,
    }
}

fn join(addresses: &[IpAddr]) -> String {
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",")
}

/// `key="value"`, one on each line.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quoted(value))).collect::<Vec<_>>().join("\n")
}

/// As Go quotes a string.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x0b' => out.push_str("\\v"),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
