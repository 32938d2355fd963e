use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<Needs, String> {
    text.parse().map_err(|error: NeedsError| error.to_string())
}

fn service(name: &str, at_least: u32, state: EndpointState, keep: bool) -> Need {
    let service = ServiceName::InOwnNamespace(name.to_owned());
    Need { target: NeedTarget::Service { service, at_least, state }, keep }
}

#[test]
fn a_list_of_needs_is_read() {
    let needs =
        parse("mysql >= 1 ready, zookeeper>=3 addressable keep,config/zones, job/migrate keep, within 600s").unwrap();
    let object = |kind, name: &str, keep| Need { target: NeedTarget::Object { kind, name: name.to_owned() }, keep };
    let workload = |kind, name: &str, keep| Need { target: NeedTarget::Workload { kind, name: name.to_owned() }, keep };
    assert_eq!(
        needs,
        Needs {
            needs: vec![
                service("mysql", 1, EndpointState::Ready, false),
                service("zookeeper", 3, EndpointState::Addressable, true),
                object(ObjectKind::ConfigMap, "zones", false),
                workload(WorkloadKind::Job, "migrate", true),
            ],
            within: Some(Duration::from_secs(600)),
        }
    );
    assert!(needs.include_objects());
    assert!(!parse("mysql").unwrap().include_objects());
}

#[test]
fn services_are_named_as_in_kubernetes_and_as_in_consul() {
    let name = |text: &str| match parse(text).unwrap().needs.remove(0).target {
        NeedTarget::Service { service, .. } => service,
        other => panic!("{other}"),
    };
    let in_db = ServiceName::InNamespace { name: "mysql".into(), namespace: "db".into() };
    assert_eq!(name("mysql"), ServiceName::InOwnNamespace("mysql".into()));
    for text in ["mysql.db", "mysql.db.svc", "mysql.db.svc.cluster.local.", "mysql.service.db.ns.dc1.consul"] {
        assert_eq!(name(text), in_db, "{text}");
    }
    for text in ["mysql.service", "mysql.service.consul", "mysql.service.dc1.consul"] {
        assert_eq!(name(text), ServiceName::InAnyNamespace("mysql".into()), "{text}");
    }
    assert_eq!(in_db.namespace("own"), Some("db"));
    assert_eq!(name("mysql").namespace("own"), Some("own"));
}

#[test]
fn what_is_wrong_is_named_with_what_would_be_right() {
    let wrong = [
        ("", "names no need"),
        ("within 5s", "names no need"),
        ("mysql >= 0", "the number must be from 1 to 10000"),
        ("mysql >= 10001", "the number must be from 1 to 10000"),
        ("mysql >=", "the number must be"),
        ("mysql > 1", "not understood at \">\""),
        ("mysql ready please", "not understood at \"please\""),
        ("cronjob/x", "needs a kind \"cronjob\", which is none of deployment"),
        ("job/x >= 1", "counts endpoints"),
        ("secret/x ready", "counts endpoints"),
        ("job/X", "must be the name of an object"),
        ("My_Service", "must be the name of a Service"),
        ("a.b.c", "must be the name of a Service"),
        ("mysql, within 0s", "the time must be a duration"),
        ("mysql, within 169h", "the time must be a duration"),
        ("mysql, within", "the time must be a duration"),
        ("mysql, within 5s, within 6s", "within is there twice"),
        ("mysql, mysql >= 2", "mysql >= 2 ready is there twice"),
        ("job/a, job/a keep", "job/a is there twice"),
    ];
    for (text, words) in wrong {
        let error = parse(text).unwrap_err();
        assert!(error.contains(words), "{text}: {error}");
    }
    let many: Vec<String> = (0..33).map(|n| format!("s{n}")).collect();
    assert_eq!(parse(&many.join(",")).unwrap_err(), "there are 33 needs, and at most 32 are allowed");
    assert!(parse("mysql addressable, mysql ready keep").is_ok(), "two states of one Service are two needs");
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(
        services in prop::collection::btree_map("[a-z][a-z0-9]{0,9}", (1..100_u32, any::<bool>(), any::<bool>()), 1..5),
        within in prop::option::of(1..600_000_u64),
    ) {
        let state = |ready| if ready { EndpointState::Ready } else { EndpointState::Addressable };
        let needs = services.iter().map(|(name, (count, ready, keep))| service(name, *count, state(*ready), *keep));
        let needs = Needs { needs: needs.collect(), within: within.map(Duration::from_secs) };
        prop_assert_eq!(parse(&needs.to_string()), Ok(needs));
    }

    #[test]
    fn nothing_panics(text in "[a-z>= ,./0-9A-Z]{0,60}") {
        let _ = parse(&text);
    }
}
