//! The official JavaScript client (`@kubernetes/client-node`): each script in `tests/javascript` is a test.

use crate::harness::{Cluster, javascript};

#[track_caller]
fn passes(script: &str) {
    let cluster = Cluster::start();
    assert_eq!(javascript(&cluster, script).ok().trim(), "ok");
}

#[test]
fn creates_reads_patches_applies_lists_and_deletes() {
    passes("crud.mjs");
}

#[test]
fn watches_and_informs() {
    passes("watching.mjs");
}
