//! Apps that need each other, in every order of creation and with kills meanwhile: a model of several pods under virtual time, in which
//! [`evaluate`] decides as a node does and the worker's plan is asked what it would do.

use std::{collections::BTreeMap, net::Ipv4Addr};

use k8s_openapi::api::core::v1::Pod;
use mainstay_api::needs::Needs;
use mainstay_network::catalogue::{Catalogue, Endpoint, HOLD, Key, Service, ServiceKind, Slice};

use super::evaluate::evaluate;
use crate::pods::Source;

/// Five apps: a chain, a fan-in, a mutual need of addresses, and needs that are kept.
const APPS: [(&str, &str); 5] = [
    ("mysql", ""),
    ("keystone", "mysql >= 1 ready keep"),
    ("balancer", "controller addressable"),
    ("controller", "balancer addressable, keystone ready keep"),
    ("dashboard", "controller ready, balancer ready, keystone ready"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AppState {
    /// Created, with an address, and waits.
    Waiting,
    Started,
    Ready,
}

#[derive(Default)]
struct Model {
    catalogue: Catalogue,
    apps: BTreeMap<String, (Needs, AppState)>,
    restarts: usize,
}

impl Model {
    fn create(&mut self, name: &str, needs: &str) {
        let service = Service {
            kind: ServiceKind::Headless,
            ports: vec![],
            external_ips: vec![],
            affinity: None,
            internal_local: false,
            external_local: false,
            hold: HOLD,
            through_user_space: false,
            publish_not_ready: false,
            has_other_proxy: false,
            tags: vec![],
        };
        self.catalogue.set_service(Key::new("a", name), Some(service));
        self.catalogue.set_complete();
        let needs = if needs.is_empty() { Needs::default() } else { needs.parse().expect("needs") };
        self.apps.insert(name.to_owned(), (needs, AppState::Waiting));
        self.publish(name);
    }

    /// Endpoints follow the pod, ready or not.
    fn publish(&self, name: &str) {
        let last = self.apps.keys().position(|app| app == name).unwrap_or_default();
        let serving = self.apps.get(name).is_some_and(|(_, state)| *state == AppState::Ready);
        let endpoint = Endpoint {
            address: Ipv4Addr::from(0x0af4_0000 + u32::try_from(last).expect("few apps") + 1),
            ready: serving,
            serving,
            terminating: false,
            node: None,
            hostname: None,
            hints: Default::default(),
        };
        let slice = Slice { service: name.into(), ports: vec![], endpoints: vec![endpoint], host: None };
        self.catalogue.set_slice(Key::new("a", name), Some(slice));
    }

    /// Its pod is gone and another takes its place; that is no restart of anybody else.
    fn kill(&mut self, name: &str) {
        if let Some((_, state)) = self.apps.get_mut(name) {
            *state = AppState::Waiting;
            self.publish(name);
        }
    }

    /// One tick: every app takes one step. Returns whether anything changed.
    fn tick(&mut self) -> bool {
        let mut changed = false;
        let names: Vec<String> = self.apps.keys().cloned().collect();
        for name in names {
            let (needs, state) = self.apps[&name].clone();
            let found = evaluate(&needs, &Pod::default_in("a"), Source::Api, Some(&self.catalogue.read()));
            let next = match state {
                AppState::Waiting if found.message().is_none() => AppState::Started,
                AppState::Waiting => AppState::Waiting,
                // From now on only needs that are to be kept count, and only for readiness.
                AppState::Started | AppState::Ready if found.message_after_start().is_some() => AppState::Started,
                AppState::Started | AppState::Ready => AppState::Ready,
            };
            if state != AppState::Waiting && next == AppState::Waiting {
                self.restarts += 1;
            }
            if next != state {
                changed = true;
                self.apps.insert(name.clone(), (needs, next));
                self.publish(&name);
            }
        }
        changed
    }

    fn settle(&mut self) {
        for _ in 0..100 {
            if !self.tick() {
                return;
            }
        }
        panic!("it never rests");
    }

    fn all_ready(&self) -> bool {
        self.apps.values().all(|(_, state)| *state == AppState::Ready)
    }
}

trait InNamespace {
    fn default_in(namespace: &str) -> Self;
}

impl InNamespace for Pod {
    fn default_in(namespace: &str) -> Self {
        let mut pod = Self::default();
        pod.metadata.namespace = Some(namespace.to_owned());
        pod
    }
}

/// All orders of so many things.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![vec![]];
    }
    let shorter = orders(count - 1);
    let insert = |order: &Vec<usize>, at: usize| {
        let mut order = order.clone();
        order.insert(at, count - 1);
        order
    };
    shorter.iter().flat_map(|order| (0..count).map(move |at| insert(order, at))).collect()
}

#[test]
fn five_apps_in_all_orders_of_creation_come_to_the_same() {
    let orders = orders(APPS.len());
    assert_eq!(orders.len(), 120);
    // Created at once, or each when the ones before have come to rest.
    for (order, settles) in orders.iter().flat_map(|order| [(order, false), (order, true)]) {
        let mut model = Model::default();
        for app in order {
            let (name, needs) = APPS[*app];
            model.create(name, needs);
            if settles {
                model.settle();
            }
        }
        model.settle();
        assert!(model.all_ready(), "{order:?}: {:?}", model.apps);
        assert_eq!(model.restarts, 0);
    }
}

#[test]
fn kills_at_any_time_in_any_order_change_nothing_in_the_end() {
    for (number, order) in orders(APPS.len()).iter().enumerate() {
        let mut random = fastrand::Rng::with_seed(number as u64);
        let mut model = Model::default();
        for app in order {
            let (name, needs) = APPS[*app];
            model.create(name, needs);
            for _ in 0..random.usize(0..4) {
                model.tick();
                let victim = APPS[random.usize(..APPS.len())].0;
                model.kill(victim);
            }
        }
        model.settle();
        assert!(model.all_ready(), "seed {number}: {:?}", model.apps);
        assert_eq!(model.restarts, 0, "who started never goes back to waiting");
    }
}

#[test]
fn two_hundred_dependents_of_a_dead_service_are_not_restarted_and_follow_its_return_at_once() {
    let mut model = Model::default();
    model.create("mysql", "");
    for number in 0..200 {
        // Every second one started before the database died.
        model.create(&format!("app-{number:03}"), "mysql ready keep");
        if number == 99 {
            model.settle();
        }
    }
    let (needs, _) = model.apps["mysql"].clone();
    let dead: Needs = "nothing".parse().expect("needs");
    model.apps.insert("mysql".to_owned(), (dead, AppState::Waiting));
    model.publish("mysql");
    model.settle();
    let count = |model: &Model, wanted: AppState| model.apps.values().filter(|(_, state)| *state == wanted).count();
    assert_eq!((count(&model, AppState::Waiting), count(&model, AppState::Started)), (101, 100), "mysql waits, too");
    model.apps.insert("mysql".to_owned(), (needs, AppState::Waiting));
    let mut ticks = 0;
    while !model.all_ready() {
        assert!(model.tick(), "{:?}", model.apps);
        ticks += 1;
    }
    assert_eq!(model.restarts, 0);
    assert!(ticks <= 4, "start and readiness of the database, then of all others together: {ticks}");
}
