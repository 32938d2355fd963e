use std::{os::unix::fs::symlink, path::Path, process::Command};

use crate::{
    cluster::{Cluster, PATIENCE, tool},
    command,
};

#[test]
fn the_javascript_client_streams() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    cluster.runtime.fake.print("web/a", "hello from the log");
    // Modules are found beside a script.
    let script = cluster.home().join("streams.mjs");
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/javascript/streams.mjs"), &script).unwrap();
    symlink(tool("javascript/node_modules"), cluster.home().join("node_modules")).unwrap();
    let mut node = Command::new("node");
    node.arg(script).env("KUBECONFIG", cluster.kubeconfig()).env("HOME", cluster.home());
    let output = command::run(node, "streams.mjs", "", PATIENCE);
    assert!(output.stdout.ends_with("ok\n") && output.code == 0, "{output}");
}
