//! Deployments of pods that really run: rolled out, changed, undone, paused, stuck, cut off and taken over.

use std::collections::BTreeSet;

use crate::{
    harness::{Kubectl, Version, eventually},
    restarts::until,
};

fn deployment(replicas: u32, spec: &str, script: &str) -> String {
    format!(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  {spec}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: host
        command: [sh, -c, {script:?}]
        env: [{{name: COLOR, value: red}}]
"
    )
}

const SLEEP: &str = "exec sleep 1000";
const COLOURS: &str = "{.items[*].spec.containers[0].env[0].value}";
const UIDS: &str = "{.items[*].metadata.uid}";

fn words(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Waits as people do, and expects the pods of one template and no others, except those that still end.
fn rolled_out(k: &Kubectl, replicas: usize, colour: &str) {
    let output = k.ok("rollout status deploy/web --timeout=50s");
    assert!(output.ends_with("deployment \"web\" successfully rolled out"), "{output}");
    eventually("the old pods are gone", || {
        let colours = k.value("pods -l app=web", COLOURS);
        (colours.split_whitespace().collect::<Vec<_>>() == vec![colour; replicas]).then_some(())
    });
}

fn everything_that_rollout_does(k: &Kubectl) {
    k.create(&deployment(3, "", SLEEP));
    rolled_out(k, 3, "red");
    k.ok("scale deploy/web --replicas=4");
    rolled_out(k, 4, "red");
    let row = k.ok("get deploy web --no-headers");
    assert_eq!(row.split_whitespace().take(4).collect::<Vec<_>>(), ["web", "4/4", "4", "4"]);

    k.ok("set env deploy/web COLOR=blue");
    k.ok("annotate deploy/web kubernetes.io/change-cause='paint it blue'");
    rolled_out(k, 4, "blue");
    let history = k.ok("rollout history deploy/web");
    assert!(history.contains("paint it blue"), "{history}");
    assert!(k.ok("rollout history deploy/web --revision=1").contains("red"));
    assert_eq!(words(&k.value("rs", "{.items[*].spec.replicas}")), words("0 4"));

    assert!(k.ok("rollout undo deploy/web").contains("rolled back"));
    rolled_out(k, 4, "red");
    let revision = r"{.metadata.annotations.deployment\.kubernetes\.io/revision}";
    assert_eq!(k.value("deploy web", revision), "3");
    assert_eq!(k.value("rs", "{.items[*].metadata.name}").split_whitespace().count(), 2, "the old set is used again");

    k.ok("rollout pause deploy/web");
    until(k, "deploy web", r#"{.status.conditions[?(@.type=="Progressing")].reason}"#, "DeploymentPaused");
    k.ok("set env deploy/web COLOR=green");
    until(k, "deploy web", "{.status.observedGeneration}", &k.value("deploy web", "{.metadata.generation}"));
    assert_eq!(words(&k.value("pods -l app=web", COLOURS)), words("red"));
    k.ok("rollout resume deploy/web");
    rolled_out(k, 4, "green");

    let before = words(&k.value("pods -l app=web", UIDS));
    k.ok("rollout restart deploy/web");
    rolled_out(k, 4, "green");
    let after = words(&k.value("pods -l app=web", UIDS));
    assert!(before.is_disjoint(&after), "{before:?} {after:?}");
    let events = k.ok("get events --field-selector involvedObject.kind=Deployment");
    assert!(events.contains("ScalingReplicaSet") && events.contains("Scaled up replica set web-"), "{events}");
}

fn a_bad_image_stops_the_rollout_while_the_old_pods_serve(k: &Kubectl) {
    k.create(&deployment(4, "progressDeadlineSeconds: 5", SLEEP));
    rolled_out(k, 4, "red");
    let serving = words(&k.value("pods -l app=web", UIDS));
    k.ok("set image deploy/web c=127.0.0.1:1/no/such:image");
    let refused = k.refused("rollout status deploy/web --timeout=50s");
    assert!(refused.contains("exceeded its progress deadline"), "{refused}");
    let condition =
        |path: &str| k.value("deploy web", &format!(r#"{{.status.conditions[?(@.type=="Progressing")].{path}}}"#));
    assert_eq!(condition("reason"), "ProgressDeadlineExceeded");
    assert_eq!(k.value("deploy web", r#"{.status.conditions[?(@.type=="Available")].status}"#), "True");
    assert_eq!(k.value("deploy web", "{.status.availableReplicas} {.status.updatedReplicas}"), "3 2");
    let now = words(&k.value("pods -l app=web", UIDS));
    assert_eq!(serving.intersection(&now).count(), 3, "three of four serve as they did");
    k.ok("rollout undo deploy/web");
    rolled_out(k, 4, "red");
    let now = words(&k.value("pods -l app=web", UIDS));
    assert_eq!(serving.intersection(&now).count(), 3, "and were not touched by going back");
}

macro_rules! with_each_kubectl_and_pods {
    ($($name:ident),+ $(,)?) => {
        mod v1_20 {
            $(#[test] fn $name() { super::$name(&super::Kubectl::with_pods(super::Version::V1_20)) })+
        }
        mod v1_32 {
            $(#[test] fn $name() { super::$name(&super::Kubectl::with_pods(super::Version::V1_32)) })+
        }
    };
}
with_each_kubectl_and_pods!(everything_that_rollout_does, a_bad_image_stops_the_rollout_while_the_old_pods_serve);

#[test]
fn recreating_never_runs_old_and_new_together() {
    let k = Kubectl::with_pods(Version::V1_32);
    let shared = tempfile::tempdir().expect("a directory");
    // Whoever finds another there says so.
    let script = "mkdir /shared/here || { touch /shared/two-at-once; exit 1; }; \
                  trap 'sleep 0.5; rmdir /shared/here; exit 0' TERM; while :; do sleep 0.1; done";
    let volume = format!(
        "      volumes: [{{name: shared, hostPath: {{path: {}}}}}]\n      containers:",
        shared.path().display()
    );
    let manifest = deployment(1, "strategy: {type: Recreate}", script).replace("      containers:", &volume).replace(
        "        image: host",
        "        image: host\n        volumeMounts: [{name: shared, mountPath: /shared}]",
    );
    let manifest = manifest.replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 20");
    k.create(&manifest);
    rolled_out(&k, 1, "red");
    eventually("it runs", || shared.path().join("here").exists().then_some(()));
    for colour in ["blue", "green"] {
        k.ok(&format!("set env deploy/web COLOR={colour}"));
        rolled_out(&k, 1, colour);
    }
    assert!(!shared.path().join("two-at-once").exists());
    assert_eq!(k.value("pods -l app=web", "{.items[*].status.containerStatuses[0].restartCount}"), "0");
}

#[test]
fn pods_change_hands_by_labels_and_outlive_their_deployment() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(&deployment(2, "", SLEEP));
    rolled_out(&k, 2, "red");
    let first = k.value("pods -l app=web", "{.items[0].metadata.name}");
    k.ok(&format!("label pod {first} app=debug --overwrite"));
    until(&k, &format!("pod {first}"), "{.metadata.ownerReferences}", "");
    rolled_out(&k, 2, "red");
    assert_eq!(k.value(&format!("pod {first}"), "{.status.phase}"), "Running", "released, not deleted");
    let before = words(&k.value("pods -l app=web", UIDS));

    k.ok("delete deploy web --cascade=orphan");
    let set = k.value("rs", "{.items[*].metadata.name}");
    until(&k, &format!("rs {set}"), "{.metadata.ownerReferences}", "");
    k.ok(&format!("delete rs {set} --cascade=orphan"));
    assert_eq!(words(&k.value("pods -l app=web", UIDS)), before);
    k.create(&deployment(2, "", SLEEP));
    rolled_out(&k, 2, "red");
    // They have the label that the first set gave them, so the set of the same template finds them again.
    assert_eq!(words(&k.value("pods -l app=web", UIDS)), before);
    k.ok("delete deploy web");
    eventually("its pods go with it", || k.value("pods -l app=web", UIDS).is_empty().then_some(()));
    assert_eq!(k.value("pods", "{.items[*].metadata.name}"), first, "but not the one that was released");
}

#[test]
fn a_rollout_cut_off_by_a_power_failure_is_finished_afterwards() {
    let mut k = Kubectl::with_pods(Version::V1_32);
    k.create(&deployment(6, "minReadySeconds: 1", SLEEP));
    rolled_out(&k, 6, "red");
    k.ok("set env deploy/web COLOR=blue");
    for updated in [1, 3] {
        eventually("it is under way", || {
            (k.value("deploy web", "{.status.updatedReplicas}").parse::<u32>().ok()? >= updated).then_some(())
        });
        k.cluster.kill();
        k.cluster.start_again();
    }
    rolled_out(&k, 6, "blue");
    assert_eq!(k.value("rs", "{.items[*].metadata.name}").split_whitespace().count(), 2);
    assert_eq!(words(&k.value("rs", "{.items[*].status.replicas}")), words("0 6"));
    let node = k.value("pods -l app=web", "{.items[*].spec.nodeName}");
    assert_eq!(node.split_whitespace().count(), 6);
}
