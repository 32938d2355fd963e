//! `mainstay machine publish-service` and `cache-services`: JioCloud's, on top of the services of the machine itself.

use std::{collections::BTreeMap, net::Ipv4Addr, path::Path};

use anyhow::{Context, anyhow};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, api::ListParams};
use mainstay_api::{
    host_service::{INTERFACES, MANAGED_BY, MANAGER, NAMESPACE, parse_interfaces},
    wellknown::kubernetes::SERVICE_NAME,
};
use mainstay_files::{Durability, write_atomic};
use serde_json::json;

use super::Session;
use crate::{exit::Exit, machine, service_command};

/// Configuration tools read it.
const CACHE_MODE: u32 = 0o644;

/// Addresses by interface, by service.
type Addresses = BTreeMap<String, BTreeMap<String, Vec<Ipv4Addr>>>;

impl Session<'_> {
    /// Publishes this machine as one that has these roles, whether or not they work yet.
    pub fn publish_service(&self, roles: &[String]) -> Result<(), Exit> {
        if roles.is_empty() {
            return Err(Exit::Refused(anyhow!("name at least one role")));
        }
        let directory = machine::directory_settings(&self.data.path()).directory;
        let mut files = Vec::new();
        for role in roles {
            files.push(service_command::write_definition(&directory, &json!({"name": role, "id": role}))?);
        }
        let lines = roles.iter().zip(&files).map(|(role, file)| format!("{role} is published by {}", file.display()));
        self.print(lines, &json!(roles));
        Ok(())
    }

    /// Prints the addresses of all services, or writes them to a file if they changed.
    pub async fn cache_services(&self, file: Option<&Path>) -> Result<(), Exit> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.connect().await?, NAMESPACE);
        let published = ListParams::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
        let found = addresses(&slices.list(&published).await.context("list services of machines")?.items);
        let lines: Vec<String> = found.iter().flat_map(|(role, interfaces)| yaml_lines(role, interfaces)).collect();
        let Some(file) = file else {
            self.print(lines, &json!(found));
            return Ok(());
        };
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let is_same = std::fs::read_to_string(file).is_ok_and(|before| before == text);
        if !is_same {
            write_atomic(file, text.as_bytes(), CACHE_MODE, Durability::Durable)
                .with_context(|| format!("write {}", file.display()))?;
        }
        let words = if is_same { "is up to date" } else { "is written" };
        self.print([format!("{} {words}", file.display())], &json!({"file": file, "changed": !is_same}));
        Ok(())
    }
}

/// Of all instances, also those that are not ready: configuration needs members before they work.
fn addresses(slices: &[EndpointSlice]) -> Addresses {
    let mut all = Addresses::new();
    for slice in slices {
        let service = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME));
        let interfaces = slice.metadata.annotations.as_ref().and_then(|annotations| annotations.get(INTERFACES));
        let (Some(service), Some(interfaces)) = (service, interfaces) else { continue };
        for (interface, address) in parse_interfaces(interfaces) {
            all.entry(service.clone()).or_default().entry(interface.to_owned()).or_default().push(address);
        }
    }
    for addresses in all.values_mut().flat_map(BTreeMap::values_mut) {
        addresses.sort();
        addresses.dedup();
    }
    all
}

/// `services::<role>::<interface>: [address, …]`
fn yaml_lines(role: &str, interfaces: &BTreeMap<String, Vec<Ipv4Addr>>) -> Vec<String> {
    let line = |(interface, addresses): (&String, &Vec<Ipv4Addr>)| {
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        format!("services::{role}::{interface}: [{}]", addresses.join(", "))
    };
    interfaces.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_listed_by_service_and_interface() {
        let slice = |service: &str, interfaces: &str| -> EndpointSlice {
            serde_json::from_value(json!({
                "metadata": {"labels": {SERVICE_NAME: service}, "annotations": {INTERFACES: interfaces}},
                "addressType": "IPv4", "endpoints": [],
            }))
            .unwrap()
        };
        let found = addresses(&[
            slice("ceph-mon", "eth0=10.0.0.2,eth1=10.1.0.2"),
            slice("ceph-mon", "eth0=10.0.0.1"),
            slice("ceph-mon", "eth0=10.0.0.1"),
            slice("web", "eth0=10.0.0.1"),
        ]);
        let lines: Vec<String> = found.iter().flat_map(|(role, interfaces)| yaml_lines(role, interfaces)).collect();
        assert_eq!(
            lines,
            [
                "services::ceph-mon::eth0: [10.0.0.1, 10.0.0.2]",
                "services::ceph-mon::eth1: [10.1.0.2]",
                "services::web::eth0: [10.0.0.1]",
            ]
        );
    }
}
