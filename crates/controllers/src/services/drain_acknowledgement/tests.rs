use super::*;
use crate::services::testing::pod;

fn at_second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn leaving() -> World {
    let gone = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let pod = Arc::new(pod("a", "10.1.0.1", gone));
    World { pod, in_service: true, named: false, removed_at: Some(7), least: Some(7), unsettled_until: None }
}

#[test]
fn a_pod_is_drained_once_the_last_table_has_come_to_where_it_left() {
    type Change = fn(World) -> World;
    let cases: [(&str, Change, Verdict); 9] = [
        ("all have come so far", |world| world, Verdict::Drained),
        ("one is behind", |world| World { least: Some(6), ..world }, Verdict::Until { version: 7 }),
        ("nobody has a table", |world| World { least: None, ..world }, Verdict::Drained),
        ("a slice has it", |world| World { named: true, ..world }, Verdict::Named),
        ("it never was ready", |world| World { removed_at: None, least: Some(1), ..world }, Verdict::Drained),
        ("in no Service", |world| World { removed_at: None, in_service: false, ..world }, Verdict::NotOurs),
        ("in no Service any more", |world| World { in_service: false, ..world }, Verdict::Drained),
        (
            "some may still tell",
            |world| World { unsettled_until: Some(at_second(11)), ..world },
            Verdict::Settling { until: at_second(11) },
        ),
        ("they had time to", |world| World { unsettled_until: Some(at_second(10)), ..world }, Verdict::Drained),
    ];
    for (case, change, expected) in cases {
        assert_eq!(verdict(&change(leaving()), at_second(10)), expected, "{case}");
    }
}

#[test]
fn nothing_is_reported_for_pods_that_stay_or_ended_or_twice() {
    let gone = "2026-01-01T00:00:00Z";
    for change in [
        json!({}),
        json!({"metadata": {"deletionTimestamp": gone}, "status": {"phase": "Failed"}}),
        json!({
            "metadata": {"deletionTimestamp": gone},
            "status": {"conditions": [{"type": DRAINED, "status": "True"}]},
        }),
    ] {
        let world = World { pod: Arc::new(pod("a", "10.1.0.1", change.clone())), ..leaving() };
        assert_eq!(verdict(&world, at_second(0)), Verdict::NotOurs, "{change}");
    }
}

fn slice(endpoints: &[(&str, [bool; 3])]) -> EndpointSlice {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|(name, [ready, serving, leaving])| {
            json!({
                "addresses": ["10.1.0.1"],
                "conditions": {"ready": ready, "serving": serving, "terminating": leaving},
                "targetRef": {"kind": "Pod", "namespace": "ns", "name": name, "uid": format!("uid-{name}")},
            })
        })
        .collect();
    let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": endpoints});
    serde_json::from_value(slice).unwrap()
}

#[test]
fn who_is_taken_out_is_who_was_ready_and_is_not_any_more() {
    let ready = [true, true, false];
    let before = slice(&[("a", ready), ("b", ready), ("c", ready), ("d", [false; 3])]);
    let after = slice(&[("a", ready), ("b", [false, true, true])]);
    let key = ObjectKey::new("ns", "s");
    let out = |before, after, complete| -> Vec<String> {
        let change = Change { key: &key, before, after, version: 1, own: false };
        removed_pods(&change, complete).into_iter().map(|(key, _)| key.name).collect()
    };
    assert_eq!(out(Some(&before), Some(&after), true), ["b", "c"]);
    assert_eq!(out(Some(&before), None, true), ["a", "b", "c"]);
    let unready = slice(&[("a", ready), ("b", [false, true, true]), ("d", [false; 3])]);
    assert_eq!(out(None, Some(&unready), false), ["b", "d"], "who begins to look does not know when they left");
    assert!(out(None, Some(&after), true).is_empty());
}
