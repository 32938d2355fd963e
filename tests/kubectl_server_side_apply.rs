//! `kubectl apply --server-side` and what goes with it: conflicts, `--force-conflicts`, `diff`, and objects that were applied on
//! the client before.

use serde_json::Value;

use crate::{harness::Kubectl, with_each_kubectl};

const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels: {app: web}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: nginx
        image: nginx:1
        ports: [{containerPort: 80}]
";

const SETTINGS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: red, size: small}
";

/// Managers of an object with what they do: `kubectl Apply`.
fn managers(k: &Kubectl, object: &str) -> Vec<String> {
    let flag = if k.is_recent() { "--show-managed-fields" } else { "" };
    let object = k.json(&format!("get {object} -o json {flag}"));
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names = entries.iter().map(|entry| format!("{} {}", text(&entry["manager"]), text(&entry["operation"])));
    names.filter(|name| !name.starts_with("mainstay")).collect()
}

fn an_apply_on_the_server_creates_changes_and_removes(k: &Kubectl) {
    assert_eq!(k.run_with("apply --server-side -f -", WEB).ok().trim(), "deployment.apps/web serverside-applied");
    assert_eq!(managers(k, "deploy web"), ["kubectl Apply"]);
    assert_eq!(k.value("deploy web", "{.spec.strategy.type}"), "RollingUpdate");
    k.run_with("apply --server-side -f -", SETTINGS).ok();
    k.run_with("apply --server-side -f -", &SETTINGS.replace("color: red, ", "shade: dark, ")).ok();
    assert_eq!(k.value("cm settings", "{.data}"), r#"{"shade":"dark","size":"small"}"#);
}

fn a_conflict_names_the_other_manager_and_force_takes_the_field(k: &Kubectl) {
    k.run_with("apply --server-side -f -", SETTINGS).ok();
    let blue = SETTINGS.replace("red", "blue");
    let refused = k.run_with("apply --server-side --field-manager=other -f -", &blue).refused();
    assert!(refused.contains(r#"Apply failed with 1 conflict: conflict with "kubectl": .data.color"#), "{refused}");
    assert_eq!(k.value("cm settings", "{.data.color}"), "red");
    k.run_with("apply --server-side --field-manager=other --force-conflicts -f -", &blue).ok();
    assert_eq!(k.value("cm settings", "{.data.color}"), "blue");
    assert_eq!(managers(k, "cm settings"), ["kubectl Apply", "other Apply"]);
}

fn an_edit_takes_fields_from_an_applier(k: &Kubectl) {
    k.run_with("apply --server-side -f -", SETTINGS).ok();
    k.ok(r#"patch cm settings --type=merge -p '{"data":{"color":"green"}}'"#);
    let refused = k.run_with("apply --server-side -f -", SETTINGS).refused();
    assert!(refused.contains(".data.color") && refused.contains("using v1"), "{refused}");
}

fn a_diff_on_the_server_shows_what_an_apply_would_change(k: &Kubectl) {
    k.run_with("apply --server-side -f -", SETTINGS).ok();
    let same = k.run_with("diff --server-side -f -", SETTINGS);
    assert_eq!((same.code, same.stdout.as_str()), (0, ""), "{same}");
    let other = k.run_with("diff --server-side -f -", &SETTINGS.replace("red", "blue"));
    assert_eq!(other.code, 1, "{other}");
    assert!(other.stdout.contains("-  color: red") && other.stdout.contains("+  color: blue"), "{other}");
    assert_eq!(k.value("cm settings", "{.data.color}"), "red");
}

fn an_object_that_was_applied_on_the_client_can_be_applied_on_the_server_and_back(k: &Kubectl) {
    k.apply(SETTINGS);
    assert_eq!(managers(k, "cm settings"), ["kubectl-client-side-apply Update"]);
    let said = k.run_with("apply --server-side -f -", &SETTINGS.replace("red", "blue")).ok();
    assert!(said.contains("configmap/settings serverside-applied"), "{said}");
    assert_eq!(k.value("cm settings", "{.data.color}"), "blue");
    assert!(managers(k, "cm settings").contains(&"kubectl Apply".to_owned()));
    // The annotation has followed, so that a client-side apply removes what it says no more.
    assert_eq!(k.apply(&SETTINGS.replace("color: red, ", "")), "configmap/settings configured");
    assert_eq!(k.value("cm settings", "{.data}"), r#"{"size":"small"}"#);
}

with_each_kubectl!(
    an_apply_on_the_server_creates_changes_and_removes,
    a_conflict_names_the_other_manager_and_force_takes_the_field,
    an_edit_takes_fields_from_an_applier,
    a_diff_on_the_server_shows_what_an_apply_would_change,
    an_object_that_was_applied_on_the_client_can_be_applied_on_the_server_and_back,
);
