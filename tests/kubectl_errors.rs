//! Refusals, as the people at the terminal read them.

use crate::{harness::Kubectl, with_each_kubectl};

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: nginx}]}
";

fn config_map(name: &str) -> String {
    format!(r#"{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {{"name": "{name}"}}}}"#)
}

fn what_is_missing_is_not_found(k: &Kubectl) {
    assert_eq!(k.refused("get pod nobody"), "Error from server (NotFound): pods \"nobody\" not found");
    assert_eq!(
        k.refused("delete deploy nobody"),
        "Error from server (NotFound): deployments.apps \"nobody\" not found"
    );
    assert_eq!(k.ok("get pod nobody --ignore-not-found"), "");
    assert_eq!(k.refused("get wheels"), "error: the server doesn't have a resource type \"wheels\"");
    assert_eq!(
        k.refused("get --raw /nothing"),
        "Error from server (NotFound): the server could not find the requested resource"
    );
}

fn a_name_is_taken_once(k: &Kubectl) {
    k.create(&config_map("one"));
    let refused = k.run_with("create -f -", &config_map("one")).refused();
    assert_eq!(
        refused.trim(),
        "Error from server (AlreadyExists): error when creating \"STDIN\": configmaps \"one\" already exists"
    );
}

fn a_stale_revision_is_a_conflict(k: &Kubectl) {
    k.create(&config_map("one"));
    let stale = k.ok("get cm one -o yaml");
    k.ok("annotate cm one touched=yes");
    let refused = k.run_with("replace -f -", &stale).refused();
    assert_eq!(
        refused.trim(),
        "Error from server (Conflict): error when replacing \"STDIN\": Operation cannot be fulfilled on configmaps \
         \"one\": the object has been modified; please apply your changes to the latest version and try again"
    );
}

fn invalid_objects_are_refused_with_the_paths_of_their_fields(k: &Kubectl) {
    let refused = k
        .run_with("create --validate=false -f -", &DEPLOYMENT.replace("  selector: {matchLabels: {app: web}}\n", ""))
        .refused();
    assert!(
        refused.starts_with("The Deployment \"web\" is invalid:")
            && refused.contains("* spec.selector: Required value"),
        "{refused}"
    );
    let refused =
        k.run_with("create -f -", &DEPLOYMENT.replace("labels: {app: web}", "labels: {app: other}")).refused();
    assert!(
        refused.contains(
            r#"The Deployment "web" is invalid: spec.template.metadata.labels: Invalid value: {"app":"other"}: `selector` does not match template `labels`"#
        ),
        "{refused}"
    );
    let refused = k.run_with("create -f -", &config_map("Bad_Name")).refused();
    assert!(
        refused.starts_with(
            "The ConfigMap \"Bad_Name\" is invalid: metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 \
             subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an \
             alphanumeric character"
        ),
        "{refused}"
    );
}

fn a_selector_cannot_change(k: &Kubectl) {
    k.create(DEPLOYMENT);
    let refused = k.run_with("replace -f -", &DEPLOYMENT.replace("app: web", "app: other")).refused();
    assert!(
        refused.starts_with("The Deployment \"web\" is invalid: spec.selector: Invalid value:")
            && refused.trim().ends_with("field is immutable"),
        "{refused}"
    );
}

fn a_namespace_must_exist(k: &Kubectl) {
    let refused = k.run_with("create -n nowhere -f -", &config_map("one")).refused();
    assert_eq!(
        refused.trim(),
        "Error from server (NotFound): error when creating \"STDIN\": namespaces \"nowhere\" not found"
    );
    assert_eq!(k.run("get cm -n nowhere").stderr.trim(), "No resources found in nowhere namespace.");
}

fn an_administrator_can_ask_what_others_would_see(k: &Kubectl) {
    assert_eq!(
        k.refused("get cm --as=ann"),
        "Error from server (Forbidden): configmaps is forbidden: User \"ann\" cannot list resource \"configmaps\" in \
         API group \"\" in the namespace \"default\""
    );
    let refused = k.refused("delete ns default --as=system:serviceaccount:default:bot");
    assert!(refused.contains(r#"namespaces "default" is forbidden: User "system:serviceaccount:default:bot" cannot delete resource "namespaces" in API group "" in the namespace "default""#), "{refused}");
    k.ok("get cm --as=ann --as-group=system:masters");
}

fn selectors_that_make_no_sense_are_refused(k: &Kubectl) {
    let refused = k.refused("get pods -l 'a in b'");
    assert!(refused.contains("unable to parse requirement"), "{refused}");
    let refused = k.refused("get pods --field-selector spec.color=red");
    assert_eq!(
        refused,
        "Error from server (BadRequest): Unable to find \"/v1, Resource=pods\" that match label selector \"\", field \
         selector \"spec.color=red\": field label not supported: spec.color"
    );
}

with_each_kubectl!(
    what_is_missing_is_not_found,
    a_name_is_taken_once,
    a_stale_revision_is_a_conflict,
    invalid_objects_are_refused_with_the_paths_of_their_fields,
    a_selector_cannot_change,
    a_namespace_must_exist,
    an_administrator_can_ask_what_others_would_see,
    selectors_that_make_no_sense_are_refused,
);
