//! Extended resources by DeviceClass: a request of a container for `example.com/gpu`, where a class has that name as its
//! `extendedResourceName`, becomes a request of a ResourceClaim that is made for the pod when it is placed.
//!
//! As upstream's: one claim for a pod, with a request per container and resource. Ordinary init containers use the devices
//! of containers that are started after them, and share one further request for what they need beyond that. Every class
//! is also known as `deviceclass.resource.kubernetes.io/NAME`.
//!
//! The name of the claim follows from the pod, so that an attempt whose result is not known is repeated without making a
//! second one.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    core::v1::ContainerExtendedResourceRequest,
    resource::v1::{DeviceRequest, ExactDeviceRequest},
};
use mainstay_api::validation::resources::is_extended;

/// Before the name of a class.
pub const CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";
/// Of generated names.
const LONGEST_PREFIX: usize = 58;
const SUFFIX: usize = 5;
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// The extended resources that a container requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequests {
    pub name: String,
    /// Its place among all containers, beginning with the init containers.
    pub index: usize,
    /// An init container that ends before the containers start.
    pub ends_early: bool,
    pub requests: Vec<ResourceRequest>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRequest {
    /// Its place among all resources that the container requests, by name.
    pub index: usize,
    pub resource: String,
    pub count: i64,
}

impl ContainerRequests {
    fn find(&self, resource: &str) -> Option<&ResourceRequest> {
        self.requests.iter().find(|own| own.resource == resource && own.count > 0)
    }

    fn device_request(&self, own: &ResourceRequest, class: &str, count: i64) -> DeviceRequest {
        DeviceRequest {
            name: format!("container-{}-request-{}", self.index, own.index),
            exactly: Some(ExactDeviceRequest {
                device_class_name: class.to_owned(),
                allocation_mode: Some("ExactCount".to_owned()),
                count: Some(count),
                ..ExactDeviceRequest::default()
            }),
            first_available: None,
        }
    }

    fn mapping(&self, resource: &str, request: &str) -> ContainerExtendedResourceRequest {
        ContainerExtendedResourceRequest {
            container_name: self.name.clone(),
            resource_name: resource.to_owned(),
            request_name: request.to_owned(),
        }
    }
}

/// Whether a resource may be one of a DeviceClass.
pub fn may_have_class(resource: &str) -> bool {
    is_extended(resource) || resource.starts_with(CLASS_PREFIX)
}

/// The claim that stands for the extended resources of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtendedClaim {
    /// The name of the ResourceClaim.
    pub name: String,
    /// What its name begins with.
    pub generate_name: String,
    /// The resources that it stands for.
    pub resources: BTreeSet<String>,
    pub requests: Vec<DeviceRequest>,
    /// Which container gets the devices of which request.
    pub mappings: Vec<ContainerExtendedResourceRequest>,
}

/// What comes from JSON has no number that differs from itself.
impl Eq for ExtendedClaim {}

impl ExtendedClaim {
    /// `None` if no resource has a class.
    pub fn new(
        pod_name: &str,
        pod_uid: &str,
        containers: &[ContainerRequests],
        classes: &BTreeMap<String, String>,
    ) -> Option<Self> {
        let requested = containers.iter().flat_map(|own| &own.requests).filter(|own| own.count > 0);
        let resources: BTreeSet<String> =
            requested.filter(|own| classes.contains_key(&own.resource)).map(|own| own.resource.clone()).collect();
        if resources.is_empty() {
            return None;
        }
        let mut claim = Self { name: claim_name(pod_name, pod_uid), ..Self::default() };
        claim.generate_name = claim.name[..claim.name.len() - SUFFIX].to_owned();
        for resource in &resources {
            claim.add_resource(resource, &classes[resource], containers);
        }
        claim.requests.sort_by(|a, b| a.name.cmp(&b.name));
        claim.resources = resources;
        Some(claim)
    }

    fn add_resource(&mut self, resource: &str, class: &str, containers: &[ContainerRequests]) {
        // With the place of the container of each.
        let mut lasting: Vec<(usize, DeviceRequest)> = Vec::new();
        for container in containers.iter().filter(|own| !own.ends_early) {
            let Some(own) = container.find(resource) else { continue };
            let request = container.device_request(own, class, own.count);
            self.mappings.push(container.mapping(resource, &request.name));
            lasting.push((container.index, request));
        }
        let (mut shared, mut early_names, mut early_mappings) = (None::<DeviceRequest>, BTreeSet::new(), Vec::new());
        for container in containers.iter().filter(|own| own.ends_early) {
            let Some(own) = container.find(resource) else { continue };
            let mut missing = own.count;
            for (_, later) in lasting.iter().filter(|(index, _)| *index >= container.index) {
                if missing <= 0 {
                    break;
                }
                missing -= count(later);
                early_mappings.push(container.mapping(resource, &later.name));
            }
            if missing > 0 {
                let request = container.device_request(own, class, missing);
                early_mappings.push(container.mapping(resource, &request.name));
                early_names.insert(request.name.clone());
                if shared.as_ref().is_none_or(|known| count(known) < missing) {
                    shared = Some(request);
                }
            }
        }
        for mapping in &mut early_mappings {
            if let Some(shared) = &shared
                && early_names.contains(&mapping.request_name)
            {
                mapping.request_name.clone_from(&shared.name);
            }
        }
        self.mappings.extend(early_mappings);
        self.requests.extend(shared.into_iter().chain(lasting.into_iter().map(|(_, request)| request)));
    }
}

