use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ObjectReference;
use proptest::prelude::*;

use super::*;

fn port(number: i32) -> Port {
    Port { name: "http".into(), protocol: "TCP".into(), port: number, app_protocol: None }
}

fn endpoint(number: u32, hostname: &str) -> Endpoint {
    let pod = ObjectReference { uid: Some(format!("u{number}")), ..ObjectReference::default() };
    Endpoint {
        addresses: vec![std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string()],
        hostname: Some(hostname.to_owned()),
        target_ref: Some(pod),
        ..Endpoint::default()
    }
}

fn frame(team: &str) -> SliceTemplate {
    let owner = OwnerReference { name: "web".into(), uid: "me".into(), ..OwnerReference::default() };
    SliceTemplate {
        namespace: "ns".into(),
        owner,
        labels: [("team".to_owned(), team.to_owned())].into(),
        annotations: None,
        names: (0..1000).map(|number| format!("web-{number:04}")).collect(),
        placeholder: true,
    }
}

/// With the names that these slices leave free.
fn vacant(slices: &[Arc<EndpointSlice>]) -> SliceTemplate {
    let mut frame = frame("a");
    frame.names.retain(|name| slices.iter().all(|slice| slice.metadata.name.as_ref() != Some(name)));
    frame
}

fn wanted(groups: &BTreeMap<i32, BTreeMap<u32, String>>) -> DesiredEndpoints {
    let placed = |(number, name): (&u32, &String)| DesiredEndpoint { endpoint: endpoint(*number, name), since: None };
    let groups = groups.iter().filter(|(_, endpoints)| !endpoints.is_empty());
    groups.map(|(number, all)| (("IPv4", vec![port(*number)]), all.iter().map(placed).collect())).collect()
}

fn existing(name: &str, owner: &str, ports: &[i32], endpoints: Vec<Endpoint>) -> Arc<EndpointSlice> {
    let ports: Vec<Port> = ports.iter().map(|number| port(*number)).collect();
    let mut made = slice(&frame("a"), None, ports, endpoints, None);
    made.metadata.name = Some(name.to_owned());
    made.metadata.uid = Some(format!("uid-{name}"));
    made.metadata.resource_version = Some("1".to_owned());
    made.metadata.owner_references.iter_mut().flatten().for_each(|own| own.uid = owner.to_owned());
    made.address_type = "IPv4".to_owned();
    Arc::new(made)
}

/// The API as far as slices go.
fn applied(existing: &[Arc<EndpointSlice>], packed: &SlicePlan) -> Vec<Arc<EndpointSlice>> {
    let mut slices: BTreeMap<String, Arc<EndpointSlice>> =
        existing.iter().map(|slice| (slice.metadata.name.clone().unwrap(), slice.clone())).collect();
    for write in &packed.writes {
        match write {
            Write::Create(slice) => {
                let before = slices.insert(slice.metadata.name.clone().unwrap(), Arc::new((**slice).clone()));
                assert!(before.is_none(), "a name taken twice");
            }
            Write::Replace(slice) => {
                let before = slices.insert(slice.metadata.name.clone().unwrap(), Arc::new((**slice).clone())).unwrap();
                assert_eq!(before.address_type, slice.address_type, "which cannot be changed");
                assert_ne!(*before, **slice, "written needlessly");
            }
            Write::Delete { name, .. } => assert!(slices.remove(name).is_some(), "deleted twice"),
        }
    }
    slices.into_values().collect()
}

