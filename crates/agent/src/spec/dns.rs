//! The `resolv.conf` of a pod, from its dnsPolicy and dnsConfig.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use mainstay_runtime::spec::Dns;

/// Resolvers read no more of either.
const SERVERS: usize = 3;
const SEARCHES: usize = 32;
/// What systemd-resolved writes for those who cannot ask its stub on the loopback.
const FILES: [&str; 2] = ["/run/systemd/resolve/resolv.conf", "/etc/resolv.conf"];

/// The machine's own; empty if it has none.
pub fn of_machine() -> Dns {
    let [upstream, own] = FILES.map(|file| std::fs::read_to_string(file).map(|text| parse(&text)));
    match (own, upstream) {
        (Ok(own), Ok(upstream)) if own.servers.iter().all(|server| server == "127.0.0.53") => upstream,
        (Ok(own), _) => own,
        (Err(_), Ok(upstream)) => upstream,
        (Err(_), Err(_)) => Dns::default(),
    }
}

pub fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split(['#', ';']).next().unwrap_or_default().split_whitespace().map(str::to_owned);
        match words.next().as_deref() {
            Some("nameserver") => dns.servers.extend(words.next()),
            Some("search" | "domain") => dns.searches = words.collect(),
            Some("options") => dns.options = words.collect(),
            _ => {}
        }
    }
    dns
}

/// By the pod's policy, with its own additions.
pub fn resolve(pod: &Pod, machine: &Dns, cluster: &[IpAddr], domain: &str) -> Dns {
    let spec = pod.spec.as_ref();
    let policy = spec.and_then(|spec| spec.dns_policy.as_deref()).unwrap_or("ClusterFirst");
    let host_network = spec.and_then(|spec| spec.host_network).unwrap_or_default();
    let wants_cluster = policy == "ClusterFirstWithHostNet" || (policy == "ClusterFirst" && !host_network);
    let mut dns = if policy == "None" {
        Dns::default()
    } else if wants_cluster && !cluster.is_empty() {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut searches = vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()];
        add(&mut searches, &machine.searches);
        Dns { servers: cluster.iter().map(IpAddr::to_string).collect(), searches, options: vec!["ndots:5".to_owned()] }
    } else {
        machine.clone()
    };
    if let Some(own) = spec.and_then(|spec| spec.dns_config.as_ref()) {
        add(&mut dns.servers, own.nameservers.iter().flatten());
        add(&mut dns.searches, own.searches.iter().flatten());
        for option in own.options.iter().flatten() {
            let name = option.name.as_deref().unwrap_or_default();
            dns.options.retain(|other| other.split(':').next() != Some(name));
            dns.options.push(match option.value.as_deref() {
                Some(value) if !value.is_empty() => format!("{name}:{value}"),
                _ => name.to_owned(),
            });
        }
    }
    dns.servers.truncate(SERVERS);
    dns.searches.truncate(SEARCHES);
    dns
}

pub fn file(dns: &Dns) -> String {
    let mut text = String::new();
    if !dns.searches.is_empty() {
        text += &format!("search {}\n", dns.searches.join(" "));
    }
    for server in &dns.servers {
        text += &format!("nameserver {server}\n");
    }
    if !dns.options.is_empty() {
        text += &format!("options {}\n", dns.options.join(" "));
    }
    text
}

fn add<'a>(list: &mut Vec<String>, more: impl IntoIterator<Item = &'a String>) {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}
