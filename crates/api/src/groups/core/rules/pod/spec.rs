//! The whole of a pod's spec, part by part.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PodResourceClaim, PodSpec};

use super::{
    Owner, containers, network, os, scheduling, security,
    volumes::{self, Volumes},
};
use crate::{
    field::{Errors, FieldError, Path},
    quantity::Quantity as Amount,
    validation::{
        check::{self, list, shown, text},
        names,
        resources::{self, ResourceList},
    },
};

/// What the checks of a part need to know of the rest of the pod.
pub(super) struct Surroundings<'a> {
    pub owner: Owner<'a>,
    pub volumes: Volumes<'a>,
    /// The names of the pod's resource claims.
    pub claims: BTreeSet<&'a str>,
    pub restart_policy: &'a str,
    /// How long containers have to stop.
    pub grace: Option<i64>,
    /// Whether the pod lives in the host's user namespace.
    pub host_users: bool,
}

pub(super) fn validate(spec: &PodSpec, owner: Owner, path: &Path, errors: &mut Errors) {
    if spec.termination_grace_period_seconds.is_none() {
        errors.push(FieldError::required(&path.child("terminationGracePeriodSeconds"), ""));
    }
    let around = Surroundings {
        owner,
        volumes: volumes::validate(list(&spec.volumes), owner, &path.child("volumes"), errors),
        claims: list(&spec.resource_claims).iter().map(|claim| claim.name.as_str()).filter(|n| !n.is_empty()).collect(),
        restart_policy: text(&spec.restart_policy),
        grace: spec.termination_grace_period_seconds,
        host_users: spec.host_users.unwrap_or(true),
    };
    validate_claims(list(&spec.resource_claims), &path.child("resourceClaims"), errors);
    containers::validate(spec, &around, path, errors);
    validate_resources(spec, &path.child("resources"), errors);
    network::validate_host_ports(spec, owner, path, errors);
    check::required_one_of(
        text(&spec.restart_policy),
        &["Always", "OnFailure", "Never"],
        &path.child("restartPolicy"),
        errors,
    );
    network::validate_dns_policy(text(&spec.dns_policy), &path.child("dnsPolicy"), errors);
    scheduling::validate_node_selector_labels(spec, &path.child("nodeSelector"), errors);
    security::validate_pod(spec, path, errors);
    scheduling::validate_affinity(spec, &path.child("affinity"), errors);
    network::validate_dns_config(spec, &path.child("dnsConfig"), errors);
    scheduling::validate_gates(spec, path, errors);
    scheduling::validate_topology_spread(
        list(&spec.topology_spread_constraints),
        &path.child("topologySpreadConstraints"),
        errors,
    );
    os::validate_host_process(spec, path, errors);
    security::validate_host_users(spec, path, errors);
    validate_names(spec, path, errors);
    validate_hostname_override(spec, path, errors);
    if let Some(seconds) = spec.active_deadline_seconds {
        let complaints = names::in_range(seconds, 1, i32::MAX.into());
        check::number(seconds, complaints, &path.child("activeDeadlineSeconds"), errors);
    }
    scheduling::validate_tolerations(list(&spec.tolerations), &path.child("tolerations"), errors);
    network::validate_host_aliases(list(&spec.host_aliases), &path.child("hostAliases"), errors);
    if let Some(policy) = &spec.preemption_policy {
        check::required_one_of(policy, &["PreemptLowerPriority", "Never"], &path.child("preemptionPolicy"), errors);
    }
    validate_overhead(spec, &path.child("overhead"), errors);
    os::validate(spec, path, errors);
}

fn validate_names(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    type Check = fn(&str) -> names::Violations;
    let fields: [(&str, &Option<String>, Check); 6] = [
        ("serviceAccountName", &spec.service_account_name, names::dns1123_subdomain),
        ("nodeName", &spec.node_name, names::dns1123_subdomain),
        ("hostname", &spec.hostname, names::dns1123_label),
        ("subdomain", &spec.subdomain, names::dns1123_label),
        ("priorityClassName", &spec.priority_class_name, names::dns1123_subdomain),
        ("runtimeClassName", &spec.runtime_class_name, names::dns1123_subdomain),
    ];
    for (field, value, check) in fields {
        if !text(value).is_empty() {
            names::refuse(text(value), &path.child(field), check, errors);
        }
    }
}

