//! The catalog of a cloud: where each service answers, by region and interface.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The services that are called, by their names in logs, errors and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    Identity,
    Compute,
    Network,
    BlockStorage,
    Image,
    LoadBalancer,
}

impl Service {
    pub fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Compute => "compute",
            Self::Network => "network",
            Self::BlockStorage => "block-storage",
            Self::Image => "image",
            Self::LoadBalancer => "load-balancer",
        }
    }

    /// The types under which catalogs list it, the best first.
    fn types(self) -> &'static [&'static str] {
        match self {
            Self::Identity => &["identity"],
            Self::Compute => &["compute"],
            Self::Network => &["network"],
            Self::BlockStorage => &["block-storage", "volumev3", "block-store"],
            Self::Image => &["image"],
            Self::LoadBalancer => &["load-balancer"],
        }
    }

    /// What the paths of its calls begin with, where the catalog leaves it out.
    fn version_path(self) -> &'static str {
        match self {
            Self::Identity => "/v3",
            Self::Compute => "/v2.1",
            Self::Network => "/v2.0",
            Self::BlockStorage => "/v3",
            Self::Image => "/v2",
            Self::LoadBalancer => "/v2",
        }
    }

    /// The version of the API that its calls are written for: header and value.
    pub(super) fn microversion(self) -> Option<&'static str> {
        match self {
            // Pike's: tags when a server is created.
            Self::Compute => Some("compute 2.52"),
            // Pike's: volumes grow while they are attached.
            Self::BlockStorage => Some("volume 3.42"),
            Self::Identity | Self::Network | Self::Image | Self::LoadBalancer => None,
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct CatalogEntry {
    #[serde(rename = "type")]
    pub service_type: String,
    #[serde(default)]
    pub endpoints: Vec<CatalogEndpoint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct CatalogEndpoint {
    #[serde(default)]
    pub interface: String,
    #[serde(default)]
    pub region_id: Option<String>,
    pub url: String,
}

/// The base of every service's URLs, without a slash at the end.
pub(super) type Endpoints = BTreeMap<Service, String>;

/// Picks the endpoint of every service that the catalog has in a region (the first listed without one), by interface.
pub(super) fn pick_endpoints(catalog: &[CatalogEntry], region: Option<&str>, interface: &str) -> Endpoints {
    use Service::*;
    let services = [Identity, Compute, Network, BlockStorage, Image, LoadBalancer];
    let pick = |service: Service| {
        service.types().iter().find_map(|wanted| {
            let entries = catalog.iter().filter(|entry| entry.service_type == *wanted);
            let mut endpoints = entries.flat_map(|entry| &entry.endpoints);
            endpoints.find(|endpoint| {
                endpoint.interface == interface
                    && region.is_none_or(|region| endpoint.region_id.as_deref() == Some(region))
            })
        })
    };
    services.into_iter().filter_map(|service| Some((service, versioned(service, &pick(service)?.url)))).collect()
}

/// The endpoint with its version: catalogs list some with and some without.
fn versioned(service: Service, url: &str) -> String {
    let url = url.trim_end_matches('/');
    let has_version = url.split('/').any(|part| {
        part.strip_prefix('v').is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
            && part[1..].chars().all(|each| each.is_ascii_digit() || each == '.')
    });
    if has_version { url.to_owned() } else { format!("{url}{}", service.version_path()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn endpoints_are_picked_by_type_region_and_interface() {
        let catalog: Vec<CatalogEntry> = serde_json::from_value(json!([
            {"type": "compute", "endpoints": [
                {"interface": "admin", "region_id": "a", "url": "http://admin/v2.1"},
                {"interface": "public", "region_id": "b", "url": "http://b/v2.1"},
                {"interface": "public", "region_id": "a", "url": "http://a/v2.1/"},
            ]},
            {"type": "network", "endpoints": [{"interface": "public", "region_id": "a", "url": "http://n:9696"}]},
            {"type": "volumev3", "endpoints": [{"interface": "public", "region_id": "a", "url": "http://c/v3/project"}]},
            {"type": "other"},
        ]))
        .unwrap();
        let endpoints = pick_endpoints(&catalog, Some("a"), "public");
        assert_eq!(endpoints[&Service::Compute], "http://a/v2.1");
        assert_eq!(endpoints[&Service::Network], "http://n:9696/v2.0");
        assert_eq!(endpoints[&Service::BlockStorage], "http://c/v3/project");
        assert!(!endpoints.contains_key(&Service::LoadBalancer));
        assert_eq!(pick_endpoints(&catalog, None, "public")[&Service::Compute], "http://b/v2.1");
        assert!(pick_endpoints(&catalog, Some("c"), "public").is_empty());
    }

    #[test]
    fn a_host_that_begins_with_v_is_no_version() {
        assert_eq!(versioned(Service::Image, "https://vault.example"), "https://vault.example/v2");
        assert_eq!(versioned(Service::Image, "https://glance.example/v2"), "https://glance.example/v2");
    }
}
