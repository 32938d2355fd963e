//! The table: a field that asks for protection, and what becomes of a pod that sets it.

use std::path::Path;

use mainstay_runtime::spec::Seccomp;
use serde_json::{Value, json};

use super::*;
use crate::spec::security;

fn pod(spec: Value) -> Pod {
    let annotations = spec.get("annotations").cloned().unwrap_or(json!({}));
    serde_json::from_value(json!({"metadata": {"name": "p", "annotations": annotations}, "spec": spec})).unwrap()
}

fn with_apparmor(names: &[&str]) -> Host {
    let profiles = names.iter().map(|name| (*name).to_owned()).collect();
    Host { apparmor: apparmor::AppArmorSupport { enabled: true, profiles }, ..Host::default() }
}

fn refusal(spec: Value, host: &Host) -> Option<(&'static str, String)> {
    admit(&pod(spec), host).err().map(|refusal| (refusal.reason, refusal.message))
}

fn container(context: Value) -> Value {
    json!({"containers": [{"name": "c", "securityContext": context}]})
}

fn of_pod(context: Value) -> Value {
    json!({"containers": [{"name": "c"}], "securityContext": context})
}

#[test]
fn what_the_machine_cannot_give_fails_the_pod() {
    let none = Host::default();
    let selinux = Host { selinux: true, ..Host::default() };
    let not_enabled = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
    let localhost = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "mine"}});
    let default = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
    let annotated = |value: &str| {
        json!({"containers": [{"name": "c"}],
               "annotations": {"container.apparmor.security.beta.kubernetes.io/c": value}})
    };
    let sysctl = |name: &str| json!({"sysctls": [{"name": name, "value": "1"}]});
    let labels = json!({"seLinuxOptions": {"level": "s0:c1"}});
    let debug = json!({"containers": [], "ephemeralContainers": [{"name": "d", "securityContext": localhost}]});
    let init = json!({"containers": [], "initContainers": [{"name": "d", "securityContext": localhost}]});
    for (spec, host, reason, message) in [
        (
            json!({"os": {"name": "windows"}, "containers": []}),
            &none,
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ),
        (
            of_pod(sysctl("kernel.msgmax")),
            &none,
            "SysctlForbidden",
            "forbidden sysctl: \"kernel.msgmax\" not allowlisted",
        ),
        (
            of_pod(sysctl("kernel/msgmax")),
            &none,
            "SysctlForbidden",
            "forbidden sysctl: \"kernel.msgmax\" not allowlisted",
        ),
        (
            json!({"hostNetwork": true, "containers": [], "securityContext": sysctl("net.ipv4.tcp_syncookies")}),
            &none,
            "SysctlForbidden",
            "forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host net enabled",
        ),
        (
            json!({"hostIPC": true, "containers": [], "securityContext": sysctl("kernel.shm_rmid_forced")}),
            &none,
            "SysctlForbidden",
            "forbidden sysctl: \"kernel.shm_rmid_forced\" not allowed with host ipc enabled",
        ),
        (container(localhost.clone()), &none, "AppArmor", not_enabled),
        (of_pod(localhost.clone()), &none, "AppArmor", not_enabled),
        (of_pod(default.clone()), &none, "AppArmor", not_enabled),
        (annotated("localhost/mine"), &none, "AppArmor", not_enabled),
        (annotated("runtime/default"), &none, "AppArmor", not_enabled),
        (debug, &none, "AppArmor", not_enabled),
        (init, &none, "AppArmor", not_enabled),
        (
            container(localhost.clone()),
            &with_apparmor(&["other"]),
            "AppArmor",
            "Cannot enforce AppArmor: profile \"mine\" is not loaded",
        ),
        (
            container(default.clone()),
            &with_apparmor(&[]),
            "AppArmor",
            "Cannot enforce AppArmor: profile \"mainstay-default\" is not loaded",
        ),
        (
            container(labels.clone()),
            &selinux,
            "SELinux",
            "Cannot enforce SELinux: the built-in runtime sets no labels; use --runtime cri://",
        ),
        (
            json!({"hostUsers": false, "hostNetwork": true, "containers": []}),
            &none,
            "UserNamespacesNotSupported",
            "spec.hostNetwork is not possible when spec.hostUsers is false",
        ),
        (
            json!({"hostUsers": false, "hostPID": true, "containers": []}),
            &none,
            "UserNamespacesNotSupported",
            "spec.hostPID is not possible when spec.hostUsers is false",
        ),
    ] {
        assert_eq!(refusal(spec.clone(), host), Some((reason, message.to_owned())), "{spec}");
    }
}

