//! Random devices and claims: what is allocated is never too much, and always the same.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{DRIVER, claim, slice, stage, using};
use crate::core::{Cluster, devices::ClaimBinding, tests::fixtures::verdict, verdict::Verdict};

#[derive(Clone, Debug)]
struct RandomDevice {
    numa: Option<i64>,
    shared: bool,
    tainted: bool,
}

#[derive(Clone, Debug)]
struct RandomClaim {
    /// Counts; 0 is all.
    requests: Vec<usize>,
    admin: bool,
    constraint: Option<bool>,
    selects_numa: Option<i64>,
}

fn devices() -> impl Strategy<Value = Vec<RandomDevice>> {
    let device = (prop::option::weighted(0.8, 0..3i64), prop::bool::weighted(0.2), prop::bool::weighted(0.1))
        .prop_map(|(numa, shared, tainted)| RandomDevice { numa, shared, tainted });
    proptest::collection::vec(device, 0..7)
}

fn claims() -> impl Strategy<Value = Vec<RandomClaim>> {
    let claim = (
        proptest::collection::vec(0..4usize, 1..3),
        prop::bool::weighted(0.1),
        prop::option::weighted(0.4, any::<bool>()),
        prop::option::weighted(0.2, 0..3i64),
    )
        .prop_map(|(requests, admin, constraint, selects_numa)| RandomClaim {
            requests,
            admin,
            constraint,
            selects_numa,
        });
    proptest::collection::vec(claim, 1..8)
}

fn device_json(nth: usize, device: &RandomDevice) -> Value {
    let mut json = json!({ "name": format!("d{nth}"), "capacity": { "share": { "value": "2" } } });
    if let Some(numa) = device.numa {
        json["attributes"] = json!({ "numa": { "int": numa } });
    }
    if device.shared {
        json["allowMultipleAllocations"] = json!(true);
    }
    if device.tainted {
        json["taints"] = json!([{ "key": "t", "effect": "NoSchedule" }]);
    }
    json
}

fn claim_json(own: &RandomClaim) -> Value {
    let selectors: Vec<Value> = own
        .selects_numa
        .map(|numa| {
            let numa = format!("device.attributes['{DRIVER}'].?numa.orValue(-1) == {numa}");
            json!({ "cel": { "expression": numa } })
        })
        .into_iter()
        .collect();
    let requests: Vec<Value> = own
        .requests
        .iter()
        .enumerate()
        .map(|(nth, count)| {
            let mut exact = json!({ "deviceClassName": "gpu", "selectors": selectors, "adminAccess": own.admin,
                                    "capacity": { "requests": { "share": "1" } } });
            match count {
                0 => exact["allocationMode"] = json!("All"),
                count => exact["count"] = json!(count),
            }
            json!({ "name": format!("r{nth}"), "exactly": exact })
        })
        .collect();
    let constraints: Vec<Value> = own
        .constraint
        .map(|same| {
            let kind = if same { "matchAttribute" } else { "distinctAttribute" };
            json!({ kind: format!("{DRIVER}/numa") })
        })
        .into_iter()
        .collect();
    json!({ "requests": requests, "constraints": constraints })
}

fn build(nodes: &[Vec<RandomDevice>], claims: &[RandomClaim]) -> Cluster {
    let names: Vec<String> = (0..nodes.len()).map(|nth| format!("n{nth}")).collect();
    let mut stage = stage(&names.iter().map(String::as_str).collect::<Vec<_>>());
    for (name, devices) in names.iter().zip(nodes) {
        slice(&mut stage, name, devices.iter().enumerate().map(|(nth, own)| device_json(nth, own)).collect());
    }
    for (nth, own) in claims.iter().enumerate() {
        claim(&mut stage, &format!("c{nth}"), claim_json(own));
    }
    stage
}

/// Places a pod for each claim.
fn play(cluster: &mut Cluster, claims: usize) -> BTreeMap<usize, (String, Vec<ClaimBinding>)> {
    (0..claims)
        .filter_map(|nth| match verdict(cluster, using(&format!("p{nth}"), &[&format!("c{nth}")])) {
            Verdict::Place { node, claims, .. } => Some((nth, (node.to_string(), claims))),
            _ => None,
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn nothing_is_allocated_beyond_what_there_is(
        nodes in proptest::collection::vec(devices(), 1..4), claims in claims(),
    ) {
        let mut cluster = build(&nodes, &claims);
        let placed = play(&mut cluster, claims.len());
        let again = play(&mut build(&nodes, &claims), claims.len());
        prop_assert_eq!(&placed, &again, "the same input has the same result");

        let mut users: BTreeMap<(String, String), usize> = BTreeMap::new();
        for (nth, (node, bindings)) in &placed {
            let own = &claims[*nth];
            let results = bindings[0].allocation.devices();
            let mut numas = Vec::new();
            let mut by_request: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for result in results {
                prop_assert_eq!(&result.pool, node, "devices of its own node");
                let device = &nodes[node[1..].parse::<usize>().unwrap()][result.device[1..].parse::<usize>().unwrap()];
                prop_assert!(!device.tainted);
                prop_assert!(own.selects_numa.is_none_or(|wanted| device.numa == Some(wanted)));
                prop_assert_eq!(result.share_id.is_some(), device.shared && !own.admin);
                numas.push(device.numa);
                by_request.entry(&result.request).or_default().push(&result.device);
                if !own.admin {
                    *users.entry((node.clone(), result.device.clone())).or_default() += 1;
                }
            }
            for (request, count) in own.requests.iter().enumerate() {
                let given = by_request.get(format!("r{request}").as_str()).map_or(0, Vec::len);
                prop_assert!(if *count == 0 { given > 0 } else { given == *count }, "{} of {}", given, count);
            }
            match own.constraint {
                Some(true) => prop_assert!(numas.iter().all(|numa| numa.is_some() && *numa == numas[0])),
                Some(false) => {
                    let distinct: BTreeSet<_> = numas.iter().collect();
                    prop_assert!(distinct.len() == numas.len() && numas.iter().all(Option::is_some));
                }
                None => {}
            }
        }
        for ((node, device), count) in &users {
            let own = &nodes[node[1..].parse::<usize>().unwrap()][device[1..].parse::<usize>().unwrap()];
            prop_assert!(*count <= if own.shared { 2 } else { 1 }, "{}/{} for {} claims", node, device, count);
        }

        // What was assumed and is forgotten leaves nothing behind.
        for nth in placed.keys() {
            cluster.devices.forget_pod(&format!("p{nth}-uid"));
            cluster.remove_pod(&using(&format!("p{nth}"), &[]).key);
        }
        prop_assert_eq!(&play(&mut cluster, claims.len()), &placed);
    }

    /// A single request without constraints is satisfied exactly if enough devices are free on some node.
    #[test]
    fn a_request_that_can_be_satisfied_is(devices in devices(), count in 1..5usize) {
        let wanted = RandomClaim { requests: vec![count], admin: false, constraint: None, selects_numa: None };
        let mut cluster = build(std::slice::from_ref(&devices), &[wanted]);
        let usable = devices.iter().filter(|device| !device.tainted);
        let room: usize = usable.map(|device| if device.shared { 2 } else { 1 }).sum();
        prop_assert_eq!(play(&mut cluster, 1).len() == 1, room >= count);
    }
}
