//! Pods that really run, feature by feature: what a manifest asks for is what the processes inside see.
//!
//! Each file starts one cluster, or few, and puts several pods into it.

mod certificates;
mod claims;
mod config_volumes;
mod containerd;
mod debugging;
mod demo;
mod environment;
mod eviction;
mod host_image;
mod identity_volumes;
mod image_volumes;
mod images;
mod init;
mod namespaces;
mod node;
mod privileges;
mod registry;
mod resize;
mod restart_all;
mod sidecars;
mod static_pods;
mod stopping;
mod users;

use serde_json::{Value, json};

use crate::{
    harness::{Kubectl, eventually},
    restarts::until,
};

/// A container of the machine's own programs that runs one shell script, with more fields.
fn container(name: &str, script: &str, more: Value) -> Value {
    merged(json!({"name": name, "image": "host", "command": ["sh", "-c", script]}), more)
}

/// A pod with these fields in its `spec`.
fn manifest(name: &str, spec: Value) -> String {
    let spec = merged(json!({"terminationGracePeriodSeconds": 1}), spec);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string()
}

/// A pod of one container that runs once, and what it asks for beyond that.
fn once(name: &str, script: &str, container_fields: Value, spec: Value) -> String {
    let own = json!({"restartPolicy": "Never", "containers": [container("c", script, container_fields)]});
    manifest(name, merged(own, spec))
}

fn merged(mut base: Value, more: Value) -> Value {
    let (Some(fields), Value::Object(more)) = (base.as_object_mut(), more) else { panic!("fields are objects") };
    fields.extend(more);
    base
}

/// What a pod printed that ran once and succeeded.
#[track_caller]
fn printed(k: &Kubectl, name: &str) -> String {
    let phase = eventually(&format!("pod {name} ends"), || {
        let phase = k.value(&format!("pod {name}"), "{.status.phase}");
        ["Succeeded", "Failed"].contains(&&*phase).then_some(phase)
    });
    let log = k.ok(&format!("logs {name}"));
    assert_eq!(phase, "Succeeded", "pod {name} printed:\n{log}");
    log
}

#[track_caller]
fn until_running(k: &Kubectl, name: &str) {
    until(k, &format!("pod {name}"), "{.status.phase}", "Running");
}

/// What a shell in a running pod's first container prints.
#[track_caller]
fn shell(k: &Kubectl, name: &str, script: &str) -> String {
    k.ok(&format!("exec {name} -- sh -c '{script}'"))
}
