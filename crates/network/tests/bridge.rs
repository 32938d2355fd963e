//! Bridges in network namespaces of their own: machines and pods are threads, which take their namespaces with
//! them when they end, so that nothing is left behind whatever happens. Needs root.

mod netns;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    path::PathBuf,
    sync::Arc,
};

use futures::TryStreamExt;
use mainstay_network::{Bridge, HostPort, Protocol, Range, Settings};
use netns::{Netns, machine_and_neighbour};
use rtnetlink::packet_route::link::LinkAttribute;

fn settings(directory: &std::path::Path) -> Settings {
    Settings { instance: "mainstay".into(), directory: directory.to_owned(), cluster: "10.244.0.0/16".parse().unwrap() }
}

fn range(text: &str) -> Range {
    text.parse().unwrap()
}

/// Names and sizes of the interfaces where the caller is.
async fn interfaces() -> BTreeMap<String, u32> {
    let (connection, handle, _) = rtnetlink::new_connection().unwrap();
    tokio::spawn(connection);
    let all: Vec<_> = handle.link().get().execute().try_collect().await.unwrap();
    all.into_iter()
        .map(|link| {
            let mut found = (String::new(), 0);
            for attribute in link.attributes {
                match attribute {
                    LinkAttribute::IfName(name) => found.0 = name,
                    LinkAttribute::Mtu(mtu) => found.1 = mtu,
                    _ => {}
                }
            }
            found
        })
        .collect()
}

fn attach(machine: &Netns, directory: &std::path::Path, pods: &[(&str, &Netns, Vec<HostPort>)]) -> Vec<Ipv4Addr> {
    let (settings, pods): (_, Vec<(String, PathBuf, Vec<HostPort>)>) = (
        settings(directory),
        pods.iter().map(|(name, place, ports)| (name.to_string(), place.path.clone(), ports.clone())).collect(),
    );
    machine.run_async(move || async move {
        let bridge = Bridge::new(settings).unwrap();
        bridge.set_range(range("10.244.3.0/24")).await.unwrap();
        let mut addresses = Vec::new();
        for (name, netns, ports) in pods {
            addresses.push(bridge.attach(&name, &netns, &ports).await.unwrap());
        }
        addresses
    })
}

#[test]
fn pods_reach_each_other_the_machine_and_the_world() {
    let (machine, neighbour) = machine_and_neighbour(1400);
    let (a, b) = (Netns::new(), Netns::new());
    let directory = tempfile::tempdir().unwrap();
    let addresses = attach(&machine, directory.path(), &[("a", &a, vec![]), ("b", &b, vec![])]);
    let texts: Vec<String> = addresses.iter().map(Ipv4Addr::to_string).collect();
    assert_eq!(texts, ["10.244.3.2", "10.244.3.3"]);
    b.serve(80);
    machine.serve(80);
    neighbour.serve(80);
    assert_eq!(a.ask((addresses[1], 80)).unwrap(), "10.244.3.2", "from pod to pod");
    assert_eq!(b.ask((addresses[1], 80)).unwrap(), "10.244.3.3", "to itself");
    assert_eq!(b.ask(([127, 0, 0, 1], 80)).unwrap(), "127.0.0.1", "its loopback is up");
    assert_eq!(machine.ask((addresses[1], 80)).unwrap(), "10.244.3.1", "from the machine");
    assert_eq!(a.ask(([10, 244, 3, 1], 80)).unwrap(), "10.244.3.2", "to the machine");
    assert_eq!(a.ask(([192, 168, 77, 1], 80)).unwrap(), "10.244.3.2", "to the machine by its other address");
    assert_eq!(a.ask(([192, 168, 77, 2], 80)).unwrap(), "192.168.77.1", "beyond, in the machine's name");
    let inside = a.run_async(interfaces);
    assert_eq!(inside.get("eth0"), Some(&1400), "as large as the uplink: {inside:?}");
}

