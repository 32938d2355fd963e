//! The official Python client: each script in `tests/python` is a test.

use std::{path::Path, process::Command};

use crate::harness::{Cluster, PATIENCE, run, tool};

#[track_caller]
fn passes(script: &str) {
    let python = tool("venv/bin/python");
    let cluster = Cluster::start();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python").join(script);
    let mut command = Command::new(python);
    command.arg(path).env("KUBECONFIG", cluster.kubeconfig()).env("HOME", cluster.home()).current_dir(cluster.home());
    assert_eq!(run(command, script, "", PATIENCE * 4).ok().trim(), "ok");
}

#[test]
fn creates_reads_updates_patches_and_deletes() {
    passes("crud.py");
}

#[test]
fn lists_by_pages_and_selectors_and_understands_refusals() {
    passes("lists.py");
}

#[test]
fn watches_and_resumes() {
    passes("watching.py");
}

#[test]
fn discovers_and_works_without_types() {
    passes("dynamic_client.py");
}
