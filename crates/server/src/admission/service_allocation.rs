//! ServiceAllocation: cluster addresses and node ports of Services, each held by a key of its own.
//!
//! Addresses are of the server's own range and of every ServiceCIDR that is ready and not being deleted. Taking one is a compare that its key is absent and a put, in the very transaction that writes
//! the Service: two servers can never give out the same one, and a crash can neither leak nor
//! double one. Addresses are upstream's `IPAddress` objects; ports have keys of ours.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

use async_trait::async_trait;
use mainstay_api::{
    descriptor::Descriptor,
    field::{FieldError, Path},
    validation::names,
};
use mainstay_store::{List, Op};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Plugin, Request, TxnAdditions};
use crate::{
    api::{self, Api},
    http::status::{ApiError, ApiResult},
    objects::{metadata, object::Wire},
    settings::Settings,
};

const ADDRESSES: &str = "/registry/ipaddresses/";
const PORTS: &str = "/mainstay/nodeports/";
const SERVICE_CIDR: &str = "ServiceCIDR";
const SERVICE_CIDRS: &str = "servicecidrs";
/// Random picks before the whole range is looked through.
const GUESSES: usize = 16;
/// The low end of the range is left to addresses people choose themselves, while there are others.
const STATIC_BAND: u32 = 256;

pub struct ServiceAllocation;

#[async_trait]
impl Plugin for ServiceAllocation {
    fn name(&self) -> &'static str {
        "ServiceAllocation"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.is_core("Service") || d.kind == SERVICE_CIDR
    }

    async fn create(&self, request: &Request<'_>, object: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
        if request.target.d.kind == SERVICE_CIDR {
            return check_range(&request.api.settings, object);
        }
        allocate(request.api, object, None, txn).await
    }

    async fn update(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        old: &Value,
        txn: &mut TxnAdditions,
    ) -> ApiResult<()> {
        if request.target.d.kind == SERVICE_CIDR {
            let is_same = object["spec"] == old["spec"];
            return if is_same { Ok(()) } else { check_range(&request.api.settings, object) };
        }
        allocate(request.api, object, Some(old), txn).await?;
        let (before, now) = (allocated_keys(old), allocated_keys(object));
        txn.ops.extend(before.difference(&now).map(|key| Op::Delete { key: key.as_str().into() }));
        Ok(())
    }

    fn release(&self, old: &Value) -> Vec<Op> {
        allocated_keys(old).into_iter().map(|key| Op::Delete { key: key.into() }).collect()
    }
}

