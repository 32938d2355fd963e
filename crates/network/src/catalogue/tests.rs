use super::*;

fn service(kind: ServiceKind) -> Service {
    Service {
        kind,
        ports: Vec::new(),
        external_ips: Vec::new(),
        affinity: None,
        internal_local: false,
        external_local: false,
        hold: HOLD,
        through_user_space: false,
        publish_not_ready: false,
        has_other_proxy: false,
        tags: Vec::new(),
    }
}

fn endpoint(address: [u8; 4], hostname: Option<&str>) -> Endpoint {
    let hostname = hostname.map(Arc::from);
    Endpoint {
        address: address.into(),
        ready: true,
        serving: true,
        terminating: false,
        node: None,
        hostname,
        hints: None,
    }
}

fn slice(service: &str, endpoints: Vec<Endpoint>) -> Slice {
    Slice { service: service.into(), ports: Vec::new(), endpoints, host: None }
}

fn named(catalogue: &Catalogue, name: &str) -> Vec<String> {
    catalogue.read().services_named(name).map(|(key, _)| key.to_string()).collect()
}

fn backends(catalogue: &Catalogue, address: [u8; 4]) -> Vec<String> {
    catalogue.read().backends_at(address.into()).map(|(key, _, _)| key.to_string()).collect()
}

#[test]
fn a_service_is_found_by_namespace_and_name_and_by_name() {
    let catalogue = Catalogue::default();
    for namespace in ["b", "a"] {
        catalogue.set_service(Key::new(namespace, "web"), Some(service(ServiceKind::Headless)));
    }
    assert!(catalogue.read().service_named("a", "web").is_some());
    assert!(catalogue.read().service_named("web", "a").is_none());
    assert_eq!(named(&catalogue, "web"), ["a/web", "b/web"]);
    catalogue.set_service(Key::new("a", "web"), None);
    assert_eq!(named(&catalogue, "web"), ["b/web"]);
    assert!(!catalogue.read().has_namespace("a"));
    assert!(catalogue.read().has_namespace("b"));
}

#[test]
fn a_namespace_is_known_while_it_has_a_service() {
    let catalogue = Catalogue::default();
    let (one, two) = (Key::new("a", "one"), Key::new("a", "two"));
    catalogue.set_service(one.clone(), Some(service(ServiceKind::Headless)));
    catalogue.set_service(one.clone(), Some(service(ServiceKind::ClusterIp([10, 96, 0, 1].into()))));
    catalogue.set_service(two.clone(), Some(service(ServiceKind::Headless)));
    catalogue.set_service(one.clone(), None);
    catalogue.set_service(one, None);
    assert!(catalogue.read().has_namespace("a"));
    catalogue.set_service(two, None);
    assert!(!catalogue.read().has_namespace("a"));
}

#[test]
fn an_address_leads_to_the_service_that_has_it_now() {
    let catalogue = Catalogue::default();
    let key = Key::new("a", "web");
    catalogue.set_service(key.clone(), Some(service(ServiceKind::ClusterIp([10, 96, 0, 1].into()))));
    catalogue.set_service(key.clone(), Some(service(ServiceKind::ClusterIp([10, 96, 0, 2].into()))));
    assert_eq!(catalogue.read().services_at([10, 96, 0, 1].into()).count(), 0);
    assert_eq!(catalogue.read().services_at([10, 96, 0, 2].into()).collect::<Vec<_>>(), [&key]);
    catalogue.set_service(key, None);
    assert!(catalogue.read().by_address.is_empty());
}

#[test]
fn backends_are_found_by_address_and_hostname_while_their_slice_lists_them() {
    let catalogue = Catalogue::default();
    let (web, first, second) = (Key::new("a", "web"), Key::new("a", "web-1"), Key::new("a", "web-2"));
    catalogue.set_service(web.clone(), Some(service(ServiceKind::Headless)));
    let both = vec![endpoint([10, 0, 0, 1], Some("x")), endpoint([10, 0, 0, 2], None)];
    let concerned = catalogue.set_slice(first.clone(), Some(slice("web", both)));
    assert_eq!(concerned.iter().collect::<Vec<_>>(), [&web]);
    catalogue.set_slice(second.clone(), Some(slice("web", vec![endpoint([10, 0, 0, 1], Some("x"))])));
    assert_eq!(backends(&catalogue, [10, 0, 0, 1]), ["a/web", "a/web"]);
    assert_eq!(catalogue.read().backends_with_hostname(&web, "x").count(), 2);
    assert_eq!(catalogue.read().backends_with_hostname(&Key::new("b", "web"), "x").count(), 0);

    catalogue.set_slice(first.clone(), Some(slice("web", vec![endpoint([10, 0, 0, 3], None)])));
    assert_eq!(backends(&catalogue, [10, 0, 0, 1]), ["a/web"]);
    assert_eq!(backends(&catalogue, [10, 0, 0, 2]), [""; 0]);
    assert_eq!(catalogue.read().backends_with_hostname(&web, "x").count(), 1);

    catalogue.set_slice(first, None);
    catalogue.set_slice(second, None);
    let known = catalogue.read();
    assert!(known.by_address.is_empty() && known.by_hostname.is_empty() && known.slices_of.is_empty());
}

#[test]
fn a_slice_that_changes_its_service_returns_both() {
    let catalogue = Catalogue::default();
    let key = Key::new("a", "s");
    catalogue.set_slice(key.clone(), Some(slice("old", Vec::new())));
    let concerned = catalogue.set_slice(key, Some(slice("new", Vec::new())));
    assert_eq!(concerned, [Key::new("a", "old"), Key::new("a", "new")]);
}

#[test]
fn machines_are_found_by_their_current_address() {
    let catalogue = Catalogue::default();
    catalogue.set_machine("m1", Some([192, 0, 2, 1].into()));
    catalogue.set_machine("m2", Some([192, 0, 2, 1].into()));
    catalogue.set_machine("m1", Some([192, 0, 2, 9].into()));
    let at = |address: [u8; 4]| {
        catalogue.read().machines_at(address.into()).map(|name| name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(at([192, 0, 2, 1]), ["m2"]);
    assert_eq!(at([192, 0, 2, 9]), ["m1"]);
    catalogue.set_machine("m1", None);
    assert_eq!(at([192, 0, 2, 9]), [""; 0]);
}
