//! The official Python client: each script in `tests/python` is a test.

use crate::harness::{Cluster, python};

#[track_caller]
fn passes(script: &str) {
    let cluster = Cluster::start();
    assert_eq!(python(&cluster, script, &[]).ok().trim(), "ok");
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
