//! Scripts for the official Python client.

use std::{path::Path, process::Command};

use super::{
    Cluster, PATIENCE,
    command::{Output, run},
    tool,
};

/// Runs a script of `tests/python` against a cluster.
#[track_caller]
pub fn python(cluster: &Cluster, script: &str, args: &[&str]) -> Output {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python").join(script);
    let mut command = Command::new(tool("venv/bin/python"));
    command
        .arg(path)
        .args(args)
        .env("KUBECONFIG", cluster.kubeconfig())
        .env("HOME", cluster.home())
        .current_dir(cluster.home());
    run(command, script, "", PATIENCE * 4)
}
