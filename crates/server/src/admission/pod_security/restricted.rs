//! The checks that the level `restricted` adds.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    baseline::{added_capabilities, forbidden_seccomp},
    checks::{ForbiddenValues, Violation, is_windows, name, name_containers, names_where, plural, quote},
};

const VOLUME_TYPES: [&str; 8] =
    ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"];

pub fn allow_privilege_escalation(pod: &Value) -> Option<Violation> {
    let bad = names_where(pod, |container| container["securityContext"]["allowPrivilegeEscalation"] != false);
    let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", name_containers(&bad));
    (!bad.is_empty() && !is_windows(pod)).then_some(Violation { reason: "allowPrivilegeEscalation != false", detail })
}

pub fn capabilities(pod: &Value) -> Option<Violation> {
    if is_windows(pod) {
        return None;
    }
    let drops_all = |container: &Value| {
        let dropped = container["securityContext"]["capabilities"]["drop"].as_array();
        dropped.is_some_and(|dropped| dropped.iter().any(|capability| capability == "ALL"))
    };
    let mut details = Vec::new();
    let keep = names_where(pod, |container| !drops_all(container));
    if !keep.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", name_containers(&keep)));
    }
    let (bad, added) = added_capabilities(pod, &["NET_BIND_SERVICE"]);
    if !bad.is_empty() {
        let (who, what) = (name_containers(&bad), quote(added));
        details.push(format!("{who} must not include {what} in securityContext.capabilities.add"));
    }
    (!details.is_empty()).then(|| Violation { reason: "unrestricted capabilities", detail: details.join("; ") })
}

pub fn volume_types(pod: &Value) -> Option<Violation> {
    let (mut bad, mut types) = (Vec::new(), BTreeSet::new());
    for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
        let fields = volume.as_object().into_iter().flatten();
        let own = fields.filter(|(field, value)| *field != "name" && !value.is_null()).map(|(field, _)| field.as_str());
        let own: Vec<&str> = own.filter(|kind| !VOLUME_TYPES.contains(kind)).collect();
        if !own.is_empty() {
            bad.push(name(volume));
            types.extend(own);
        }
    }
    let detail = format!(
        "{} {} {} {} {}",
        plural("volume", "volumes", bad.len()),
        quote(&bad),
        plural("uses", "use", bad.len()),
        plural("restricted volume type", "restricted volume types", types.len()),
        quote(&types),
    );
    (!bad.is_empty()).then_some(Violation { reason: "restricted volume types", detail })
}

pub fn run_as_non_root(pod: &Value) -> Option<Violation> {
    const REASON: &str = "runAsNonRoot != true";
    let bad = ForbiddenValues::find(pod, |context| (context["runAsNonRoot"] == false).then_some(""));
    // A pod that says no is overruled by containers that all say yes.
    let unset = names_where(pod, |container| container["securityContext"]["runAsNonRoot"].is_null());
    if !bad.containers.is_empty() || (bad.pod && !unset.is_empty()) {
        let detail = format!("{} must not set securityContext.runAsNonRoot=false", bad.setters());
        return Some(Violation { reason: REASON, detail });
    }
    if unset.is_empty() || pod["spec"]["securityContext"]["runAsNonRoot"] == true {
        return None;
    }
    let detail = format!("pod or {} must set securityContext.runAsNonRoot=true", name_containers(&unset));
    Some(Violation { reason: REASON, detail })
}

pub fn run_as_user(pod: &Value) -> Option<Violation> {
    let bad = ForbiddenValues::find(pod, |context| (context["runAsUser"] == 0).then_some(""));
    let detail = format!("{} must not set runAsUser=0", bad.setters());
    (!bad.is_empty()).then_some(Violation { reason: "runAsUser=0", detail })
}

pub fn seccomp_profile(pod: &Value) -> Option<Violation> {
    if is_windows(pod) {
        return None;
    }
    let kind = |context: &'_ Value| context["seccompProfile"]["type"].as_str().map(str::to_owned);
    let bad = ForbiddenValues::find(pod, |context| {
        context["seccompProfile"]["type"].as_str().filter(|kind| !["RuntimeDefault", "Localhost"].contains(kind))
    });
    if !bad.is_empty() {
        return forbidden_seccomp(&bad);
    }
    let unset = names_where(pod, |container| kind(&container["securityContext"]).is_none());
    if unset.is_empty() || kind(&pod["spec"]["securityContext"]).is_some() {
        return None;
    }
    let allowed = "\"RuntimeDefault\" or \"Localhost\"";
    let detail =
        format!("pod or {} must set securityContext.seccompProfile.type to {allowed}", name_containers(&unset));
    Some(Violation { reason: "seccompProfile", detail })
}
