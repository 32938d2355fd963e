//! Scripts for the official JavaScript client.

use std::{os::unix::fs::symlink, path::Path, process::Command};

use super::{
    Cluster, PATIENCE,
    command::{Output, run},
    tool,
};

/// Runs a script of `tests/javascript` against a cluster. Modules are found beside a script, so it runs from a copy beside them.
#[track_caller]
pub fn javascript(cluster: &Cluster, script: &str) -> Output {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/javascript").join(script);
    let (copy, modules) = (cluster.home().join(script), cluster.home().join("node_modules"));
    std::fs::copy(&source, &copy).unwrap_or_else(|error| panic!("copy {}: {error}", source.display()));
    if !modules.exists() {
        symlink(tool("javascript/node_modules"), &modules).expect("link the modules");
    }
    let mut command = Command::new("node");
    command.arg(copy).env("KUBECONFIG", cluster.kubeconfig()).env("HOME", cluster.home()).current_dir(cluster.home());
    run(command, script, "", PATIENCE * 4)
}
