//! History that is gone.

use serde_json::json;

use super::support::{
    Client, Server,
    objects::{CONFIG_MAPS, config_map, version},
};

/// A server that remembers little, with ten config maps in it.
fn forgetful() -> (Server, Client) {
    let server = Server::start_with(&["--history-events", "10"]);
    let mut client = server.client();
    for n in 0..10 {
        client.post(CONFIG_MAPS, &config_map(&format!("c{n}"))).granted();
    }
    (server, client)
}

/// Writes until what was before is forgotten.
fn forget(client: &mut Client) {
    for n in 0..40 {
        let patch = json!({"data": {"n": n.to_string()}});
        client.patch(&format!("{CONFIG_MAPS}/c0"), "merge-patch+json", &patch).granted();
    }
}

#[test]
fn a_continue_token_that_expired_comes_with_one_that_works() {
    let (_server, mut client) = forgetful();
    let first = client.get(&format!("{CONFIG_MAPS}?limit=4")).granted();
    assert_eq!(first["items"].as_array().map(Vec::len), Some(4));
    assert_eq!(first["metadata"]["remainingItemCount"], json!(first_total(&mut client) - 4));
    let token = first["metadata"]["continue"].as_str().expect("a token").to_owned();
    forget(&mut client);
    let status = client.get(&format!("{CONFIG_MAPS}?limit=4&continue={token}")).refused_saying(
        410,
        "Expired",
        "The provided continue parameter is too old to display a consistent list result",
    );
    let fresh = status["metadata"]["continue"].as_str().expect("another token");
    let rest = client.get(&format!("{CONFIG_MAPS}?continue={fresh}")).granted();
    let names = |list: &serde_json::Value| -> Vec<String> {
        let items = list["items"].as_array().expect("items").iter();
        items.map(|item| item["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
    };
    let both: Vec<String> = names(&first).into_iter().chain(names(&rest)).collect();
    assert_eq!(both, names(&client.get(CONFIG_MAPS).granted()));
}

fn first_total(client: &mut Client) -> usize {
    client.get(CONFIG_MAPS).granted()["items"].as_array().expect("items").len()
}

#[test]
fn a_list_at_a_forgotten_revision_is_gone() {
    let (_server, mut client) = forgetful();
    let then = version(&client.get(CONFIG_MAPS).granted());
    forget(&mut client);
    let path = format!("{CONFIG_MAPS}?resourceVersion={then}&resourceVersionMatch=Exact");
    client.get(&path).refused(410, "Expired");
    client.get(&format!("{CONFIG_MAPS}?resourceVersion={then}&resourceVersionMatch=NotOlderThan")).granted();
}

#[test]
fn a_watch_from_a_compacted_revision_ends_with_an_error_event() {
    let (_server, mut client) = forgetful();
    let then = version(&client.get(CONFIG_MAPS).granted());
    forget(&mut client);
    let mut events = client.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={then}"));
    let event = events.next().expect("an event").expect("an event");
    assert_eq!(event["type"], "ERROR");
    let status = &event["object"];
    assert_eq!(
        (&status["kind"], &status["code"], &status["reason"]),
        (&json!("Status"), &json!(410), &json!("Expired"))
    );
    let message = status["message"].as_str().expect("a message");
    assert!(message.starts_with(&format!("too old resource version: {then} (")), "{message}");
    assert_eq!(events.next().expect("the watch ends in order"), None);
}

#[test]
fn a_watch_from_a_remembered_revision_misses_nothing() {
    let (_server, mut client) = forgetful();
    let then = version(&client.get(CONFIG_MAPS).granted());
    client.post(CONFIG_MAPS, &config_map("after")).granted();
    client.delete(&format!("{CONFIG_MAPS}/after")).granted();
    let mut events = client.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={then}"));
    assert_eq!(events.about("after")["type"], "ADDED");
    assert_eq!(events.about("after")["type"], "DELETED");
}