fn check(slices: &[Arc<EndpointSlice>], groups: &BTreeMap<i32, BTreeMap<u32, String>>) {
    let mut found: BTreeMap<i32, Vec<Endpoint>> = BTreeMap::new();
    for slice in slices {
        let endpoints = slice.endpoints.as_deref().unwrap_or_default();
        assert!(endpoints.len() <= MOST, "too many in one");
        for port in slice.ports.iter().flatten() {
            found.entry(port.port.unwrap()).or_default().extend(endpoints.to_vec());
        }
        assert!(!endpoints.is_empty() || slices.len() == 1, "an empty one among others");
    }
    assert!(!slices.is_empty(), "at least one shows that there is nobody");
    let groups = groups.iter().filter(|(_, endpoints)| !endpoints.is_empty());
    let wanted: BTreeMap<i32, BTreeSet<String>> = groups
        .map(|(port, all)| (*port, all.iter().map(|(n, name)| format!("{:?}", endpoint(*n, name))).collect()))
        .collect();
    assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
    for (port, all) in found {
        let unique: BTreeSet<String> = all.iter().map(|endpoint| format!("{endpoint:?}")).collect();
        assert_eq!((unique.len(), &unique), (all.len(), &wanted[&port]), "each exactly once");
    }
}

fn groups() -> impl Strategy<Value = BTreeMap<i32, BTreeMap<u32, String>>> {
    let endpoints = proptest::collection::btree_map(0..400u32, "[ab]", 0..260);
    proptest::collection::btree_map(80..83, endpoints, 0..3)
}

