//! Klusters from the outside: both groups apply, and one without a cloud comes to run with an API of its own and goes without a trace.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use crate::harness::{Cluster, Kubectl, Version};

/// Control planes are made of pods that start whole servers.
const PATIENCE: Duration = Duration::from_secs(300);

#[track_caller]
fn wait_until(k: &Kubectl, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() >= deadline {
            let state = k.run("get klusters.mainstay.dev,statefulsets,pods,pvc,events -A -o wide").stdout;
            panic!("not within {PATIENCE:?}: {what}\n{state}\n{}", k.cluster.log());
        }
        thread::sleep(Duration::from_millis(500));
    }
}

/// Of a cloud that nobody asks: Klusters here are without one.
fn clouds_yaml(directory: &Path) -> String {
    let file = directory.join("clouds.yaml");
    let text = "clouds: {own: {auth: {auth_url: 'http://127.0.0.1:9/v3', username: u, password: p, user_domain_name: d, \
                project_name: p, project_domain_name: d}}}\n";
    fs::write(&file, text).expect("write clouds.yaml");
    file.display().to_string()
}

#[test]
fn manifests_of_both_groups_apply_to_one_object() {
    let k = Kubectl::start(Version::V1_32);
    let old = "
apiVersion: kubernikus.sap.cc/v1
kind: Kluster
metadata: {name: berlin-p1, labels: {account: p1}}
spec:
  nodePools: [{name: small, size: 1, flavor: m1.small, labels: ['a=b'], taints: ['gpu=1:NoSchedule']}]
";
    k.apply(old);
    k.apply(old);
    assert_eq!(k.value("klusters.kubernikus.sap.cc berlin-p1", "{.metadata.generation}"), "1", "nothing was changed");
    assert_eq!(
        k.value("klusters.kubernikus.sap.cc berlin-p1", "{.spec.name} {.spec.nodePools[0].labels[0]}"),
        "berlin a=b"
    );
    assert_eq!(k.value("klusters.mainstay.dev berlin-p1", "{.spec.nodePools[0].labels.a}"), "b");
    assert_eq!(k.value("klusters.mainstay.dev berlin-p1", "{.spec.nodePools[0].taints[0].effect}"), "NoSchedule");
    let new = "
apiVersion: mainstay.dev/v1
kind: Kluster
metadata: {name: berlin-p1}
spec:
  sshPublicKey: ssh-ed25519 AAAA
";
    k.run_with("apply --server-side -f -", new).ok();
    assert_eq!(k.value("klusters.kubernikus.sap.cc berlin-p1", "{.spec.sshPublicKey}"), "ssh-ed25519 AAAA");
    let table = k.ok("get klusters.mainstay.dev");
    assert!(table.contains("PHASE") && table.contains("Pending") && table.contains("0/1"), "{table}");
    assert!(k.ok("explain kluster.spec.clusterCIDR").contains("The range of its pods"));
    let overlap = "
apiVersion: mainstay.dev/v1
kind: Kluster
metadata: {name: paris}
spec: {clusterCIDR: 10.96.0.0/16}
";
    let refused = k.run_with("apply -f -", overlap).refused();
    assert!(refused.contains("overlaps with the range 10.96.0.0/16 of Services of the control plane"), "{refused}");
    let wrong = k
        .run_with("apply -f -", &new.replace("berlin-p1", "x").replace("sshPublicKey: ssh-ed25519 AAAA", "name: Abc"))
        .refused();
    assert!(wrong.contains("spec.name: Invalid value: \"Abc\""), "{wrong}");
    k.ok("annotate klusters.mainstay.dev berlin-p1 kubernikus.cloud.sap/termination-protection=yes");
    let kept = k.refused("delete klusters.kubernikus.sap.cc berlin-p1");
    assert!(kept.contains("forbidden") && kept.contains("protected from termination"), "{kept}");
    k.ok("annotate klusters.mainstay.dev berlin-p1 kubernikus.cloud.sap/termination-protection-");
    k.ok("delete klusters.kubernikus.sap.cc berlin-p1");
}

#[test]
fn a_kluster_without_a_cloud_comes_to_run_and_goes_without_a_trace() {
    // Pods of the image `host` see what is on the root file system alone.
    let program = tempfile::Builder::new().prefix("mainstay-test-").tempdir_in("/opt").expect("make a directory");
    let copy = program.path().join("mainstay");
    fs::copy(env!("CARGO_BIN_EXE_mainstay"), &copy).expect("copy the program");
    let clouds = clouds_yaml(program.path());
    let copy = copy.display().to_string();
    let flags = ["--cloud-config", &clouds, "--cloud-controllers", "klusters", "--kluster-program", &copy];
    let k = Kubectl::of(Version::V1_32, Cluster::with_pods(&flags));
    k.apply(
        "
apiVersion: mainstay.dev/v1
kind: Kluster
metadata: {name: berlin}
spec: {noCloud: true, clusterCIDR: 100.64.0.0/16}
",
    );
    wait_until(&k, "the Kluster runs", || k.value("kluster berlin", "{.status.phase}") == "Running");
    assert_eq!(k.value("kluster berlin", "{.status.version}"), k.value("kluster berlin", "{.spec.version}"));
    let kubeconfig = k.ok("get secret berlin-kubeconfig -o 'go-template={{.data.kubeconfig | base64decode}}'");
    let file = k.cluster.home().join("berlin.kubeconfig");
    fs::write(&file, kubeconfig).expect("write the kubeconfig");
    let own = format!("--kubeconfig {}", file.display());
    k.ok(&format!("{own} create configmap a --from-literal=b=c"));
    assert_eq!(k.ok(&format!("{own} get configmap a -o jsonpath={{.data.b}}")), "c");
    let reasons = k.ok("get events --field-selector involvedObject.kind=Kluster -o jsonpath={.items[*].reason}");
    assert!(reasons.contains("Creating") && reasons.contains("Running"), "{reasons}");
    // Its data is on a volume: another pod has it.
    k.ok("delete pod berlin-server-0");
    let read = || k.run(&format!("{own} get configmap a -o jsonpath={{.data.b}}"));
    wait_until(&k, "its API answers anew", || read().code == 0);
    k.ok("delete kluster berlin --wait=false");
    wait_until(&k, "the Kluster is gone", || k.run("get kluster berlin").code != 0);
    let left =
        k.ok("get statefulsets,services,secrets,pods,persistentvolumeclaims -l mainstay.dev/kluster=berlin -o name");
    assert_eq!(left, "");
}
