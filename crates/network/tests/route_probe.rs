//! What a router says about routes to a machine's pods, with two kernels' worth of network namespaces. Needs root.

mod netns;

use std::{fs, net::Ipv4Addr, time::Duration};

use futures::TryStreamExt;
use mainstay_network::route_probe::{answers_echo, ask_for_redirect, interface_with_address};
use netns::{Netns, machine_and_neighbour};
use rtnetlink::RouteMessageBuilder;

const MACHINE: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 1);
const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);
/// The address of the machine's own bridge.
const BRIDGE: Ipv4Addr = Ipv4Addr::new(10, 244, 3, 1);
const LIMIT: Duration = Duration::from_secs(5);

/// A machine with a pod bridge and a router that forwards.
fn machine_and_router() -> (Netns, Netns) {
    let (machine, router) = machine_and_neighbour(1500);
    machine.run_async(|| async {
        let (connection, handle, _) = rtnetlink::new_connection().unwrap();
        tokio::spawn(connection);
        handle.address().add(1, BRIDGE.into(), 32).execute().await.unwrap();
    });
    router.run(|| {
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        for scope in ["all", "up"] {
            fs::write(format!("/proc/sys/net/ipv4/conf/{scope}/send_redirects"), "1").unwrap();
        }
    });
    (machine, router)
}

/// Replaces the router's route to the machine's pods.
fn route_pods(router: &Netns, gateway: Option<Ipv4Addr>) {
    router.run_async(move || async move {
        let (connection, handle, _) = rtnetlink::new_connection().unwrap();
        tokio::spawn(connection);
        let route = |gateway: Ipv4Addr| {
            RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(Ipv4Addr::new(10, 244, 3, 0), 24)
                .gateway(gateway)
                .build()
        };
        let all = handle.route().get(RouteMessageBuilder::<Ipv4Addr>::new().build()).execute();
        let all: Vec<_> = all.try_collect().await.unwrap();
        for old in all.into_iter().filter(|old| old.header.destination_prefix_length == 24) {
            let has_gateway = old
                .attributes
                .iter()
                .any(|attribute| matches!(attribute, rtnetlink::packet_route::route::RouteAttribute::Gateway(_)));
            if has_gateway {
                handle.route().del(old).execute().await.unwrap();
            }
        }
        if let Some(gateway) = gateway {
            handle.route().add(route(gateway)).execute().await.unwrap();
        }
    });
}

fn redirect(machine: &Netns, limit: Duration) -> Option<Ipv4Addr> {
    machine.run(move || {
        let uplink = interface_with_address(MACHINE.into()).unwrap().expect("an interface");
        assert_eq!(uplink, "up");
        ask_for_redirect(&uplink, BRIDGE, limit).unwrap()
    })
}

#[test]
fn a_router_names_the_machine_only_if_it_routes_to_it() {
    let (machine, router) = machine_and_router();
    route_pods(&router, Some(MACHINE));
    assert_eq!(redirect(&machine, LIMIT), Some(MACHINE));
    let somebody = Ipv4Addr::new(192, 168, 77, 9);
    route_pods(&router, Some(somebody));
    assert_ne!(redirect(&machine, Duration::from_secs(1)), Some(MACHINE), "the route leads elsewhere");
    route_pods(&router, None);
    assert_eq!(redirect(&machine, Duration::from_secs(1)), None, "there is no route");
    route_pods(&router, Some(MACHINE));
    assert_eq!(redirect(&machine, LIMIT), Some(MACHINE), "and it is mended");
}

#[test]
fn a_peer_answers_and_an_address_that_nobody_has_does_not() {
    let (machine, router) = machine_and_router();
    assert!(machine.run(|| answers_echo(ROUTER, LIMIT).unwrap()));
    assert!(!machine.run(|| answers_echo(Ipv4Addr::new(192, 168, 77, 9), Duration::from_secs(1)).unwrap_or(false)));
    assert!(router.run(|| answers_echo(MACHINE, LIMIT).unwrap()));
    assert_eq!(machine.run(|| interface_with_address(Ipv4Addr::new(203, 0, 113, 1).into()).unwrap()), None);
}
