//! `kubectl apply`, `diff`, `replace`, `edit` and `patch`: the ways in which people change objects.

use serde_json::json;

use crate::{harness::Kubectl, with_each_kubectl};

const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels: {app: web, tier: front}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: nginx
        image: nginx:1
        ports: [{containerPort: 80}]
        env: [{name: A, value: a}, {name: B, value: b}]
      - name: sidecar
        image: busybox:1
";

const SETTINGS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: red, size: small}
";

fn apply_tells_created_from_unchanged_from_configured(k: &Kubectl) {
    assert_eq!(k.apply(WEB), "deployment.apps/web created");
    assert_eq!(k.apply(WEB), "deployment.apps/web unchanged");
    assert_eq!(k.apply(&WEB.replace("nginx:1", "nginx:2")), "deployment.apps/web configured");
    assert_eq!(k.value("deploy web", "{.spec.template.spec.containers[0].image}"), "nginx:2");
    assert_eq!(k.value("deploy web", "{.metadata.generation}"), "2");
}

fn apply_removes_what_the_manifest_no_longer_says(k: &Kubectl) {
    k.apply(WEB);
    let less = WEB
        .replace(", tier: front", "")
        .replace("{name: A, value: a}, ", "")
        .replace("      - name: sidecar\n        image: busybox:1\n", "");
    assert_eq!(k.apply(&less), "deployment.apps/web configured");
    assert_eq!(k.value("deploy web", "{.metadata.labels}"), r#"{"app":"web"}"#);
    assert_eq!(k.value("deploy web", "{.spec.template.spec.containers[*].name}"), "nginx");
    assert_eq!(k.value("deploy web", "{.spec.template.spec.containers[0].env[*].name}"), "B");
}

fn apply_keeps_what_others_changed(k: &Kubectl) {
    k.apply(WEB);
    k.ok("label deploy web owner=ann");
    k.ok("scale deploy web --replicas=7");
    k.ok(r#"patch deploy web -p '{"spec":{"template":{"spec":{"containers":[{"name":"nginx","env":[{"name":"C","value":"c"}]}]}}}}'"#);
    let unscaled = WEB.replace("  replicas: 2\n", "");
    k.apply(&unscaled.replace("nginx:1", "nginx:2"));
    assert_eq!(k.value("deploy web", "{.metadata.labels.owner}"), "ann");
    let names = k.value("deploy web", "{.spec.template.spec.containers[0].env[*].name}");
    let mut names: Vec<&str> = names.split(' ').collect();
    names.sort_unstable();
    assert_eq!(names, ["A", "B", "C"]);
    // What was applied before and is applied no more goes back to its default.
    assert_eq!(k.value("deploy web", "{.spec.replicas}"), "1");
    k.ok("scale deploy web --replicas=7");
    k.apply(&unscaled.replace("nginx:1", "nginx:3"));
    assert_eq!(k.value("deploy web", "{.spec.replicas}"), "7");
}

fn a_server_dry_run_says_what_would_happen_and_does_nothing(k: &Kubectl) {
    assert_eq!(
        k.run_with("apply --dry-run=server -f -", WEB).ok().trim(),
        "deployment.apps/web created (server dry run)"
    );
    assert!(k.refused("get deploy web").contains("NotFound"));
    k.apply(WEB);
    let dry = k.run_with("apply --dry-run=server -o json -f -", &WEB.replace("nginx:1", "nginx:2")).ok();
    assert!(dry.contains("nginx:2"), "{dry}");
    assert_eq!(k.value("deploy web", "{.spec.template.spec.containers[0].image}"), "nginx:1");
}

fn diff_ends_with_one_only_if_there_are_differences(k: &Kubectl) {
    k.apply(WEB);
    let same = k.run_with("diff -f -", WEB);
    assert_eq!((same.code, same.stdout.as_str()), (0, ""), "{same}");
    let other = k.run_with("diff -f -", &WEB.replace("nginx:1", "nginx:2"));
    assert_eq!(other.code, 1, "{other}");
    assert!(other.stdout.contains("-        image: nginx:1\n+        image: nginx:2"), "{other}");
    let new = k.run_with("diff -f -", SETTINGS);
    assert_eq!(new.code, 1, "{new}");
    assert!(new.stdout.contains("+  name: settings"), "{new}");
}

fn replace_swaps_the_object_and_force_makes_it_anew(k: &Kubectl) {
    k.create(SETTINGS);
    let uid = k.value("cm settings", "{.metadata.uid}");
    let blue = SETTINGS.replace("color: red, ", "shade: blue, ");
    assert_eq!(k.run_with("replace -f -", &blue).ok().trim(), "configmap/settings replaced");
    assert_eq!(k.value("cm settings", "{.data}"), r#"{"shade":"blue","size":"small"}"#);
    assert_eq!(k.value("cm settings", "{.metadata.uid}"), uid);
    let output = k.run_with("replace --force -f -", SETTINGS).ok();
    assert!(
        output.contains("configmap \"settings\" deleted") && output.contains("configmap/settings replaced"),
        "{output}"
    );
    assert_ne!(k.value("cm settings", "{.metadata.uid}"), uid);
    let missing = k.run_with("replace -f -", &SETTINGS.replace("settings", "nobody")).refused();
    assert!(missing.contains("configmaps \"nobody\" not found"), "{missing}");
}

fn edit_writes_back_what_the_editor_left(k: &Kubectl) {
    k.create(SETTINGS);
    assert_eq!(k.edit("edit cm settings", "s/red/green/").ok().trim(), "configmap/settings edited");
    assert_eq!(k.value("cm settings", "{.data.color}"), "green");
    let same = k.edit("edit cm settings", "s/nothing/nothing/");
    assert!(same.stderr.contains("cancelled, no changes made"), "{same}");
}

fn patches_of_three_types_do_what_their_type_says(k: &Kubectl) {
    k.apply(WEB);
    let containers = |path: &str| k.value("deploy web", &format!("{{.spec.template.spec.containers{path}}}"));
    // Strategic: containers merge by name, $patch removes one.
    let output = k.ok(r#"patch deploy web -p '{"spec":{"template":{"spec":{"containers":[{"name":"sidecar","image":"busybox:2"}]}}}}'"#);
    assert_eq!(output, "deployment.apps/web patched");
    assert_eq!(containers("[*].image"), "nginx:1 busybox:2");
    k.ok(
        r#"patch deploy web -p '{"spec":{"template":{"spec":{"containers":[{"name":"sidecar","$patch":"delete"}]}}}}'"#,
    );
    assert_eq!(containers("[*].name"), "nginx");
    // Merge: a list is replaced, null removes.
    k.ok(r#"patch deploy web --type=merge -p '{"metadata":{"labels":{"tier":null}},"spec":{"template":{"spec":{"containers":[{"name":"other","image":"other:1"}]}}}}'"#);
    assert_eq!(containers("[*].name"), "other");
    assert_eq!(k.value("deploy web", "{.metadata.labels}"), r#"{"app":"web"}"#);
    // JSON: operations, in order; one that fails undoes all.
    k.ok(r#"patch deploy web --type=json -p '[{"op":"test","path":"/spec/replicas","value":2},{"op":"replace","path":"/spec/replicas","value":3},{"op":"add","path":"/metadata/labels/a~1b","value":"c"}]'"#);
    assert_eq!(k.value("deploy web", "{.spec.replicas}"), "3");
    assert_eq!(k.json("get deploy web -o json")["metadata"]["labels"], json!({"app": "web", "a/b": "c"}));
    let refused = k.refused(r#"patch deploy web --type=json -p '[{"op":"replace","path":"/spec/replicas","value":9},{"op":"test","path":"/spec/replicas","value":8}]'"#);
    assert!(refused.contains("The request is invalid"), "{refused}");
    assert_eq!(k.value("deploy web", "{.spec.replicas}"), "3");
    assert_eq!(k.ok(r#"patch deploy web -p '{"spec":{"replicas":3}}'"#), "deployment.apps/web patched (no change)");
}

fn manifests_come_from_directories_standard_input_and_kustomizations(k: &Kubectl) {
    k.cluster.file("all/web.yaml", WEB);
    k.cluster.file(
        "all/settings.json",
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"data":{"a":"b"}}"#,
    );
    let output = k.ok("apply -f all");
    assert_eq!(output, "configmap/settings created\ndeployment.apps/web created");
    let two = format!("{SETTINGS}---{}", SETTINGS.replace("settings", "second"));
    assert_eq!(k.apply(&two), "configmap/settings configured\nconfigmap/second created");
    let list = r#"{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"third"}}]}"#;
    assert_eq!(k.apply(list), "configmap/third created");
    k.cluster.file("kustom/kustomization.yaml", "resources: [web.yaml]\nnamePrefix: big-\n");
    k.cluster.file("kustom/web.yaml", WEB);
    assert_eq!(k.ok("apply -k kustom"), "deployment.apps/big-web created");
    let output = k.ok("delete -f all");
    assert!(
        output.contains("configmap \"settings\" deleted") && output.contains("deployment.apps \"web\" deleted"),
        "{output}"
    );
}

fn prune_removes_what_is_no_longer_in_the_manifests(k: &Kubectl) {
    let labelled = |name: &str| SETTINGS.replace("{name: settings}", &format!("{{name: {name}, labels: {{app: x}}}}"));
    k.apply(&format!("{}---{}", labelled("one"), labelled("two")));
    let flag = if k.is_recent() { "--prune-allowlist" } else { "--prune-whitelist" };
    let output = k.run_with(&format!("apply --prune -l app=x {flag}=core/v1/ConfigMap -f -"), &labelled("one")).ok();
    assert!(output.contains("configmap/one unchanged") && output.contains("configmap/two pruned"), "{output}");
    assert_eq!(k.ok("get cm -l app=x -o name"), "configmap/one");
}

with_each_kubectl!(
    apply_tells_created_from_unchanged_from_configured,
    apply_removes_what_the_manifest_no_longer_says,
    apply_keeps_what_others_changed,
    a_server_dry_run_says_what_would_happen_and_does_nothing,
    diff_ends_with_one_only_if_there_are_differences,
    replace_swaps_the_object_and_force_makes_it_anew,
    edit_writes_back_what_the_editor_left,
    patches_of_three_types_do_what_their_type_says,
    manifests_come_from_directories_standard_input_and_kustomizations,
    prune_removes_what_is_no_longer_in_the_manifests,
);
