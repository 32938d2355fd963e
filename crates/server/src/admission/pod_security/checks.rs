//! The checks of the Pod Security Standards: what they share, and their order.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Level, baseline, restricted};

/// Why a pod does not meet a level: upstream's reason and detail.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation {
    pub reason: &'static str,
    pub detail: String,
}

pub type Check = fn(&Value) -> Option<Violation>;

/// Checks of `baseline` that `restricted` has as well.
const COMMON: [Check; 9] = [
    baseline::app_armor_profile,
    baseline::host_namespaces,
    baseline::host_ports,
    baseline::privileged,
    baseline::proc_mount,
    baseline::se_linux_options,
    baseline::sysctls,
    baseline::windows_host_process,
    baseline::unconfined_seccomp,
];
/// Checks that `restricted` replaces by stricter ones.
const BASELINE_ONLY: [Check; 2] = [baseline::capabilities, baseline::host_path_volumes];
const RESTRICTED: [Check; 6] = [
    restricted::allow_privilege_escalation,
    restricted::capabilities,
    restricted::volume_types,
    restricted::run_as_non_root,
    restricted::run_as_user,
    restricted::seccomp_profile,
];

/// What of a pod (or a pod template) is against a level.
pub fn violations(level: Level, pod: &Value) -> Vec<Violation> {
    let run = |checks: &[Check]| checks.iter().filter_map(|check| check(pod)).collect::<Vec<_>>();
    match level {
        Level::Privileged => Vec::new(),
        Level::Baseline => {
            let mut found = run(&BASELINE_ONLY);
            found.extend(run(&COMMON));
            found
        }
        Level::Restricted => {
            let mut found = run(&COMMON[..COMMON.len() - 1]);
            found.extend(run(&RESTRICTED));
            found
        }
    }
}

/// As errors and warnings list them: `privileged (container "c" must not set …)`.
pub fn details(violations: &[Violation]) -> String {
    let texts = violations.iter().map(|violation| match violation.detail.as_str() {
        "" => violation.reason.to_owned(),
        detail => format!("{} ({detail})", violation.reason),
    });
    texts.collect::<Vec<_>>().join(", ")
}

pub fn reasons(violations: &[Violation]) -> String {
    violations.iter().map(|violation| violation.reason).collect::<Vec<_>>().join(", ")
}

/// All containers of a pod: init containers, containers, ephemeral containers.
pub fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["initContainers", "containers", "ephemeralContainers"].iter();
    lists.flat_map(|list| pod["spec"][*list].as_array().into_iter().flatten())
}

pub fn name(container: &Value) -> &str {
    container["name"].as_str().unwrap_or_default()
}

/// Names of the containers that something is true of, in order.
pub fn names_where<'a>(pod: &'a Value, is: impl Fn(&'a Value) -> bool) -> Vec<&'a str> {
    containers(pod).filter(|container| is(container)).map(name).collect()
}

pub fn is_windows(pod: &Value) -> bool {
    pod["spec"]["os"]["name"] == "windows"
}

/// `"a", "b"`.
pub fn quote<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| format!("\"{}\"", item.as_ref())).collect::<Vec<_>>().join(", ")
}

pub fn plural(one: &'static str, many: &'static str, count: usize) -> &'static str {
    if count == 1 { one } else { many }
}

/// `container "a"`, `containers "a", "b"`.
pub fn name_containers(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quote(names))
}

/// Values that pod and containers may not set in their security contexts, with those who set them.
#[derive(Default)]
pub struct ForbiddenValues<'a> {
    pub pod: bool,
    pub containers: Vec<&'a str>,
    pub values: BTreeSet<&'a str>,
}

