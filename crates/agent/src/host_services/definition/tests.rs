use proptest::prelude::*;
use serde_json::json;

use super::*;

fn parse(value: Value) -> Parsed<Vec<ServiceDefinition>> {
    parse_definitions(value.to_string().as_bytes())
}

#[test]
fn a_definition_of_consul_is_read() {
    let definitions = parse(json!({"service": {
        "name": "mysql", "id": "mysql-1", "port": 3306, "tags": ["master", "V1.2"], "meta": {"rack": "7"},
        "check": {"script": "/usr/lib/checks/mysql.sh", "interval": "10s"},
        "checks": [
            {"http": "http://localhost:8080/health", "timeout": "2s", "header": {"Host": ["db"]}, "interval": "1m30s"},
            {"id": "port", "tcp": "localhost:3306", "failures_before_critical": 3, "status": "passing"},
            {"name": "beats", "ttl": "30s"},
            {"args": ["/bin/check", "-v"]},
            {"tcp": "localhost:3306", "interval": "3s"},
        ],
    }}))
    .unwrap();
    let [mysql] = &definitions[..] else { panic!("{definitions:?}") };
    assert_eq!((mysql.name.as_str(), mysql.id.as_str(), mysql.port), ("mysql", "mysql-1", Some(3306)));
    assert_eq!((&mysql.address, mysql.tags.len(), mysql.meta["rack"].as_str()), (&AddressSource::Node, 2, "7"));
    let ids: Vec<_> = mysql.checks.iter().map(|check| check.id.as_str()).collect();
    let expected = ["service:mysql-1", "service:mysql-1:2", "port", "service:mysql-1:4", "service:mysql-1:5"];
    assert_eq!(ids[..5], expected);
    let seconds = |index: usize| (mysql.checks[index].interval.as_secs(), mysql.checks[index].timeout.as_secs());
    assert_eq!([0, 1, 2, 5].map(seconds), [(10, 30), (90, 2), (10, 10), (3, 3)]);
    assert_eq!((mysql.checks[0].initial, mysql.checks[2].initial), (CheckStatus::Critical, CheckStatus::Passing));
    assert_eq!(mysql.checks[2].failures_before_critical, 3);
    assert_eq!(mysql.checks[3].kind, CheckKind::Ttl { ttl: Duration::from_secs(30) });
    let script = CheckKind::Script { program: "/bin/check".into(), arguments: vec!["-v".into()] };
    assert_eq!(mysql.checks[4].kind, script);
}

#[test]
fn plain_definitions_and_lists_of_them_are_read() {
    let plain = parse(json!({"name": "web", "interface": "eth1"})).unwrap();
    assert_eq!((plain[0].id.as_str(), &plain[0].address), ("web", &AddressSource::Interface("eth1".into())));
    let several = parse(json!({"services": [{"name": "a", "address": "10.0.0.9"}, {"name": "b"}]})).unwrap();
    assert_eq!(several[0].address, AddressSource::Fixed([10, 0, 0, 9].into()));
    assert_eq!(several.len(), 2);
}

#[test]
fn what_is_wrong_is_named_by_its_field() {
    for (definition, expected) in [
        (json!([]), "file: must be a JSON object"),
        (json!({}), "name: must be given"),
        (json!({"name": "My_SQL"}), "name: a DNS-1035 label must"),
        (json!({"name": 7}), "name: must be a text"),
        (json!({"name": "a", "id": "../x"}), "id: must be at most 128 letters"),
        (json!({"name": "a", "port": 0}), "port: must be a number from 1 to 65535"),
        (json!({"name": "a", "port": "80"}), "port: must be a number"),
        (json!({"name": "a", "address": "127.0.0.1"}), "address: must be an IPv4 address"),
        (json!({"name": "a", "address": "db.example"}), "address: must be an IPv4 address"),
        (json!({"name": "a", "interface": "a,b=c"}), "interface: must be the name"),
        (json!({"name": "a", "tags": "x"}), "tags: must be a list of texts"),
        (json!({"name": "a", "tags": [""]}), "tags[0]: must be a text of 1 to 512 bytes"),
        (json!({"name": "a", "meta": {"k": 1}}), "meta.k: must be a text"),
        (json!({"name": "a", "chek": {}}), "chek: is not understood"),
        (json!({"name": "a", "check": {}}), "check: must have exactly one of"),
        (json!({"name": "a", "check": {"tcp": "x:1", "ttl": "3s"}}), "check: must have exactly one of"),
        (json!({"name": "a", "check": {"tcp": "3306"}}), "check.tcp: must be host and port"),
        (json!({"name": "a", "check": {"http": "localhost"}}), "check.http: must be a URL"),
        (json!({"name": "a", "check": {"http": "http://x/", "method": "POST"}}), "check.method: must be GET"),
        (json!({"name": "a", "check": {"tcp": "x:1", "method": "GET"}}), "check.method: is only for checks with http"),
        (json!({"name": "a", "check": {"ttl": "x"}}), "check.ttl: must be a duration"),
        (json!({"name": "a", "check": {"script": "x", "interval": "10ms"}}), "check.interval: must be from 1s to 24h"),
        (json!({"name": "a", "check": {"args": []}}), "check.args: must be a program"),
        (json!({"name": "a", "check": {"grpc": "x:1"}}), "check.grpc: is not understood"),
        (json!({"name": "a", "check": {"ttl": "3s", "status": "good"}}), "check.status: must be passing"),
        (json!({"services": [{"name": "a"}, {"name": "b", "checks": [{"ttl": 3}]}]}), "services[1].checks[0].ttl"),
        (json!({"service": {"name": "a"}, "services": []}), "services: must not be given"),
        (
            json!({"name": "a", "checks": [{"id": "x", "ttl": "3s"}, {"id": "x", "ttl": "3s"}]}),
            "checks: has two checks with the id \"x\"",
        ),
    ] {
        let found = parse(definition.clone()).unwrap_err().to_string();
        assert!(found.starts_with(expected), "{definition}: {found}");
    }
    assert!(parse_definitions(b"{\"name\": ").unwrap_err().to_string().starts_with("file: is not JSON: EOF"));
}

proptest! {
    #[test]
    fn no_bytes_break_it(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_definitions(&bytes);
    }

    #[test]
    fn no_json_breaks_it(key in "[a-z_]{1,8}", check in "[a-z_]{1,8}", text in ".{0,20}", number in any::<i64>()) {
        let _ = parse(json!({"name": "a", "check": {check.clone(): text}, &key: number}));
        let _ = parse(json!({"name": "a", "checks": [{check: number}], "services": key}));
    }
}
