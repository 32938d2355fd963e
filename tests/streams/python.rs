use std::{path::Path, process::Command};

use crate::{
    cluster::{Cluster, PATIENCE, tool},
    command,
};

#[test]
fn the_python_client_streams() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    cluster.runtime.fake.print("web/a", "hello from the log");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/python/streams.py");
    let mut python = Command::new(tool("venv/bin/python"));
    python.arg(script).env("KUBECONFIG", cluster.kubeconfig()).env("HOME", cluster.home());
    let output = command::run(python, "streams.py", "", PATIENCE);
    assert!(output.stdout.ends_with("ok\n") && output.code == 0, "{output}");
}