#[test]
fn a_host_port_reaches_its_pod_from_everywhere() {
    let (machine, neighbour) = machine_and_neighbour(1500);
    let (a, b) = (Netns::new(), Netns::new());
    let directory = tempfile::tempdir().unwrap();
    let port = HostPort { protocol: Protocol::Tcp, host_ip: None, host_port: 8080, pod_port: 80 };
    let here = HostPort { host_ip: Some([192, 168, 77, 1].into()), host_port: 8081, ..port.clone() };
    attach(&machine, directory.path(), &[("a", &a, vec![port, here]), ("b", &b, vec![])]);
    a.serve(80);
    assert_eq!(neighbour.ask(([192, 168, 77, 1], 8080)).unwrap(), "192.168.77.2", "from outside, unchanged");
    assert_eq!(neighbour.ask(([192, 168, 77, 1], 8081)).unwrap(), "192.168.77.2");
    assert_eq!(b.ask(([192, 168, 77, 1], 8080)).unwrap(), "10.244.3.3", "from another pod");
    assert_eq!(a.ask(([192, 168, 77, 1], 8080)).unwrap(), "10.244.3.1", "from the pod itself");
    assert!(machine.ask(([192, 168, 77, 1], 8080)).is_ok(), "from the machine");
    assert!(machine.ask(([127, 0, 0, 1], 8080)).is_ok(), "from the machine's loopback");
    assert!(machine.ask(([127, 0, 0, 1], 8081)).is_err(), "only at the address that was asked for");
    let settings = settings(directory.path());
    machine.run_async(move || async move { Bridge::new(settings).unwrap().detach("a").await.unwrap() });
    assert!(machine.ask(([192, 168, 77, 1], 8080)).is_err(), "no more");
}

#[test]
fn attach_is_idempotent_also_for_a_new_agent() {
    let (machine, pod) = (Netns::new(), Netns::new());
    let directory = tempfile::tempdir().unwrap();
    let first = attach(&machine, directory.path(), &[("a", &pod, vec![]), ("a", &pod, vec![])]);
    let again = attach(&machine, directory.path(), &[("a", &pod, vec![])]);
    assert_eq!((first[0], first[1]), (again[0], again[0]));
    assert_eq!(machine.run_async(interfaces).keys().filter(|name| name.starts_with("veth")).count(), 1);
    let fresh = Netns::new();
    assert_eq!(attach(&machine, directory.path(), &[("a", &fresh, vec![])])[0], first[0], "a new namespace");
    fresh.serve(80);
    assert_eq!(machine.ask((first[0], 80)).unwrap(), "10.244.3.1");
}

