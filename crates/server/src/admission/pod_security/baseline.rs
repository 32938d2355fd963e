//! The checks of the level `baseline`.

use std::collections::BTreeSet;

use mainstay_api::{pod::SAFE_SYSCTLS, wellknown::kubernetes::APPARMOR_PREFIX};
use serde_json::Value;

use super::checks::{ForbiddenValues, Violation, containers, name, name_containers, names_where, plural, quote};

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
const SE_LINUX_TYPES: [&str; 5] = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

pub fn host_namespaces(pod: &Value) -> Option<Violation> {
    let shared = ["hostNetwork", "hostPID", "hostIPC"].iter().filter(|field| pod["spec"][**field] == true);
    let shared: Vec<String> = shared.map(|field| format!("{field}=true")).collect();
    (!shared.is_empty()).then(|| Violation { reason: "host namespaces", detail: shared.join(", ") })
}

pub fn privileged(pod: &Value) -> Option<Violation> {
    let bad = names_where(pod, |container| container["securityContext"]["privileged"] == true);
    let detail = format!("{} must not set securityContext.privileged=true", name_containers(&bad));
    (!bad.is_empty()).then_some(Violation { reason: "privileged", detail })
}

/// Containers that add capabilities beyond the allowed ones, and those capabilities.
pub fn added_capabilities<'a>(pod: &'a Value, allowed: &[&str]) -> (Vec<&'a str>, BTreeSet<&'a str>) {
    let (mut bad, mut all) = (Vec::new(), BTreeSet::new());
    for container in containers(pod) {
        let added = container["securityContext"]["capabilities"]["add"].as_array().into_iter().flatten();
        let added: Vec<&str> = added.filter_map(Value::as_str).filter(|added| !allowed.contains(added)).collect();
        if !added.is_empty() {
            bad.push(name(container));
            all.extend(added);
        }
    }
    (bad, all)
}

pub fn capabilities(pod: &Value) -> Option<Violation> {
    let (bad, added) = added_capabilities(pod, &CAPABILITIES);
    let (who, what) = (name_containers(&bad), quote(added));
    let detail = format!("{who} must not include {what} in securityContext.capabilities.add");
    (!bad.is_empty()).then_some(Violation { reason: "non-default capabilities", detail })
}

pub fn host_path_volumes(pod: &Value) -> Option<Violation> {
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let bad: Vec<&str> = volumes.filter(|volume| volume["hostPath"].is_object()).map(name).collect();
    let detail = format!("{} {}", plural("volume", "volumes", bad.len()), quote(&bad));
    (!bad.is_empty()).then_some(Violation { reason: "hostPath volumes", detail })
}

pub fn host_ports(pod: &Value) -> Option<Violation> {
    let (mut bad, mut ports) = (Vec::new(), BTreeSet::new());
    for container in containers(pod) {
        let own = container["ports"].as_array().into_iter().flatten();
        let own: Vec<i64> = own.filter_map(|port| port["hostPort"].as_i64()).filter(|port| *port != 0).collect();
        if !own.is_empty() {
            bad.push(name(container));
            ports.extend(own);
        }
    }
    let detail = format!(
        "{} {} {} {}",
        name_containers(&bad),
        plural("uses", "use", bad.len()),
        plural("hostPort", "hostPorts", ports.len()),
        ports.iter().map(i64::to_string).collect::<Vec<_>>().join(", "),
    );
    (!bad.is_empty()).then_some(Violation { reason: "hostPort", detail })
}

pub fn proc_mount(pod: &Value) -> Option<Violation> {
    let value = |container: &'_ Value| container["securityContext"]["procMount"].as_str().map(str::to_owned);
    let bad = names_where(pod, |container| value(container).is_some_and(|mount| mount != "Default"));
    let values: BTreeSet<String> = containers(pod).filter_map(value).filter(|mount| mount != "Default").collect();
    let detail = format!("{} must not set securityContext.procMount to {}", name_containers(&bad), quote(values));
    (!bad.is_empty()).then_some(Violation { reason: "procMount", detail })
}