fn count(request: &DeviceRequest) -> i64 {
    request.exactly.as_ref().and_then(|exact| exact.count).unwrap_or(0)
}

fn claim_name(pod_name: &str, pod_uid: &str) -> String {
    let mut name = format!("{pod_name}-extended-resources-");
    name.truncate(LONGEST_PREFIX); // names of pods are ASCII
    // FNV-1a: the same in every version of this program.
    let mut hash = pod_uid
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    for _ in 0..SUFFIX {
        name.push(char::from(ALPHABET[usize::try_from(hash % 27).unwrap_or(0)]));
        hash /= 27;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: &str = "example.com/gpu";

    fn container(name: &str, index: usize, ends_early: bool, count: i64) -> ContainerRequests {
        let request = ResourceRequest { index: 1, resource: GPU.to_owned(), count };
        ContainerRequests { name: name.to_owned(), index, ends_early, requests: vec![request] }
    }

    /// `request=count …; container:request …`.
    fn described(containers: &[ContainerRequests]) -> String {
        let classes = [(GPU.to_owned(), "gpu".to_owned())].into();
        let Some(claim) = ExtendedClaim::new("p", "uid", containers, &classes) else { return "none".to_owned() };
        let requests: Vec<String> = claim.requests.iter().map(|own| format!("{}={}", own.name, count(own))).collect();
        let mappings: Vec<String> =
            claim.mappings.iter().map(|own| format!("{}:{}", own.container_name, own.request_name)).collect();
        format!("{}; {}", requests.join(" "), mappings.join(" ")).replace("container-", "").replace("-request-", "/")
    }

    #[test]
    fn every_container_has_a_request_and_init_containers_use_what_comes_later() {
        for (containers, expected) in [
            (vec![], "none"),
            (vec![container("c", 0, false, 0)], "none"),
            (vec![container("c", 0, false, 2)], "0/1=2; c:0/1"),
            (vec![container("c", 0, false, 2), container("d", 1, false, 1)], "0/1=2 1/1=1; c:0/1 d:1/1"),
            // It needs no more than what the container gets afterwards.
            (vec![container("i", 0, true, 1), container("c", 1, false, 2)], "1/1=2; c:1/1 i:1/1"),
            (vec![container("i", 0, true, 3), container("c", 1, false, 2)], "0/1=1 1/1=2; c:1/1 i:1/1 i:0/1"),
            // Two init containers run one after the other and share what they need beyond that.
            (
                vec![container("i", 0, true, 1), container("j", 1, true, 3), container("c", 2, false, 0)],
                "1/1=3; i:1/1 j:1/1",
            ),
            // A sidecar that was started before keeps its devices.
            (vec![container("s", 0, false, 1), container("i", 1, true, 1)], "0/1=1 1/1=1; s:0/1 i:1/1"),
        ] {
            assert_eq!(described(&containers), expected);
        }
    }

    #[test]
    fn the_name_follows_from_the_pod_and_is_short_enough() {
        let name = claim_name("web", "6c84fb90-12c4-11e1-840d-7b25c5ee775a");
        assert!(name.starts_with("web-extended-resources-") && name.len() == "web-extended-resources-".len() + 5);
        assert_eq!(name, claim_name("web", "6c84fb90-12c4-11e1-840d-7b25c5ee775a"));
        assert_ne!(name, claim_name("web", "6c84fb90-12c4-11e1-840d-7b25c5ee775b"));
        assert_eq!(claim_name(&"x".repeat(253), "u").len(), 63);
    }

    #[test]
    fn resources_of_the_api_itself_have_no_class() {
        for (resource, expected) in [
            (GPU, true),
            ("deviceclass.resource.kubernetes.io/gpu", true),
            ("cpu", false),
            ("hugepages-2Mi", false),
            ("kubernetes.io/batch-cpu", false),
        ] {
            assert_eq!(may_have_class(resource), expected, "{resource}");
        }
    }
}