#[test]
fn retain_frees_dead_sandboxes_and_down_removes_everything() {
    let (machine, a, b, c) = (Netns::new(), Netns::new(), Netns::new(), Netns::new());
    let directory = tempfile::tempdir().unwrap();
    let before = machine.run_async(interfaces);
    let pods = [("a", &a, vec![]), ("b", &b, vec![]), ("c", &c, vec![])];
    let addresses = attach(&machine, directory.path(), &pods);
    let own = settings(directory.path());
    machine.run_async(move || async move {
        let bridge = Bridge::new(own).unwrap();
        bridge.retain(&BTreeSet::from(["b".to_owned()])).await.unwrap();
        bridge.detach("never").await.unwrap();
    });
    let left = machine.run_async(interfaces);
    assert_eq!(left.keys().filter(|name| name.starts_with("veth")).count(), 1, "{left:?}");
    let d = Netns::new();
    let next = attach(&machine, directory.path(), &[("d", &d, vec![]), ("b", &b, vec![])]);
    assert!(!addresses.contains(&next[0]), "an address just given back is used last");
    assert_eq!(next[1], addresses[1]);
    let own = settings(directory.path());
    machine.run_async(move || async move {
        let bridge = Bridge::new(own).unwrap();
        bridge.down().await.unwrap();
        bridge.down().await.unwrap();
    });
    assert_eq!(machine.run_async(interfaces), before);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn many_pods_at_once_each_get_their_own_address() {
    let machine = Netns::new();
    let pods: Vec<Netns> = (0..20).map(|_| Netns::new()).collect();
    let paths: Vec<PathBuf> = pods.iter().map(|pod| pod.path.clone()).collect();
    let directory = tempfile::tempdir().unwrap();
    let own = settings(directory.path());
    let addresses = machine.run_async(move || async move {
        let bridge = Bridge::new(own).unwrap();
        bridge.set_range(range("10.244.9.0/24")).await.unwrap();
        let all = paths.iter().enumerate().map(|(n, path)| {
            let (bridge, name) = (Arc::clone(&bridge), format!("pod-{n}"));
            async move { bridge.attach(&name, path, &[]).await.unwrap() }
        });
        futures::future::join_all(all).await
    });
    assert_eq!(addresses.iter().collect::<BTreeSet<_>>().len(), 20);
    pods[19].serve(80);
    assert_eq!(pods[0].ask((addresses[19], 80)).unwrap(), addresses[0].to_string());
}

#[test]
fn machines_route_to_each_others_pods() {
    let (machine, neighbour) = machine_and_neighbour(1500);
    let (near, far) = (Netns::new(), Netns::new());
    let directories = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let on = |place: &Netns, directory: &std::path::Path, own: &str, pod: &Netns, others: &[(&str, [u8; 4])]| {
        let (own, settings, path) = (range(own), settings(directory), pod.path.clone());
        let others: BTreeMap<Range, Ipv4Addr> = others.iter().map(|(to, via)| (range(to), (*via).into())).collect();
        place.run_async(move || async move {
            let bridge = Bridge::new(settings).unwrap();
            bridge.set_range(own).await.unwrap();
            let address = bridge.attach("pod", &path, &[]).await.unwrap();
            let unreachable = bridge.set_routes(&others).await.unwrap();
            (address, unreachable)
        })
    };
    let others = [("10.244.1.0/24", [192, 168, 77, 2]), ("10.244.2.0/24", [172, 16, 0, 9])];
    let (a, unreachable) = on(&machine, directories.0.path(), "10.244.0.0/24", &near, &others);
    // The default route leads there, but nobody answers for it as a neighbour.
    assert_eq!(unreachable, [Ipv4Addr::new(172, 16, 0, 9)]);
    let (b, _) = on(&neighbour, directories.1.path(), "10.244.1.0/24", &far, &[("10.244.0.0/24", [192, 168, 77, 1])]);
    far.serve(80);
    assert_eq!(near.ask((b, 80)).unwrap(), a.to_string(), "under its own address");
    let own = settings(directories.0.path());
    let path = near.path.clone();
    machine.run_async(move || async move {
        let bridge = Bridge::new(own).unwrap();
        assert!(bridge.set_routes(&BTreeMap::new()).await.unwrap().is_empty());
        assert_eq!(bridge.attach("pod", &path, &[]).await.unwrap(), a);
    });
    let routes = machine.run(|| std::fs::read_to_string("/proc/thread-self/net/route").unwrap());
    assert!(!routes.contains("0001F40A") && routes.contains("0000F40A"), "the route is gone: {routes}");
}

#[test]
fn a_machine_without_an_assigned_range_uses_the_last_one() {
    let (machine, a, b) = (Netns::new(), Netns::new(), Netns::new());
    let directory = tempfile::tempdir().unwrap();
    let (own, paths) = (settings(directory.path()), [a.path.clone(), b.path.clone()]);
    let addresses = machine.run_async(move || async move {
        let bridge = Bridge::new(own).unwrap();
        let first = bridge.attach("a", &paths[0], &[]).await.unwrap();
        bridge.set_range(range("10.244.7.0/24")).await.unwrap();
        (first, bridge.attach("b", &paths[1], &[]).await.unwrap(), bridge.attach("a", &paths[0], &[]).await.unwrap())
    });
    let texts = [addresses.0.to_string(), addresses.1.to_string(), addresses.2.to_string()];
    assert_eq!(texts, ["10.244.255.2", "10.244.7.2", "10.244.255.2"]);
    b.serve(80);
    assert_eq!(a.ask((addresses.1, 80)).unwrap(), "10.244.255.2", "between old and new range");
}
