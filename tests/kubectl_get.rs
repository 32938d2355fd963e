//! `kubectl get` in its many forms, and `describe`.

use std::process::Command;

use jiff::Timestamp;

use crate::{harness::Kubectl, with_each_kubectl};

const THREE: &str = r#"
{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "labels": {"n": "3", "odd": "yes"}}, "data": {"rank": "first"}}
{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"n": "1", "odd": "yes"}}, "data": {"rank": "second", "more": "x"}}
{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b", "labels": {"n": "2"}}, "data": {"rank": "third"}}
"#;

fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn tables_have_upstreams_columns(k: &Kubectl) {
    k.create(THREE);
    let table = lines(&k.ok("get cm"));
    assert_eq!(table[0], "NAME DATA AGE");
    assert!(table[1].starts_with("a 2 ") && table[2].starts_with("b 1 "), "{table:?}");
    assert!(lines(&k.ok("get cm --show-labels"))[1].ends_with("n=1,odd=yes"));
    assert_eq!(lines(&k.ok("get cm -L n --no-headers"))[2].split(' ').next_back(), Some("3"));
    assert!(lines(&k.ok("get ns,cm -A")).iter().any(|line| line.starts_with("default configmap/a 2")));
    assert_eq!(lines(&k.ok("get ns"))[0], "NAME STATUS AGE");
    assert!(k.ok("get ns default").contains("Active"));
}

fn output_comes_in_the_form_asked_for(k: &Kubectl) {
    k.create(THREE);
    assert_eq!(k.ok("get cm a b c -o name"), "configmap/a\nconfigmap/b\nconfigmap/c");
    assert_eq!(k.value("cm a b c", "{.items[*].data.rank}"), "second third first");
    let columns = lines(&k.ok("get cm a b c -o custom-columns=N:.metadata.name,R:.data.rank"));
    assert_eq!(columns, ["N R", "a second", "b third", "c first"]);
    let list = k.json("get cm a b c -o json");
    assert_eq!((list["kind"].as_str(), list["apiVersion"].as_str()), (Some("List"), Some("v1")));
    assert_eq!(list["items"][0]["kind"], "ConfigMap");
    let yaml = k.ok("get cm a -o yaml");
    assert!(yaml.starts_with("apiVersion: v1\ndata:\n  more: x\n  rank: second\nkind: ConfigMap\n"), "{yaml}");
    assert_eq!(k.ok("get cm a b -o go-template='{{len .items}}'"), "2");
}

fn lists_are_sorted_and_selected(k: &Kubectl) {
    k.create(THREE);
    let names = |args: &str| {
        // Every namespace has one more, made for it.
        let listed = k.ok(&format!("get cm -o name {args}"));
        let ours = listed.lines().filter(|line| *line != "configmap/kube-root-ca.crt");
        ours.map(|line| line.trim_start_matches("configmap/")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names("--sort-by=.data.rank"), "c a b");
    assert_eq!(names("-l odd=yes"), "a c");
    assert_eq!(names("-l '!odd'"), "b");
    assert_eq!(names("-l 'n in (1,2)'"), "a b");
    assert_eq!(names("-l 'n notin (1,2),odd'"), "c");
    assert_eq!(names("--field-selector metadata.name!=a"), "b c");
    assert_eq!(names("--field-selector metadata.name=a"), "a");
    assert_eq!(lines(&k.ok("get cm -l n --sort-by=.data.rank"))[1].split(' ').next(), Some("c"));
    assert_eq!(names("--chunk-size=1"), "a b c");
    assert_eq!(names("--chunk-size=2 -l odd"), "a c");
}

fn a_watch_shows_what_happens(k: &Kubectl) {
    let mut tables = k.follow("get cm -w");
    let mut objects = k.follow("get cm -w --output-watch-events -o json");
    k.create(THREE);
    tables.until("headers", |line| line.starts_with("NAME"));
    tables.until("c", |line| line.starts_with("c  "));
    tables.until("b", |line| line.starts_with("b  "));
    objects.until("an addition", |line| line.contains(r#"{"type":"ADDED""#));
    k.ok(r#"patch cm b -p '{"data":{"x":"y","z":"z"}}'"#);
    let changed = tables.until("b with its three entries", |line| line.starts_with("b  "));
    assert_eq!(changed.split_whitespace().nth(1), Some("3"), "{changed}");
    objects.until("a change", |line| line.contains(r#"{"type":"MODIFIED""#));
    k.ok("delete cm b");
    objects.until("a removal", |line| line.contains(r#"{"type":"DELETED""#));
    tables.until("b once more", |line| line.starts_with("b  "));
}

fn discovery_lists_what_there_is(k: &Kubectl) {
    let resources = k.ok("api-resources --no-headers");
    let row = |name: &str| lines(&resources).into_iter().find(|line| line.split(' ').next() == Some(name));
    assert_eq!(row("pods").as_deref(), Some("pods po v1 true Pod"));
    assert_eq!(row("deployments").as_deref(), Some("deployments deploy apps/v1 true Deployment"));
    assert_eq!(row("nodes").as_deref(), Some("nodes no v1 false Node"));
    let wide = k.ok("api-resources -o wide --no-headers");
    assert!(wide.lines().any(|line| line.starts_with("pods ") && line.contains("deletecollection")), "{wide}");
    if k.is_recent() {
        let all = k.ok("api-resources --categories=all -o name");
        for name in ["pods", "services", "deployments.apps", "jobs.batch", "horizontalpodautoscalers.autoscaling"] {
            assert!(all.lines().any(|line| line == name), "{name}: {all}");
        }
        assert!(!all.contains("configmaps"), "{all}");
    }
    assert!(k.ok("api-resources --verbs=deletecollection -o name").contains("configmaps"));
    assert!(!k.ok("api-resources --namespaced=false -o name").contains("configmaps"));
    let versions = k.ok("api-versions");
    for version in ["v1", "apps/v1", "batch/v1", "autoscaling/v2", "networking.k8s.io/v1"] {
        assert!(versions.lines().any(|line| line == version), "{version}: {versions}");
    }
    let version = k.json("get --raw /version");
    assert!(version["gitVersion"].as_str().is_some_and(|version| version.starts_with("v1.37.")), "{version}");
    // A commit may have been made since the program was built.
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(["-C", env!("CARGO_MANIFEST_DIR")]).args(arguments).output();
        output.is_ok_and(|output| output.status.success())
    };
    let commit = version["gitCommit"].as_str().unwrap_or_default();
    if git(&["rev-parse", "HEAD"]) {
        assert!(git(&["merge-base", "--is-ancestor", commit, "HEAD"]), "{version}");
    } else {
        assert_eq!(commit, "", "outside a checkout");
    }
    assert!(version["buildDate"].as_str().is_some_and(|date| date.parse::<Timestamp>().is_ok()), "{version}");
    assert!(k.ok("cluster-info").contains(k.cluster.url()));
    assert_eq!(k.ok("get --raw /readyz"), "ok");
}

fn deprecated_kinds_are_shown_with_a_warning(k: &Kubectl) {
    let components = k.run("get cs");
    let warning = "Warning: v1 ComponentStatus is deprecated in v1.19+";
    assert!(components.stderr.contains(warning), "{components}");
    let table = lines(&components.ok());
    assert_eq!(table[0], "NAME STATUS MESSAGE ERROR");
    for name in ["scheduler", "controller-manager", "etcd-0"] {
        assert!(table.iter().any(|row| *row == format!("{name} Healthy ok")), "{table:?}");
    }
    let endpoints = k.run("get endpoints -A");
    let warning = "Warning: v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice";
    assert!(endpoints.stderr.contains(warning), "{endpoints}");
}

fn the_priority_classes_of_the_system_are_listed(k: &Kubectl) {
    let list = lines(&k.ok("get priorityclasses --no-headers -o custom-columns=N:.metadata.name,V:.value"));
    assert_eq!(list, ["system-cluster-critical 2000000000", "system-node-critical 2000001000"]);
}

with_each_kubectl!(
    the_priority_classes_of_the_system_are_listed,
    deprecated_kinds_are_shown_with_a_warning,
    tables_have_upstreams_columns,
    output_comes_in_the_form_asked_for,
    lists_are_sorted_and_selected,
    a_watch_shows_what_happens,
    discovery_lists_what_there_is,
);
