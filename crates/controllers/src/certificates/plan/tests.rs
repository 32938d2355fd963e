use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const CLIENT: [&str; 2] = ["digital signature", "client auth"];
const SERVING: [&str; 2] = ["digital signature", "server auth"];

/// Each with a key of its own.
fn request(common_name: &str, organization: &str, names: &[&str]) -> Result<CertificateRequest, String> {
    static KEYS: AtomicU64 = AtomicU64::new(0);
    Ok(CertificateRequest {
        common_name: common_name.to_owned(),
        common_names: 1,
        organizations: vec![organization.to_owned()],
        has_host_names: !names.is_empty(),
        has_other_names: false,
        public_key: KEYS.fetch_add(1, Ordering::Relaxed).to_be_bytes().to_vec(),
    })
}

fn asked(signer: Signer, user: &str, group: &str, request: Result<CertificateRequest, String>) -> SigningRequest {
    let usages = if signer == Signer::NodeServing { SERVING } else { CLIENT };
    SigningRequest {
        signer,
        user: user.to_owned(),
        groups: vec![group.to_owned(), "system:authenticated".to_owned()],
        usages: usages.map(str::to_owned).into(),
        request,
        state: State::Pending,
        created: Timestamp::from_second(1000).unwrap(),
    }
}

fn joining(name: &str) -> SigningRequest {
    let request = request(&format!("system:node:{name}"), NODES, &[]);
    asked(Signer::NodeClient, "system:bootstrap:abcdef", BOOTSTRAPPERS, request)
}

