use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::*;

use super::*;

fn frontend() -> Frontend {
    Frontend { address: Some([10, 96, 0, 1].into()), protocol: Protocol::Tcp, port: 80 }
}

fn pool(count: u8) -> BackendPool {
    BackendPool {
        backends: (0..count).map(|n| SocketAddrV4::new([10, 244, 0, n].into(), 8080)).collect(),
        affinity: None,
        masquerade: false,
        through_user_space: false,
        without_backends: WithoutBackends::Reject,
        internal: None,
        terminating: Vec::new(),
    }
}

#[test]
fn the_disposition_follows_from_backends_protocol_and_settings() {
    let hold = WithoutBackends::Hold(Duration::from_secs(10));
    let udp = Frontend { protocol: Protocol::Udp, ..frontend() };
    let node = Frontend { address: None, ..frontend() };
    let disposition = |frontend: &Frontend, pool: &BackendPool| {
        Disposition::of_frontend(frontend, pool).map(|disposition| disposition.chain()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(disposition(&frontend(), &pool(3)), "balance-3");
    assert_eq!(disposition(&node, &pool(3)), "nodeport-balance-3");
    let sticky = BackendPool { affinity: Some(Duration::from_secs(60)), ..pool(2) };
    assert_eq!(disposition(&frontend(), &sticky), "affinity-2-60");
    assert_eq!(disposition(&node, &sticky), "nodeport-affinity-2-60");
    assert_eq!(disposition(&frontend(), &BackendPool { without_backends: hold, ..pool(2) }), "balance-2");
    assert_eq!(disposition(&frontend(), &BackendPool { without_backends: hold, ..pool(0) }), "hold");
    assert_eq!(disposition(&node, &BackendPool { without_backends: hold, ..pool(0) }), "hold");
    assert_eq!(disposition(&udp, &BackendPool { without_backends: hold, ..pool(0) }), "reject");
    assert_eq!(disposition(&frontend(), &BackendPool { through_user_space: true, ..pool(2) }), "hold");
    assert_eq!(disposition(&udp, &BackendPool { through_user_space: true, ..pool(2) }), "balance-2");
    assert_eq!(disposition(&frontend(), &pool(0)), "reject");
    let silent = BackendPool { without_backends: WithoutBackends::Drop, ..pool(0) };
    assert_eq!(disposition(&frontend(), &silent), "drop");
    assert_eq!(
        disposition(&frontend(), &BackendPool { internal: Some(Box::new(pool(2))), ..silent }),
        "external-drop internal-balance-2"
    );
    assert_eq!(
        disposition(&frontend(), &BackendPool { internal: Some(Box::new(pool(0))), ..pool(1) }),
        "external-balance-1 internal-reject"
    );
}

#[test]
fn every_disposition_has_its_own_key_and_chain() {
    let action = [
        Action::Balance { count: 2 },
        Action::Balance { count: 3 },
        Action::Affinity { count: 2, seconds: 5 },
        Action::Hold,
    ];
    let rest = [Action::Affinity { count: 2, seconds: 6 }, Action::Reject, Action::Drop];
    let dispositions: Vec<Disposition> =
        action.into_iter().chain(rest).map(|action| Disposition { scope: Scope::Address, action }).collect();
    let others = [Scope::NodePort, Scope::Internal, Scope::External].into_iter().flat_map(|scope| {
        [Action::Balance { count: 2 }, Action::Affinity { count: 2, seconds: 5 }, Action::Drop]
            .map(|action| Disposition { scope, action })
    });
    let dispositions: Vec<Disposition> = dispositions.into_iter().chain(others).collect();
    assert_eq!(dispositions.iter().map(Disposition::key).collect::<BTreeSet<_>>().len(), dispositions.len());
    assert_eq!(dispositions.iter().map(Disposition::chain).collect::<BTreeSet<_>>().len(), dispositions.len());
}

#[test]
fn an_element_reads_back_as_it_was_written() {
    let sticky = BackendPool { affinity: Some(Duration::from_secs(60)), ..pool(2) };
    let sticky = BackendPool { internal: Some(Box::new(sticky.clone())), ..sticky };
    for element in frontend_elements(&frontend(), &sticky).into_iter().chain(constant_elements()) {
        let value = element.value().unwrap_or_default();
        assert_eq!(Element::read(element.key.set, element.key.bytes(), value), Some(element));
        assert_eq!(Element::read(element.key.set, &element.key.bytes()[1..], value), None);
    }
    let keys: Vec<ElementKey> = frontend_elements(&frontend(), &sticky).iter().map(|element| element.key).collect();
    assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len(), "internal keys differ");
}

fn backends() -> impl Strategy<Value = BTreeSet<SocketAddrV4>> {
    let one = (0u8..20).prop_map(|n| SocketAddrV4::new([10, 244, 0, n].into(), 80));
    proptest::collection::btree_set(one, 0..15)
}

proptest! {
    #[test]
    fn the_order_has_each_backend_once_and_few_indices_change(old in backends(), new in backends()) {
        let old: Vec<SocketAddrV4> = old.into_iter().rev().collect();
        let order = stable_order(&old, new.iter().copied().collect());
        prop_assert_eq!(order.len(), new.len());
        prop_assert_eq!(&order.iter().copied().collect::<BTreeSet<_>>(), &new);
        let written = order.iter().enumerate().filter(|(index, backend)| old.get(*index) != Some(backend)).count();
        let gone = old.iter().filter(|backend| !new.contains(backend)).count();
        let fresh = order.iter().filter(|backend| !old.contains(backend)).count();
        prop_assert!(written <= gone.max(fresh), "{written} of {gone} gone and {fresh} fresh");
    }

    #[test]
    fn backend_indices_are_those_that_numgen_draws(count in 1u8..50, sticky: bool) {
        let pool = BackendPool { affinity: sticky.then_some(Duration::from_secs(9)), ..pool(count) };
        let all = frontend_elements(&frontend(), &pool);
        let by_key: BTreeMap<ElementKey, Option<Vec<u8>>> =
            all.iter().map(|e| (e.key, e.value().map(<[u8]>::to_vec))).collect();
        prop_assert_eq!(by_key.len(), all.len(), "no key twice");
        let map = if sticky { SetId::AffinityBackends } else { SetId::Backends };
        let indices: BTreeSet<Vec<u8>> =
            all.iter().filter(|e| e.key.set == map).map(|e| e.key.bytes()[12..].to_vec()).collect();
        prop_assert_eq!(indices, (0..u32::from(count)).map(|n| n.to_ne_bytes().to_vec()).collect());
    }
}