fn junk() -> impl Strategy<Value = Vec<Arc<EndpointSlice>>> {
    let slice = (
        proptest::sample::select(vec!["me", "me", "me", "another"]),
        proptest::collection::vec(80..83i32, 0..2),
        proptest::collection::vec((0..400u32, "[ab]"), 0..130),
    );
    proptest::collection::vec(slice, 0..6).prop_map(|slices| {
        let made = slices.into_iter().enumerate().map(|(at, (owner, ports, endpoints))| {
            let endpoints = endpoints.iter().map(|(number, name)| endpoint(*number, name)).collect();
            existing(&format!("junk-{at}"), owner, &ports, endpoints)
        });
        made.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn from_any_junk_one_pass_makes_it_right_and_the_next_rests(slices in junk(), groups in groups()) {
        let packed = pack(&slices, wanted(&groups), &frame("a"));
        prop_assert!(packed.complete);
        let now = applied(&slices, &packed);
        check(&now, &groups);
        prop_assert_eq!(pack(&now, wanted(&groups), &frame("a")).writes, vec![]);
    }

    #[test]
    fn through_any_changes_no_slice_is_touched_without_need(all in proptest::collection::vec(groups(), 1..5)) {
        let mut slices = Vec::new();
        for groups in all {
            let packed = pack(&slices, wanted(&groups), &vacant(&slices));
            let now = applied(&slices, &packed);
            check(&now, &groups);
            let deletes = packed.writes.iter().any(|write| matches!(write, Write::Delete { .. }));
            let creates = packed.writes.iter().any(|write| matches!(write, Write::Create(_)));
            prop_assert!(!(deletes && creates), "made anew what could be used again");
            slices = now;
        }
    }

    #[test]
    fn one_pod_more_or_less_is_one_write(count in 1..350u32, gone in any::<prop::sample::Index>()) {
        let full: BTreeMap<u32, String> = (0..count).map(|number| (number, "a".to_owned())).collect();
        let groups = |all: &BTreeMap<u32, String>| BTreeMap::from([(80, all.clone())]);
        let slices = applied(&[], &pack(&[], wanted(&groups(&full)), &frame("a")));
        prop_assert_eq!(slices.len(), (count as usize).div_ceil(MOST));
        let mut fewer = full.clone();
        fewer.remove(&(gone.index(count as usize) as u32));
        let packed = pack(&slices, wanted(&groups(&fewer)), &frame("a"));
        prop_assert_eq!(packed.writes.len(), 1);
        let slices = applied(&slices, &packed);
        let back = pack(&slices, wanted(&groups(&full)), &vacant(&slices));
        prop_assert_eq!(back.writes.len(), 1);
        let slices = applied(&slices, &back);
        let mut other = full;
        other.insert(gone.index(count as usize) as u32, "b".to_owned());
        let packed = pack(&slices, wanted(&groups(&other)), &frame("a"));
        prop_assert_eq!(packed.writes.len(), 1);
        prop_assert!(matches!(packed.writes[0], Write::Replace(_)));
    }
}

#[test]
fn new_labels_reach_all_slices_and_nothing_else_changes() {
    let groups = BTreeMap::from([(80, (0..150).map(|number| (number, "a".to_owned())).collect())]);
    let slices = applied(&[], &pack(&[], wanted(&groups), &frame("a")));
    let packed = pack(&slices, wanted(&groups), &frame("b"));
    assert_eq!(packed.writes.len(), 2);
    for write in packed.writes {
        let Write::Replace(slice) = write else { panic!("{write:?}") };
        assert_eq!(slice.metadata.labels.unwrap()["team"], "b");
    }
}

#[test]
fn with_nobody_behind_it_one_empty_slice_stays() {
    let packed = pack(&[], DesiredEndpoints::new(), &frame("a"));
    let slices = applied(&[], &packed);
    assert_eq!(
        (slices.len(), slices[0].endpoints.as_ref().unwrap().len(), slices[0].address_type.as_str()),
        (1, 0, "IPv4")
    );
    assert_eq!(pack(&slices, DesiredEndpoints::new(), &frame("a")).writes, []);
    let one = BTreeMap::from([(80, BTreeMap::from([(1, "a".to_owned())]))]);
    let packed = pack(&slices, wanted(&one), &frame("a"));
    assert!(matches!(&packed.writes[..], [Write::Replace(_)]), "the empty one is used");
    let none = pack(&[], DesiredEndpoints::new(), &SliceTemplate { placeholder: false, ..frame("a") });
    assert_eq!(none.writes, []);
}

#[test]
fn what_belongs_to_one_that_is_gone_is_deleted() {
    let slices = [existing("old", "another", &[80], vec![endpoint(1, "a")])];
    let one = BTreeMap::from([(80, BTreeMap::from([(1, "a".to_owned())]))]);
    let packed = pack(&slices, wanted(&one), &frame("a"));
    assert!(matches!(&packed.writes[..], [Write::Delete { name, .. }, Write::Create(_)] if name == "old"));
}

#[test]
fn a_turn_makes_as_many_as_it_has_names_for() {
    let many: BTreeMap<i32, _> = (80..90).map(|port| (port, BTreeMap::from([(1, "a".to_owned())]))).collect();
    let mut narrow = frame("a");
    narrow.names.truncate(4);
    let packed = pack(&[], wanted(&many), &narrow);
    assert_eq!((packed.writes.len(), packed.complete), (4, false));
}

#[test]
fn a_slice_says_when_the_first_of_its_news_came_about() {
    let at = |second: i64| Some(Timestamp::from_second(second).unwrap());
    let placed = |number, name: &str, since| DesiredEndpoint { endpoint: endpoint(number, name), since };
    let group = ("IPv4", vec![port(80)]);
    let all =
        |first: &str| DesiredEndpoints::from([(group.clone(), vec![placed(1, first, at(30)), placed(2, "a", at(20))])]);
    let slices = applied(&[], &pack(&[], all("a"), &frame("a")));
    let noted = |slice: &EndpointSlice| slice.metadata.annotations.as_ref().and_then(|all| all.get(TRIGGERED)).cloned();
    assert_eq!(noted(&slices[0]).as_deref(), Some("1970-01-01T00:00:20Z"));
    let slices = applied(&slices, &pack(&slices, all("b"), &frame("a")));
    assert_eq!(noted(&slices[0]).as_deref(), Some("1970-01-01T00:00:30Z"), "the second is no news");
    let fewer = DesiredEndpoints::from([(group, vec![placed(2, "a", at(20))])]);
    let slices = applied(&slices, &pack(&slices, fewer, &frame("a")));
    assert_eq!(noted(&slices[0]), None, "nobody says when one left");
}
