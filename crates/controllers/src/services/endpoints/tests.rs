use serde_json::{Value, json};

use super::*;
use crate::services::testing::{pod, service};

fn current(change: Value) -> Arc<Object> {
    let mut object =
        json!({"metadata": {"name": "web", "namespace": "ns", "uid": "e", "labels": {MANAGED_BY: CONTROLLER}}});
    mainstay_api::patch::merge(&mut object, &change);
    Arc::new(serde_json::from_value(object).unwrap())
}

fn world(service: Option<Service>, current: Option<Arc<Object>>, service_existed: bool) -> World {
    let pods = vec![Arc::new(pod("a", "10.1.0.1", json!({})))];
    World { service: service.map(Arc::new), service_existed, pods, nodes: HashMap::new(), current }
}

#[test]
fn what_a_service_leaves_behind_goes_with_it() {
    let theirs = || current(json!({"metadata": {"labels": null}}));
    let lock = || current(json!({"metadata": {"annotations": {LEADER: "x"}}}));
    let deleted = || Some(Action::Delete { uid: "e".into() });
    for (case, current, service_existed, expected) in [
        ("ours, seen going", current(json!({})), true, deleted()),
        ("ours, of one that went while nobody looked", current(json!({})), false, deleted()),
        ("people's, seen going", theirs(), true, deleted()),
        ("people's, perhaps of one to come", theirs(), false, None),
        ("a lock", lock(), true, None),
    ] {
        assert_eq!(plan(&world(None, Some(current), service_existed)), expected, "{case}");
    }
}

#[test]
fn only_services_that_select_pods_get_an_object() {
    let plain = || Some(service(json!({"spec": {"ports": [{"port": 80}]}})));
    assert!(matches!(plan(&world(plain(), None, false)), Some(Action::Create(_))));
    assert!(matches!(plan(&world(plain(), Some(current(json!({}))), false)), Some(Action::Replace(_))));
    let manual = || Some(service(json!({"spec": {"selector": null}})));
    assert_eq!(plan(&world(manual(), None, false)), None);
    assert_eq!(
        plan(&world(manual(), Some(current(json!({}))), false)),
        None,
        "whoever took the selector away keeps it"
    );
    let alias = || Some(service(json!({"spec": {"type": "ExternalName"}})));
    assert_eq!(plan(&world(alias(), None, false)), None);
    assert_eq!(plan(&world(alias(), Some(current(json!({}))), false)), Some(Action::Delete { uid: "e".into() }));
    let leaving = service(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    assert_eq!(plan(&world(Some(leaving), None, false)), None);
}
