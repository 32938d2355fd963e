use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use serde_json::Value;

use super::{
    policy::{Level, Stage, Subject, Target},
    *,
};
use crate::{auth::User, authorize::rbac::controller_policy::CONTROLLERS};

fn user(name: &str, group: &str) -> User {
    User::authenticated(name.to_owned(), vec![group.to_owned()])
}

fn resource<'a>(verb: &'a str, group: &'a str, full: &'a str, namespace: &'a str, name: &'a str) -> Subject<'a> {
    let (resource, subresource) = full.split_once('/').unwrap_or((full, ""));
    Subject { verb, target: Target::Resource { group, resource, subresource, namespace, name } }
}

fn path<'a>(verb: &'a str, path: &'a str) -> Subject<'a> {
    Subject { verb, target: Target::Path(path) }
}

fn policy(rules: &str) -> Policy {
    Policy::parse(format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{rules}").as_bytes()).unwrap()
}

#[test]
fn the_built_in_policy_logs_people_and_not_the_clusters_chatter() {
    let policy = Policy::built_in();
    let admin = user("kubernetes-admin", "system:masters");
    let (node, part) = (user("system:node:a", "system:nodes"), user("system:mainstay:scheduler", "system:masters"));
    for (who, what, level) in [
        (&admin, resource("get", "", "secrets", "default", "s"), Level::Metadata),
        (&admin, resource("create", "", "pods/exec", "default", "p"), Level::Metadata),
        (&admin, resource("patch", "", "pods/status", "default", "p"), Level::Metadata),
        (&admin, path("get", "/backup"), Level::Metadata),
        (&admin, path("post", "/secrets/rotate-key"), Level::Metadata),
        (&admin, path("get", "/livez/ping"), Level::None),
        (&admin, path("get", "/apis/apps/v1"), Level::None),
        (&admin, resource("update", "coordination.k8s.io", "leases", "kube-system", "l"), Level::None),
        (&admin, resource("create", "", "events", "default", ""), Level::None),
        (&node, resource("watch", "", "pods", "", ""), Level::None),
        (&node, resource("patch", "", "nodes/status", "", "a"), Level::None),
        (&node, resource("create", "", "serviceaccounts/token", "default", "d"), Level::Metadata),
        (&part, resource("list", "", "pods", "", ""), Level::None),
        (&part, resource("create", "", "pods", "default", ""), Level::Metadata),
    ] {
        assert_eq!(policy.decide(Some(who), what).level, level, "{} {what:?}", who.name);
    }
    let verdict = policy.decide(Some(&admin), resource("get", "", "secrets", "default", "s"));
    assert_eq!(verdict.omit_stages, [Stage::RequestReceived].into_iter().collect());
    assert!(verdict.omit_stages.contains(Stage::RequestReceived) && !verdict.omit_stages.contains(Stage::Panic));
    assert_eq!(policy.decide(None, resource("get", "", "secrets", "default", "s")).level, Level::Metadata);
}

#[test]
fn what_controllers_read_and_report_is_not_logged_and_what_they_change_is() {
    let policy = Policy::built_in();
    for controller in CONTROLLERS {
        let who = User::service_account("kube-system", controller.account);
        let level = |what| policy.decide(Some(&who), what).level;
        assert_eq!(level(resource("get", "", "nodes", "", "a")), Level::None, "{}", who.name);
        assert_eq!(level(resource("patch", "", "pods/status", "default", "p")), Level::None, "{}", who.name);
        assert_eq!(level(resource("delete", "", "pods", "default", "p")), Level::Metadata, "{}", who.name);
    }
    let release = User::service_account("kube-system", "release-controller");
    let moved = resource("patch", "mainstay.dev", "machines", "", "m");
    assert_eq!(policy.decide(Some(&release), moved).level, Level::Metadata, "who moved a machine to which version");
    let other = User::service_account("kube-system", "somebody");
    assert_eq!(policy.decide(Some(&other), resource("get", "", "secrets", "default", "s")).level, Level::Metadata);
}

#[test]
fn rules_match_as_upstreams_do() {
    let anyone = user("u", "g");
    let level = |rules: &str, what| policy(rules).decide(Some(&anyone), what).level;
    let pods = resource("get", "", "pods", "default", "p");
    let logs = resource("get", "", "pods/log", "default", "p");
    for (rules, what, expected) in [
        ("- {level: Request, resources: [{resources: [pods]}]}", pods, Level::Request),
        ("- {level: Request, resources: [{resources: [pods]}]}", logs, Level::None),
        ("- {level: Request, resources: [{resources: [pods/*]}]}", logs, Level::Request),
        ("- {level: Request, resources: [{resources: [pods/*]}]}", pods, Level::None),
        ("- {level: Request, resources: [{resources: [\"*/log\"]}]}", logs, Level::Request),
        ("- {level: Request, resources: [{resources: [\"*\"]}]}", logs, Level::Request),
        ("- {level: Request, resources: [{group: apps}]}", pods, Level::None),
        ("- {level: Request, resources: [{resources: [pods], resourceNames: [q]}]}", pods, Level::None),
        ("- {level: Request, namespaces: [default]}", pods, Level::Request),
        ("- {level: Request, namespaces: [\"\"]}", pods, Level::None),
        ("- {level: Request, namespaces: [\"\"]}", resource("get", "", "nodes", "", "n"), Level::Request),
        ("- {level: Request, namespaces: [\"\"]}", path("get", "/x"), Level::None),
        ("- {level: Request, nonResourceURLs: [/x*]}", path("get", "/xy"), Level::Request),
        ("- {level: Request, nonResourceURLs: [/x*]}", pods, Level::None),
        ("- {level: Request, users: [v]}\n- {level: Metadata, userGroups: [g]}", pods, Level::Metadata),
        ("- {level: None, verbs: [get]}\n- {level: RequestResponse}", pods, Level::None),
    ] {
        assert_eq!(level(rules, what), expected, "{rules} {what:?}");
    }
    for wrong in
        ["- {level: Loud}", "- {level: None, resource: []}", "- {level: None, namespaces: [a], nonResourceURLs: [/b]}"]
    {
        let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{wrong}");
        assert!(Policy::parse(text.as_bytes()).is_err(), "{wrong}");
    }
}

fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn event(uri: &str) -> Event {
    let request = event::RequestRecord { level: Level::Metadata, uri: uri.into(), ..Default::default() };
    let (request, at) = (Arc::new(request), jiff::Timestamp::UNIX_EPOCH);
    Event { request, stage: Stage::ResponseComplete, at, code: Some(200), response: None }
}

#[test]
fn the_log_is_private_and_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit/audit.log");
    let rotation = Rotation { max_bytes: 1000, max_backups: 2, max_age_days: 0 };
    let audit = Audit::open(Policy::built_in(), file.clone(), rotation).unwrap();
    for n in 0..50 {
        audit.record(event(&format!("/{n}")));
    }
    audit.close();
    audit.record(event("/late"));
    let names = files(&dir.path().join("audit"));
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names[0].starts_with("audit-20") && names[2] == "audit.log", "{names:?}");
    let mut seen = 0;
    for name in &names {
        let path = dir.path().join("audit").join(name);
        let metadata = path.metadata().unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
        assert!(metadata.len() <= 1000);
        for line in fs::read_to_string(path).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            assert_eq!((&line["kind"], &line["apiVersion"]), (&"Event".into(), &"audit.k8s.io/v1".into()));
            seen += 1;
        }
    }
    assert!((3..50).contains(&seen), "the oldest are gone: {seen}");
    assert!(fs::read_to_string(file).unwrap().contains("\"/49\""), "the newest is there");
}

#[test]
fn a_log_that_cannot_be_written_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    // A pipe that nobody reads: the writer gets stuck when it is full.
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let reader = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let rotation = Rotation { max_bytes: u64::MAX, max_backups: 0, max_age_days: 0 };
    let audit = Audit::open(Policy::built_in(), pipe, rotation).unwrap();
    for n in 0..30_000 {
        audit.record(event(&format!("/{n}")));
    }
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &audit.metrics()).unwrap();
    let lost = text.lines().find_map(|line| line.strip_prefix("apiserver_audit_error_total ")).unwrap();
    assert!(lost.parse::<u64>().unwrap() > 10_000, "{text}");
    drop(reader); // the writer meets an error, and ends
}