/// The keys of the addresses and ports that a Service has.
fn allocated_keys(service: &Value) -> BTreeSet<String> {
    let addresses = service["spec"]["clusterIPs"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let addresses = addresses.filter(|ip| *ip != "None" && !ip.is_empty()).map(|ip| format!("{ADDRESSES}{ip}"));
    let ports = service["spec"]["ports"].as_array().into_iter().flatten().map(|port| &port["nodePort"]);
    let ports = ports.chain([&service["spec"]["healthCheckNodePort"]]).filter_map(Value::as_u64);
    addresses.chain(ports.filter(|port| *port > 0).map(|port| format!("{PORTS}{port}"))).collect()
}

/// Allocates what the Service should have and does not have yet.
async fn allocate(api: &Api, service: &mut Value, old: Option<&Value>, txn: &mut TxnAdditions) -> ApiResult<()> {
    let already = old.map(allocated_keys).unwrap_or_default();
    let kind = service["spec"]["type"].as_str().unwrap_or("ClusterIP").to_owned();
    if kind == "ExternalName" {
        return Ok(());
    }
    allocate_address(api, service, &already, txn).await?;
    let wants_ports = kind == "NodePort"
        || (kind == "LoadBalancer" && service["spec"]["allocateLoadBalancerNodePorts"] != json!(false));
    allocate_ports(api, service, &already, wants_ports, txn).await?;
    let local = kind == "LoadBalancer" && service["spec"]["externalTrafficPolicy"] == "Local";
    if local && service["spec"]["healthCheckNodePort"].as_u64().unwrap_or(0) == 0 {
        let port = free_port(api, &BTreeSet::new()).await?;
        service["spec"]["healthCheckNodePort"] = json!(port);
        txn.claim(format!("{PORTS}{port}"), owner(service).into_bytes());
    }
    Ok(())
}

async fn allocate_address(
    api: &Api,
    service: &mut Value,
    already: &BTreeSet<String>,
    txn: &mut TxnAdditions,
) -> ApiResult<()> {
    let given = service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
    if given == "None" {
        return Ok(());
    }
    let address = if given.is_empty() {
        free_address(api).await?.to_string()
    } else {
        if already.contains(&format!("{ADDRESSES}{given}")) {
            return Ok(());
        }
        check_address(api, service, &given).await?;
        given
    };
    service["spec"]["clusterIP"] = json!(address);
    service["spec"]["clusterIPs"] = json!([address]);
    let record = json!({
        "kind": "IPAddress",
        "apiVersion": "networking.k8s.io/v1",
        "metadata": {
            "name": address,
            "uid": Uuid::new_v4(),
            "creationTimestamp": api::now().to_string(),
            "labels": {
                "ipaddress.kubernetes.io/ip-family": "IPv4",
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            },
        },
        "spec": { "parentRef": {
            "resource": "services",
            "namespace": metadata::string_field(service, "namespace"),
            "name": metadata::string_field(service, "name"),
        } },
    });
    txn.claim(format!("{ADDRESSES}{address}"), Wire::encode(&record).json().to_vec());
    Ok(())
}

async fn check_address(api: &Api, service: &Value, given: &str) -> ApiResult<()> {
    let refuse = |why: String| {
        let path = Path::new("spec").child("clusterIPs");
        let error = FieldError::invalid(&path, json!([given]), format!("failed to allocate IP {given}: {why}"));
        Err(invalid(service, error))
    };
    let ranges = AddressRange::all(api);
    match given.parse() {
        Ok(ip) if ranges.iter().any(|range| range.contains(ip)) => {}
        _ => {
            let ranges: Vec<String> = ranges.iter().map(AddressRange::to_string).collect();
            return refuse(format!(
                "the provided IP ({given}) is not in the valid range. The range of valid IPs is {}",
                ranges.join(", ")
            ));
        }
    }
    match api.store.get(&format!("{ADDRESSES}{given}")).await?.0 {
        Some(_) => refuse("provided IP is already allocated".to_owned()),
        None => Ok(()),
    }
}

async fn allocate_ports(
    api: &Api,
    service: &mut Value,
    already: &BTreeSet<String>,
    wanted: bool,
    txn: &mut TxnAdditions,
) -> ApiResult<()> {
    let (low, high) = api.settings.node_ports;
    let owner = owner(service);
    let mut ports = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
    // One Service may use a port number once per protocol.
    let mut mine: BTreeSet<u64> = ports.iter().filter_map(|p| p["nodePort"].as_u64()).filter(|p| *p > 0).collect();
    let mut taken = BTreeSet::new();
    for (index, port) in ports.iter_mut().enumerate() {
        let number = match port["nodePort"].as_u64().filter(|number| *number > 0) {
            Some(number) => {
                let path = Path::new("spec").child("ports").index(index).child("nodePort");
                let key = format!("{PORTS}{number}");
                if already.contains(&key) {
                    continue;
                }
                let refuse = |why: String| Err(invalid(service, FieldError::invalid(&path, number, why)));
                if !(u64::from(low)..=u64::from(high)).contains(&number) {
                    return refuse(format!(
                        "provided port is not in the valid range. The range of valid ports is {low}-{high}"
                    ));
                }
                if api.store.get(&key).await?.0.is_some() {
                    return refuse("provided port is already allocated".to_owned());
                }
                number
            }
            None if wanted => {
                let number = u64::from(free_port(api, &mine).await?);
                port["nodePort"] = json!(number);
                mine.insert(number);
                number
            }
            None => continue,
        };
        if taken.insert(number) {
            txn.claim(format!("{PORTS}{number}"), owner.clone().into_bytes());
        }
    }
    if !ports.is_empty() {
        service["spec"]["ports"] = Value::Array(ports);
    }
    Ok(())
}

fn owner(service: &Value) -> String {
    let text = |field| metadata::string_field(service, field).unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}

fn invalid(service: &Value, error: FieldError) -> Box<ApiError> {
    ApiError::invalid_kind("", "Service", metadata::string_field(service, "name").unwrap_or_default(), &error.into())
}

/// Refuses a ServiceCIDR with addresses of pods: an address must belong to a Service or to a pod.
fn check_range(settings: &Settings, object: &Value) -> ApiResult<()> {
    let pods = AddressRange::new(settings.pod_range);
    let path = Path::new("spec").child("cidrs");
    let ranges = object["spec"]["cidrs"].as_array().into_iter().flatten().filter_map(Value::as_str).enumerate();
    for (index, text) in ranges {
        if AddressRange::parse(text).is_some_and(|range| range.overlaps(&pods)) {
            let error =
                FieldError::invalid(&path.index(index), text, format!("overlaps with {pods}, the range of pods"));
            let name = metadata::string_field(object, "name").unwrap_or_default();
            return Err(ApiError::invalid_kind("networking.k8s.io", SERVICE_CIDR, name, &error.into()));
        }
    }
    Ok(())
}

/// Whether Services may get addresses of a ServiceCIDR. One without a condition is ready: its controller may not have seen it yet.
fn is_usable(cidr: &Value) -> bool {
    let mut conditions = cidr["status"]["conditions"].as_array().into_iter().flatten();
    let is_refused = conditions.any(|condition| condition["type"] == "Ready" && condition["status"] != "True");
    metadata::string_field(cidr, "deletionTimestamp").is_none() && !is_refused
}

#[derive(Debug, PartialEq, Eq)]
struct AddressRange {
    base: u32,
    bits: u8,
}

impl AddressRange {
    fn new((base, bits): (Ipv4Addr, u8)) -> Self {
        Self { base: u32::from(base), bits }
    }

    /// A range of IPv4 addresses of which some can be given.
    fn parse(text: &str) -> Option<Self> {
        match names::parse_cidr(text)? {
            (IpAddr::V4(address), bits) if bits <= 30 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                Some(Self { base: u32::from(address) & mask, bits })
            }
            _ => None,
        }
    }

    /// Those of the cluster: the server's own, then those of other ServiceCIDRs in the order of their names.
    fn all(api: &Api) -> Vec<Self> {
        let mut ranges = vec![Self::new(api.settings.service_range)];
        for cidr in api.admission_cache.list(SERVICE_CIDRS, None) {
            let listed = cidr.value["spec"]["cidrs"].as_array().into_iter().flatten().filter_map(Value::as_str);
            for range in listed.filter_map(Self::parse).filter(|_| is_usable(&cidr.value)) {
                if !ranges.contains(&range) {
                    ranges.push(range);
                }
            }
        }
        ranges
    }

    fn size(&self) -> u32 {
        1u32.checked_shl(32 - u32::from(self.bits)).unwrap_or(u32::MAX)
    }

    fn contains(&self, ip: Ipv4Addr) -> bool {
        let offset = u32::from(ip).wrapping_sub(self.base);
        (1..self.size() - 1).contains(&offset)
    }

    fn overlaps(&self, other: &Self) -> bool {
        let bits = self.bits.min(other.bits);
        (self.base ^ other.base).checked_shr(32 - u32::from(bits)).unwrap_or(0) == 0
    }

    fn nth(&self, offset: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.base + offset)
    }
}