fn denied(action: Option<Action>) -> String {
    match action {
        Some(Action::Deny(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_machine_with_a_token_joins_under_a_free_name() {
    assert!(matches!(plan(&joining("a"), false, &[]), Some(Action::Approve(_))));
}

#[test]
fn a_name_that_is_taken_is_refused_with_what_to_do() {
    let why = denied(plan(&joining("a"), true, &[]));
    assert!(why.contains("kubectl delete node a") && why.contains("--node-name"), "{why}");
}

#[test]
fn two_machines_joining_at_once_under_one_name_do_not_both_get_in() {
    let given = |seconds: i64| {
        let created = Timestamp::from_second(1000 - seconds).unwrap();
        SigningRequest { state: State::Issued, created, ..joining("a") }
    };
    assert!(denied(plan(&joining("a"), false, &[given(30)])).contains("another machine is just joining"));
    assert!(matches!(plan(&joining("a"), false, &[given(61)]), Some(Action::Approve(_))));
    assert!(matches!(plan(&joining("b"), false, &[given(30)]), Some(Action::Approve(_))));
    let refused = SigningRequest { state: State::Refused, ..joining("a") };
    assert!(matches!(plan(&joining("a"), false, &[refused]), Some(Action::Approve(_))));
}

#[test]
fn a_machine_renews_for_itself_alone() {
    let node = |signer, user: &str, names: &[&str]| asked(signer, user, NODES, request("system:node:a", NODES, names));
    for (signer, names) in [(Signer::NodeClient, &[][..]), (Signer::NodeServing, &["10.0.0.1", "a"])] {
        assert!(matches!(plan(&node(signer, "system:node:a", names), true, &[]), Some(Action::Approve(_))));
        assert!(denied(plan(&node(signer, "system:node:b", names), true, &[])).contains("may not ask"));
    }
}

#[test]
fn a_request_for_more_than_a_machine_is_refused() {
    let of = |signer, request| asked(signer, "system:bootstrap:abcdef", BOOTSTRAPPERS, request);
    for (wanted, words) in [
        (of(Signer::NodeClient, request("system:node:a", MASTERS, &[])), "not those of a node"),
        (of(Signer::NodeClient, request("admin", NODES, &[])), "not those of a node"),
        (of(Signer::NodeClient, request("system:node:", NODES, &[])), "no node can be named \"\""),
        (of(Signer::NodeClient, request("system:node:a", NODES, &["kubernetes"])), "alternative names"),
        (of(Signer::NodeClient, Err("nonsense".to_owned())), "nonsense"),
        (SigningRequest { usages: vec!["any".into()], ..joining("a") }, "usages did not match"),
        (SigningRequest { usages: vec!["client auth".into()], ..joining("a") }, "usages did not match"),
    ] {
        let why = denied(plan(&wanted, false, &[]));
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn no_certificate_is_given_to_a_node_that_cannot_exist() {
    let long = "a".repeat(254);
    for name in ["adv ", " adv", "..", ".", "a/b", "ADV", "a_b", "a%2fb", "a?b", "-a", "a-", "\u{e4}", &long] {
        let why = denied(plan(&joining(name), false, &[]));
        assert!(why.starts_with(&format!("no node can be named {name:?}: ")), "{why}");
        assert_eq!(joining(name).node(), None, "nobody looks for such a node");
        let approved = SigningRequest { state: State::Approved, ..joining(name) };
        assert!(matches!(plan(&approved, false, &[]), Some(Action::Fail(_))), "not even if somebody approves it");
        let request = request(&format!("system:node:{name}"), NODES, &[]);
        let by_people = SigningRequest { state: State::Approved, ..asked(Signer::Client, "ann", "staff", request) };
        assert!(matches!(plan(&by_people, false, &[]), Some(Action::Fail(_))), "nor from another signer");
    }
    for name in ["a", "a.b-c.d", "0", &long[..253]] {
        assert!(matches!(plan(&joining(name), false, &[]), Some(Action::Approve(_))), "{name}");
    }
}

#[test]
fn a_subject_of_two_names_is_refused() {
    let mut two = joining("a");
    if let Ok(request) = &mut two.request {
        request.common_names = 2;
    }
    assert!(denied(plan(&two, false, &[])).contains("2 common names"));
}

#[test]
fn of_many_answered_requests_the_oldest_are_forgotten() {
    let at = |second: i64| Timestamp::from_second(second).unwrap();
    let many = ANSWERED_EACH as i64 + 10;
    let mut all: Vec<(&str, State, Timestamp)> = (0..many).map(|n| ("a", State::Issued, at(n))).collect();
    all.push(("b", State::Refused, at(0)));
    all.push(("a", State::Pending, at(0)));
    all.push(("a", State::Approved, at(0)));
    assert_eq!(superfluous(&all, at(many + 1000)), (0..10).collect::<Vec<_>>());
    let read = UNREAD.as_secs() + 5;
    assert_eq!(superfluous(&all, at(read)), (0..5).collect::<Vec<_>>(), "the others may not have been read");
    assert_eq!(superfluous(&all[10..], at(many + 1000)), Vec::<usize>::new());
}

#[test]
fn what_others_ask_for_is_left_to_people_and_then_given() {
    let wanted = |group: &str| asked(Signer::Client, "ann", "staff", request("ann", group, &[]));
    assert_eq!(plan(&wanted("staff"), false, &[]), None);
    let approved = |asked: SigningRequest| SigningRequest { state: State::Approved, ..asked };
    assert_eq!(plan(&approved(wanted("staff")), false, &[]), Some(Action::Issue));
    assert!(matches!(plan(&approved(wanted(MASTERS)), false, &[]), Some(Action::Fail(_))));
    let serving =
        asked(Signer::NodeServing, "system:bootstrap:abcdef", BOOTSTRAPPERS, request("system:node:a", NODES, &["a"]));
    assert_eq!(plan(&serving, false, &[]), None);
    for state in [State::Issued, State::Refused] {
        assert_eq!(plan(&SigningRequest { state, ..joining("a") }, false, &[]), None);
    }
}

#[test]
fn requests_are_kept_for_a_while() {
    let at = |second| Timestamp::from_second(second).unwrap();
    assert!(!is_old(State::Issued, at(0), at(3600)));
    assert!(is_old(State::Issued, at(0), at(3601)));
    assert!(is_old(State::Refused, at(0), at(3601)));
    assert!(!is_old(State::Pending, at(0), at(3601)));
    assert!(is_old(State::Pending, at(0), at(24 * 3600 + 1)));
}