impl<'a> ForbiddenValues<'a> {
    /// `read` says which forbidden value a security context has.
    pub fn find(pod: &'a Value, read: impl Fn(&'a Value) -> Option<&'a str>) -> Self {
        let mut found = Self::default();
        if let Some(value) = read(&pod["spec"]["securityContext"]) {
            found.pod = true;
            found.values.insert(value);
        }
        for container in containers(pod) {
            if let Some(value) = read(&container["securityContext"]) {
                found.containers.push(name(container));
                found.values.insert(value);
            }
        }
        found
    }

    pub fn is_empty(&self) -> bool {
        !self.pod && self.containers.is_empty()
    }

    /// `pod and container "a"`.
    pub fn setters(&self) -> String {
        let pod = self.pod.then(|| "pod".to_owned());
        let containers = (!self.containers.is_empty()).then(|| name_containers(&self.containers));
        pod.into_iter().chain(containers).collect::<Vec<_>>().join(" and ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plain() -> Value {
        json!({ "spec": { "containers": [{ "name": "c" }] } })
    }

    fn hardened() -> Value {
        json!({ "spec": {
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{ "name": "c", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] },
            } }],
            "volumes": [{ "name": "v", "emptyDir": {} }],
        } })
    }

    fn with(mut pod: Value, pointer: &str, value: Value) -> Value {
        let mut at = &mut pod;
        for step in pointer.split('/') {
            at = match step.parse::<usize>() {
                Ok(index) => &mut at[index],
                Err(_) => &mut at[step],
            };
        }
        *at = value;
        pod
    }

    #[test]
    fn ordinary_pods_meet_baseline_and_hardened_ones_restricted() {
        assert_eq!(violations(Level::Baseline, &plain()), []);
        assert_eq!(violations(Level::Restricted, &hardened()), []);
        let everything = "allowPrivilegeEscalation != false (container \"c\" must set \
            securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"c\" must set \
            securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"c\" must set \
            securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set \
            securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")";
        assert_eq!(details(&violations(Level::Restricted, &plain())), everything);
    }

    #[test]
    fn every_check_of_baseline_refuses_with_upstreams_words() {
        let container = |field: &str| format!("spec/containers/0/securityContext/{field}");
        for (pointer, value, words) in [
            ("spec/hostNetwork", json!(true), "host namespaces (hostNetwork=true)"),
            ("spec/hostPID", json!(true), "host namespaces (hostPID=true)"),
            ("spec/hostIPC", json!(true), "host namespaces (hostIPC=true)"),
            (
                &container("privileged"),
                json!(true),
                "privileged (container \"c\" must not set securityContext.privileged=true)",
            ),
            (
                &container("capabilities"),
                json!({ "add": ["NET_ADMIN", "CHOWN"] }),
                "non-default capabilities (container \"c\" must not include \"NET_ADMIN\" in \
                 securityContext.capabilities.add)",
            ),
            ("spec/volumes", json!([{ "name": "h", "hostPath": { "path": "/" } }]), "hostPath volumes (volume \"h\")"),
            (
                "spec/containers/0/ports",
                json!([{ "hostPort": 8080 }, { "hostPort": 80 }]),
                "hostPort (container \"c\" uses hostPorts 80, 8080)",
            ),
            (
                &container("procMount"),
                json!("Unmasked"),
                "procMount (container \"c\" must not set securityContext.procMount to \"Unmasked\")",
            ),
            (
                "spec/securityContext/seLinuxOptions",
                json!({ "type": "spc_t", "user": "u", "role": "r" }),
                "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user may not be set; \
                 role may not be set)",
            ),
            (
                &container("seccompProfile"),
                json!({ "type": "Unconfined" }),
                "seccompProfile (container \"c\" must not set securityContext.seccompProfile.type to \"Unconfined\")",
            ),
            (
                "spec/securityContext/sysctls",
                json!([{ "name": "kernel.msgmax" }, { "name": "net.ipv4.tcp_syncookies" }]),
                "forbidden sysctls (kernel.msgmax)",
            ),
            (
                "spec/securityContext/windowsOptions",
                json!({ "hostProcess": true }),
                "hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)",
            ),
            (
                &container("appArmorProfile"),
                json!({ "type": "Unconfined" }),
                "forbidden AppArmor profile (container \"c\" must not set AppArmor profile type to \"Unconfined\")",
            ),
            (
                "metadata/annotations",
                json!({ "container.apparmor.security.beta.kubernetes.io/c": "unconfined" }),
                "forbidden AppArmor profile (container.apparmor.security.beta.kubernetes.io/c=\"unconfined\")",
            ),
        ] {
            let pod = with(plain(), pointer, value);
            assert_eq!(details(&violations(Level::Baseline, &pod)), words);
            assert!(!violations(Level::Restricted, &pod).is_empty(), "{words}");
            assert_eq!(violations(Level::Privileged, &pod), []);
        }
    }

    #[test]
    fn every_check_of_restricted_refuses_with_upstreams_words() {
        let container = |field: &str| format!("spec/containers/0/securityContext/{field}");
        for (pointer, value, words) in [
            (
                &*container("capabilities"),
                json!({ "drop": ["ALL"], "add": ["CHOWN"] }),
                "unrestricted capabilities (container \"c\" must not include \"CHOWN\" in securityContext.capabilities.add)",
            ),
            (
                "spec/volumes",
                json!([{ "name": "h", "hostPath": {} }, { "name": "n", "nfs": {} }]),
                "restricted volume types (volumes \"h\", \"n\" use restricted volume types \"hostPath\", \"nfs\")",
            ),
            (
                &container("runAsNonRoot"),
                json!(false),
                "runAsNonRoot != true (container \"c\" must not set securityContext.runAsNonRoot=false)",
            ),
            ("spec/securityContext/runAsUser", json!(0), "runAsUser=0 (pod must not set runAsUser=0)"),
            (
                &container("seccompProfile"),
                json!({ "type": "Unconfined" }),
                "seccompProfile (container \"c\" must not set securityContext.seccompProfile.type to \"Unconfined\")",
            ),
        ] {
            assert_eq!(details(&violations(Level::Restricted, &with(hardened(), pointer, value))), words);
        }
    }

    #[test]
    fn init_and_ephemeral_containers_count_too() {
        let mut pod = plain();
        pod["spec"]["initContainers"] = json!([{ "name": "i", "securityContext": { "privileged": true } }]);
        pod["spec"]["ephemeralContainers"] = json!([{ "name": "e", "securityContext": { "privileged": true } }]);
        let words = "privileged (containers \"i\", \"e\" must not set securityContext.privileged=true)";
        assert_eq!(details(&violations(Level::Baseline, &pod)), words);
    }
}