#[test]
fn what_it_can_give_or_what_gives_up_protection_is_admitted() {
    let none = Host::default();
    let cri = Host { is_cri: true, selinux: true, ..with_apparmor(&["mine"]) };
    let unconfined = json!({"appArmorProfile": {"type": "Unconfined"}});
    let default = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
    let localhost = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "mine"}});
    for (spec, host) in [
        (json!({"containers": [{"name": "c"}]}), &none),
        (json!({"os": {"name": "linux"}, "containers": []}), &none),
        (container(unconfined), &none),
        (
            json!({"containers": [{"name": "c"}],
                "annotations": {"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}}),
            &none,
        ),
        (of_pod(json!({"sysctls": [{"name": "net/ipv4/tcp_syncookies", "value": "1"}]})), &none),
        (container(json!({"seLinuxOptions": {"type": "spc_t"}})), &none),
        (container(json!({"seLinuxOptions": {"type": "spc_t"}})), &cri),
        (container(default.clone()), &cri),
        (container(localhost), &with_apparmor(&["mine"])),
        (container(default), &with_apparmor(&["mainstay-default"])),
        (json!({"hostUsers": false, "containers": []}), &none),
        (json!({"hostUsers": true, "hostNetwork": true, "containers": []}), &none),
    ] {
        assert_eq!(refusal(spec.clone(), host), None, "{spec}");
    }
}

/// What is not refused above reaches the runtime as it was asked for.
#[test]
fn everything_else_is_passed_to_the_runtime() {
    let of = |context: Value| {
        let made = pod(container(context));
        let asked = made.spec.as_ref().unwrap().containers[0].clone();
        security::security(&made, &asked, Path::new("/profiles"))
    };
    assert!(of(json!({"readOnlyRootFilesystem": true})).read_only_root);
    assert!(of(json!({"allowPrivilegeEscalation": false})).no_new_privileges);
    assert!(of(json!({"procMount": "Unmasked"})).unmasked_proc);
    assert!(!of(json!({"procMount": "Default"})).unmasked_proc);
    assert_eq!(of(json!({"capabilities": {"drop": ["ALL"]}})).drop_capabilities, ["ALL"]);
    assert_eq!(of(json!({"runAsUser": 7, "runAsGroup": 8})).run_as_group, Some(8));
    let seccomp = of(json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}})).seccomp;
    assert_eq!(seccomp, Seccomp::Localhost("/profiles/a/b.json".into()));
    assert_eq!(
        of(json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "mine"}})).apparmor,
        AppArmor::Localhost("mine".into())
    );
    assert_eq!(of(json!({"seLinuxOptions": {"level": "s0:c1"}})).selinux.unwrap().level, "s0:c1");
    let made = pod(of_pod(json!({"supplementalGroups": [5], "fsGroup": 6, "supplementalGroupsPolicy": "Strict",
        "seLinuxOptions": {"type": "t"}, "appArmorProfile": {"type": "Unconfined"}})));
    let asked = made.spec.as_ref().unwrap().containers[0].clone();
    let got = security::security(&made, &asked, Path::new("/profiles"));
    assert_eq!((got.supplemental_groups, got.strict_groups), (vec![5, 6], true));
    assert_eq!((got.selinux.unwrap().kind.as_str(), got.apparmor), ("t", AppArmor::Unconfined));
}