/// The name of a pod in its UTS namespace, whatever its own is.
fn validate_hostname_override(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    const MAX_HOSTNAME: usize = 64;
    let (Some(name), at) = (&spec.hostname_override, path.child("hostnameOverride")) else { return };
    if name.is_empty() {
        errors.push(FieldError::invalid(&at, "", "must not be empty"));
    } else {
        names::refuse(name, &at, names::dns1123_subdomain, errors);
    }
    if name.len() > MAX_HOSTNAME {
        errors.push(FieldError::too_long(&at, MAX_HOSTNAME));
    }
    for (field, is_set) in [
        ("setHostnameAsFQDN", spec.set_hostname_as_fqdn == Some(true)),
        ("hostNetwork", spec.host_network == Some(true)),
    ] {
        if is_set {
            errors.push(FieldError::forbidden(&at, format!("must not be set when {field} is true")));
        }
    }
}

fn validate_claims(claims: &[PodResourceClaim], path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (i, claim) in claims.iter().enumerate() {
        let at = path.index(i);
        if !claim.name.is_empty() && !seen.insert(&claim.name) {
            errors.push(FieldError::duplicate(&at.child("name"), claim.name.as_str()));
        } else {
            names::require(&claim.name, &at.child("name"), names::dns1123_label, errors);
        }
        match (&claim.resource_claim_name, &claim.resource_claim_template_name) {
            (Some(_), Some(_)) => errors.push(FieldError::invalid(
                &at,
                shown(claim),
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            )),
            (None, None) => errors.push(FieldError::invalid(
                &at,
                shown(claim),
                "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            )),
            _ => {}
        }
        for (field, name) in [
            ("resourceClaimName", &claim.resource_claim_name),
            ("resourceClaimTemplateName", &claim.resource_claim_template_name),
        ] {
            if let Some(name) = name {
                names::refuse(name, &at.child(field), names::dns1123_subdomain, errors);
            }
        }
    }
}

fn validate_overhead(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    if spec.overhead.is_some() {
        let as_limits =
            k8s_openapi::api::core::v1::ResourceRequirements { limits: spec.overhead.clone(), ..Default::default() };
        resources::validate_container(&as_limits, &BTreeSet::new(), path, errors);
    }
}

/// What the pod as a whole may use, against what its containers ask for.
fn validate_resources(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    let Some(whole) = &spec.resources else { return };
    resources::validate_pod(whole, path, errors);
    for (name, wanted) in requests_of_containers(spec) {
        let granted = resources::find(&whole.requests, &name).unwrap_or_default();
        if wanted > granted {
            errors.push(FieldError::invalid(
                &path.child("requests").key(&name),
                granted.to_string(),
                format!("must be greater than or equal to aggregate container requests of {wanted}"),
            ));
        }
    }
    for (i, container) in spec.containers.iter().enumerate() {
        let limits = container.resources.iter().flat_map(|resources| resources.limits.iter().flatten());
        for (name, limit) in limits {
            let Some(whole_limit) = resources::find(&whole.limits, name) else { continue };
            if resources::amount(limit) > whole_limit {
                errors.push(FieldError::invalid(
                    &path.child("containers").index(i).key(name).child("limits"),
                    limit.0.as_str(),
                    format!("must be less than or equal to pod limits of {whole_limit}"),
                ));
            }
        }
    }
}

/// What the containers need at the moment they need most: all of them and the sidecars at once,
/// or one init container beside the sidecars started before it.
fn requests_of_containers(spec: &PodSpec) -> impl Iterator<Item = (String, Amount)> {
    type Total = std::collections::BTreeMap<String, Amount>;
    fn add(total: &mut Total, requests: &Option<ResourceList>) {
        for (name, quantity) in requests.iter().flatten() {
            let sum = total.entry(name.clone()).or_default();
            *sum = *sum + resources::amount(quantity);
        }
    }
    fn raise(total: &mut Total, other: &Total) {
        for (name, amount) in other {
            let most = total.entry(name.clone()).or_default();
            *most = (*most).max(*amount);
        }
    }
    let none = None;
    let requests = |resources: &Option<k8s_openapi::api::core::v1::ResourceRequirements>| {
        resources.as_ref().map_or(none.clone(), |resources| resources.requests.clone())
    };
    let (mut running, mut sidecars, mut starting) = (Total::new(), Total::new(), Total::new());
    for container in &spec.containers {
        add(&mut running, &requests(&container.resources));
    }
    for container in list(&spec.init_containers) {
        let mut now = sidecars.clone();
        add(&mut now, &requests(&container.resources));
        if text(&container.restart_policy) == "Always" {
            sidecars.clone_from(&now);
            add(&mut running, &requests(&container.resources));
        }
        raise(&mut starting, &now);
    }
    raise(&mut running, &starting);
    running.into_iter()
}