impl std::fmt::Display for AddressRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.base), self.bits)
    }
}

/// The names below a prefix, all of them.
async fn taken_below(api: &Api, prefix: &str) -> ApiResult<BTreeSet<String>> {
    let listing = api.store.list(List { prefix, ..List::default() }).await?;
    Ok(listing.entries.iter().filter_map(|entry| entry.key.strip_prefix(prefix)).map(str::to_owned).collect())
}

async fn free_address(api: &Api) -> ApiResult<Ipv4Addr> {
    let ranges = AddressRange::all(api);
    for range in &ranges {
        if let Some(address) = free_address_in(api, range).await? {
            return Ok(address);
        }
    }
    let ranges: Vec<String> = ranges.iter().map(AddressRange::to_string).collect();
    Err(ApiError::internal(format!("failed to allocate a serviceIP: range {} is full", ranges.join(", "))))
}

async fn free_address_in(api: &Api, range: &AddressRange) -> ApiResult<Option<Ipv4Addr>> {
    let last = range.size() - 1; // the broadcast address stays out
    let first = if last > 2 * STATIC_BAND { STATIC_BAND } else { 1 };
    for _ in 0..GUESSES {
        let address = range.nth(fastrand::u32(first..last));
        if api.store.get(&format!("{ADDRESSES}{address}")).await?.0.is_none() {
            return Ok(Some(address));
        }
    }
    let taken = taken_below(api, ADDRESSES).await?;
    let mut all = (first..last).chain(1..first).map(|offset| range.nth(offset));
    Ok(all.find(|address| !taken.contains(&address.to_string())))
}

async fn free_port(api: &Api, mine: &BTreeSet<u64>) -> ApiResult<u16> {
    let (low, high) = api.settings.node_ports;
    let free = |port: &u16| !mine.contains(&u64::from(*port));
    for _ in 0..GUESSES {
        let port = fastrand::u16(low..=high);
        if free(&port) && api.store.get(&format!("{PORTS}{port}")).await?.0.is_none() {
            return Ok(port);
        }
    }
    let taken = taken_below(api, PORTS).await?;
    (low..=high)
        .find(|port| free(port) && !taken.contains(&port.to_string()))
        .ok_or_else(|| ApiError::internal(format!("failed to allocate a nodePort: range {low}-{high} is full")))
}

#[cfg(test)]
mod tests;
