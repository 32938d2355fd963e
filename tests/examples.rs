//! The manifests in `examples/`, applied as they are.

use std::{fs, path::Path};

use crate::harness::{Kubectl, Version, eventually};

fn directory() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"))
}

#[test]
fn every_example_is_applied_and_becomes_ready() {
    let k = Kubectl::with_pods(Version::V1_32);
    let entries = fs::read_dir(directory()).expect("list the examples").map(|entry| entry.expect("an entry").path());
    let mut manifests: Vec<_> = entries.filter(|path| path.extension().is_some_and(|ext| ext == "yaml")).collect();
    manifests.sort();
    assert!(manifests.len() >= 4, "{manifests:?}");
    for manifest in &manifests {
        k.ok(&format!("apply -f {}", manifest.display()));
    }
    for (object, path, value) in [
        ("deployment web", "{.status.readyReplicas}", "3"),
        ("deployment flaky", "{.status.readyReplicas}", "1"),
        ("statefulset counter", "{.status.readyReplicas}", "2"),
        ("job greeting", "{.status.succeeded}", "1"),
    ] {
        eventually(&format!("{object} has {path} = {value}"), || (k.value(object, path) == value).then_some(()));
    }
    assert_eq!(k.ok("logs job/greeting").trim(), "hello, world");
}
