//! CustomResourceDefinitions, as people and operators use them: kubectl, and an operator written with kopf.

use crate::{
    harness::{Cluster, Kubectl, python},
    with_each_kubectl,
};

const CRONTABS: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: crontabs.stable.example.com
spec:
  group: stable.example.com
  scope: Namespaced
  names: {plural: crontabs, singular: crontab, kind: CronTab, shortNames: [ct], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        description: CronTab runs an image at times.
        properties:
          spec:
            type: object
            required: [cronSpec]
            properties:
              cronSpec: {type: string, description: "When it runs, as cron writes it.", pattern: '^(\S+\s){4}\S+$'}
              image: {type: string, default: busybox}
              replicas: {type: integer, minimum: 1, maximum: 10, default: 1}
          status:
            type: object
            properties: {replicas: {type: integer}, labelSelector: {type: string}}
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.labelSelector}
    additionalPrinterColumns:
    - {name: Spec, type: string, jsonPath: .spec.cronSpec}
    - {name: Replicas, type: integer, jsonPath: .spec.replicas}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
"#;

const BACKUP: &str = r#"
apiVersion: stable.example.com/v1
kind: CronTab
metadata: {name: backup}
spec: {cronSpec: "* * * * */5", image: backup:1}
"#;

fn a_kind_is_defined_used_and_deleted(k: &Kubectl) {
    assert_eq!(k.apply(CRONTABS), "customresourcedefinition.apiextensions.k8s.io/crontabs.stable.example.com created");
    k.ok("wait --for condition=established --timeout=30s crd/crontabs.stable.example.com");
    assert_eq!(
        k.apply(CRONTABS),
        "customresourcedefinition.apiextensions.k8s.io/crontabs.stable.example.com unchanged"
    );
    assert_eq!(k.apply(BACKUP), "crontab.stable.example.com/backup created");
    assert_eq!(k.apply(BACKUP), "crontab.stable.example.com/backup unchanged");
    assert_eq!(k.apply(&BACKUP.replace("backup:1", "backup:2")), "crontab.stable.example.com/backup configured");
    let table = k.ok("get ct");
    let heads: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(heads, ["NAME", "SPEC", "REPLICAS", "AGE"], "{table}");
    assert!(table.contains("* * * * */5"), "{table}");
    assert!(k.ok("get all").contains("crontab.stable.example.com/backup"));
    assert!(k.ok("api-resources --api-group=stable.example.com").contains("crontabs"));
    let explained = k.ok("explain crontab.spec.cronSpec");
    assert!(explained.contains("When it runs, as cron writes it."), "{explained}");
    assert!(k.ok("explain ct").contains("CronTab runs an image at times."));
    k.ok("scale ct backup --replicas=3");
    assert_eq!(k.value("ct backup", "{.spec.replicas} {.metadata.generation}"), "3 3");
    k.ok(r#"patch ct backup --type=merge -p '{"spec":{"image":"other"}}'"#);
    assert!(
        k.refused("scale ct backup --replicas=11").contains("spec.replicas in body should be less than or equal to 10")
    );
    k.ok("delete ct backup");
    k.apply(BACKUP);
    k.ok("delete crd crontabs.stable.example.com --timeout=30s");
    k.refused("get ct"); // in words that depend on what kubectl still knows of the kind
    k.apply(CRONTABS);
    assert!(k.run("get ct").ok().is_empty(), "objects of the old definition are gone");
}

fn objects_that_do_not_fit_their_schema_are_refused(k: &Kubectl) {
    k.apply(CRONTABS);
    let refused = k.run_with("create -f -", &BACKUP.replace("* * * * */5", "sometimes")).refused();
    assert!(refused.contains("spec.cronSpec in body should match"), "{refused}");
    let refused = k.run_with("create -f -", &CRONTABS.replace("type: integer, minimum: 1", "minimum: 1")).refused();
    assert!(
        refused.contains("properties[replicas].type: Required value: must not be empty for specified object fields"),
        "{refused}"
    );
}

fn dependents_and_namespaces_take_custom_objects_along(k: &Kubectl) {
    k.apply(CRONTABS);
    k.apply(BACKUP);
    let uid = k.value("ct backup", "{.metadata.uid}");
    let owned = BACKUP.replace(
        "{name: backup}",
        &format!("{{name: owned, ownerReferences: [{{apiVersion: stable.example.com/v1, kind: CronTab, name: backup, uid: {uid}}}]}}"),
    );
    k.apply(&owned);
    k.ok("delete ct backup");
    k.ok("wait --for=delete ct/owned --timeout=60s");
    k.ok("create namespace shop");
    k.ok("wait --for=jsonpath={.status.phase}=Active namespace/shop --timeout=30s");
    k.run_with("apply -n shop -f -", BACKUP).ok();
    k.ok("delete namespace shop --timeout=60s");
    k.ok("create namespace shop");
    assert!(k.run("get ct -n shop").ok().is_empty());
}

with_each_kubectl!(a_kind_is_defined_used_and_deleted, objects_that_do_not_fit_their_schema_are_refused);

#[test]
fn the_garbage_collector_and_namespaces_know_custom_kinds() {
    dependents_and_namespaces_take_custom_objects_along(&Kubectl::start(crate::harness::Version::V1_32));
}

#[test]
fn an_operator_written_with_kopf_runs() {
    let cluster = Cluster::start();
    assert_eq!(python(&cluster, "kopf_operator.py", &[]).ok().lines().last(), Some("ok"));
}