pub fn se_linux_options(pod: &Value) -> Option<Violation> {
    let text =
        |context: &'_ Value, field: &str| context["seLinuxOptions"][field].as_str().unwrap_or_default().to_owned();
    let bad = ForbiddenValues::find(pod, |context| {
        let kind = context["seLinuxOptions"]["type"].as_str().unwrap_or_default();
        let known = SE_LINUX_TYPES.contains(&kind);
        let names_others = ["user", "role"].iter().any(|field| !text(context, field).is_empty());
        (!known || names_others).then_some(kind)
    });
    if bad.is_empty() {
        return None;
    }
    let contexts = || containers(pod).map(|c| &c["securityContext"]).chain([&pod["spec"]["securityContext"]]);
    let types: Vec<&&str> = bad.values.iter().filter(|kind| !SE_LINUX_TYPES.contains(kind)).collect();
    let mut data = Vec::new();
    if !types.is_empty() {
        data.push(format!("{} {}", plural("type", "types", types.len()), quote(types.iter().map(|kind| **kind))));
    }
    for field in ["user", "role"] {
        if contexts().any(|context| !text(context, field).is_empty()) {
            data.push(format!("{field} may not be set"));
        }
    }
    let detail = format!("{} set forbidden securityContext.seLinuxOptions: {}", bad.setters(), data.join("; "));
    Some(Violation { reason: "seLinuxOptions", detail })
}

pub fn unconfined_seccomp(pod: &Value) -> Option<Violation> {
    let bad = ForbiddenValues::find(pod, |context| {
        context["seccompProfile"]["type"].as_str().filter(|kind| !["RuntimeDefault", "Localhost"].contains(kind))
    });
    forbidden_seccomp(&bad)
}

pub fn forbidden_seccomp(bad: &ForbiddenValues<'_>) -> Option<Violation> {
    let (who, values) = (bad.setters(), quote(&bad.values));
    let detail = format!("{who} must not set securityContext.seccompProfile.type to {values}");
    (!bad.is_empty()).then_some(Violation { reason: "seccompProfile", detail })
}

pub fn sysctls(pod: &Value) -> Option<Violation> {
    let set = pod["spec"]["securityContext"]["sysctls"].as_array().into_iter().flatten();
    let bad: Vec<&str> = set.map(name).filter(|name| !SAFE_SYSCTLS.contains(name)).collect();
    (!bad.is_empty()).then(|| Violation { reason: "forbidden sysctls", detail: bad.join(", ") })
}

pub fn windows_host_process(pod: &Value) -> Option<Violation> {
    let bad = ForbiddenValues::find(pod, |context| (context["windowsOptions"]["hostProcess"] == true).then_some(""));
    let detail = format!("{} must not set securityContext.windowsOptions.hostProcess=true", bad.setters());
    (!bad.is_empty()).then_some(Violation { reason: "hostProcess", detail })
}

pub fn app_armor_profile(pod: &Value) -> Option<Violation> {
    let mut bad = Vec::new();
    let set = ForbiddenValues::find(pod, |context| {
        context["appArmorProfile"]["type"].as_str().filter(|kind| !["RuntimeDefault", "Localhost"].contains(kind))
    });
    if !set.is_empty() {
        bad.push(format!("{} must not set AppArmor profile type to {}", set.setters(), quote(&set.values)));
    }
    for (key, value) in pod["metadata"]["annotations"].as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        let allowed = matches!(value, "" | "runtime/default") || value.starts_with("localhost/");
        if key.starts_with(APPARMOR_PREFIX) && !allowed {
            bad.push(format!("{key}={value:?}"));
        }
    }
    let reason = plural("forbidden AppArmor profile", "forbidden AppArmor profiles", bad.len());
    (!bad.is_empty()).then(|| Violation { reason, detail: bad.join(", ") })
}
