//! Secrets in the store: what lies on disk, in backups and in etcd does not show them, and a new key takes over while the
//! server runs.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, path::PathBuf};

use base64::{Engine, prelude::BASE64_STANDARD};

use crate::harness::{Cluster, Etcd, Kubectl, PATIENCE, Version, command::run};

const VALUE: &str = "correct-horse-battery-staple-in-a-secret";

/// Files below a directory that hold the value, plainly or in base64.
fn files_with_value(directory: &Path) -> Vec<PathBuf> {
    let forms = [VALUE.to_owned(), BASE64_STANDARD.encode(VALUE)];
    files_with(directory, &forms)
}

fn files_with(directory: &Path, texts: &[String]) -> Vec<PathBuf> {
    let mut grep = std::process::Command::new("grep");
    grep.args(["--recursive", "--files-with-matches", "--text", "--fixed-strings"]);
    texts.iter().for_each(|text| {
        grep.args(["-e", text]);
    });
    let output = grep.arg(directory).output().expect("run grep");
    String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect()
}

fn value_of(kubectl: &Kubectl, name: &str) -> String {
    let encoded = kubectl.value(&format!("secret {name}"), "{.data.k}");
    String::from_utf8(BASE64_STANDARD.decode(encoded).expect("base64")).expect("text")
}

#[test]
fn files_and_backups_hold_no_secret_and_a_new_key_takes_over() {
    let mut kubectl = Kubectl::of(Version::V1_32, Cluster::start());
    let data = kubectl.cluster.data_dir();
    let key_file = data.join("encryption-config.yaml");
    assert_eq!(key_file.metadata().expect("the key file").permissions().mode() & 0o7777, 0o600);
    for name in ["a", "b"] {
        kubectl.ok(&format!("create secret generic {name} --from-literal=k={VALUE}"));
    }
    kubectl.ok("label secret b x=y");
    kubectl.ok("delete secret b");
    let backup = data.join("backup");
    kubectl.cluster.mainstay("backup", backup.to_str().expect("text")).ok();
    assert_eq!(files_with_value(&data), Vec::<PathBuf>::new(), "while it runs");

    let old_keys = fs::read_to_string(&key_file).expect("the key file");
    let told = kubectl.cluster.mainstay("secrets", "rotate-key").ok();
    assert!(told.contains("by the new key key-"), "{told}");
    let new_keys = fs::read_to_string(&key_file).expect("the key file");
    assert_ne!(old_keys, new_keys);
    assert_eq!(value_of(&kubectl, "a"), VALUE);
    kubectl.cluster.kill();
    kubectl.cluster.start_again();
    assert_eq!(value_of(&kubectl, "a"), VALUE, "after a restart with the new key alone");
    assert_eq!(files_with_value(&data), Vec::<PathBuf>::new(), "after a crash");

    // The backup is older than the key: it needs the old one.
    kubectl.cluster.terminate();
    assert_eq!(files_with_value(&data), Vec::<PathBuf>::new(), "after it ended");
    kubectl.cluster.mainstay("restore", backup.to_str().expect("text")).ok();
    kubectl.cluster.start_again();
    let refused = kubectl.refused("get secret a");
    assert!(refused.contains("/registry/secrets/default/a") && refused.contains("no key of this server"), "{refused}");
    kubectl.ok("get configmaps");
    kubectl.cluster.terminate();
    fs::write(&key_file, old_keys).expect("write the key file");
    kubectl.cluster.start_again();
    assert_eq!(value_of(&kubectl, "a"), VALUE, "with the key of its time");
    kubectl.ok(&format!("create configmap open --from-literal=k={VALUE}"));
    assert!(!files_with_value(&data).is_empty(), "the search finds what is not encrypted");
}

#[test]
fn etcd_holds_neither_secrets_nor_authorities() {
    let etcd = Etcd::start("bin/etcd-3.5");
    let flag = etcd.flag();
    let kubectl = Kubectl::of(Version::V1_32, Cluster::start_with(&["--store", &flag, "--advertise", "198.51.100.7"]));
    kubectl.ok(&format!("create secret generic a --from-literal=k={VALUE}"));
    assert_eq!(value_of(&kubectl, "a"), VALUE);
    assert_eq!(files_with_value(etcd.data_dir()), Vec::<PathBuf>::new());
    assert_eq!(files_with(etcd.data_dir(), &["PRIVATE KEY".to_owned()]), Vec::<PathBuf>::new());
    let stored = etcd.ctl(&["get", "/registry/secrets/default/a", "--print-value-only"]).expect("etcdctl answers");
    assert!(stored.starts_with("k8s:enc:secretbox:v1:key-"), "{stored}");

    // Another server gets the key from a person, not from etcd.
    let dir = tempfile::tempdir().expect("make a directory");
    let second = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_mainstay"));
        command.args(["server", "--listen", "127.0.0.1:0", "--store", &flag, "--data-dir"]).arg(dir.path());
        command
    };
    let refused = run(second(), "a second server", "", PATIENCE).refused();
    assert!(refused.contains("/mainstay/authorities") && refused.contains("Copy encryption-config.yaml"), "{refused}");
    let key_file = kubectl.cluster.data_dir().join("encryption-config.yaml");
    let shared = key_file.to_str().expect("text");
    let other =
        Kubectl::of(Version::V1_32, Cluster::start_with(&["--store", &flag, "--encryption-provider-config", shared]));
    assert_eq!(value_of(&other, "a"), VALUE);
    other.ok(&format!("create secret generic b --from-literal=k={VALUE}"));
    assert_eq!(value_of(&kubectl, "b"), VALUE);
}
