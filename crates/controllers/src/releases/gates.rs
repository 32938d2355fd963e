//! Gates of a Release that can be told at once: needs of Services from the cache of EndpointSlices, approvals from the Release itself.

use std::collections::BTreeSet;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use mainstay_api::{
    needs::{EndpointState, Need, NeedTarget, Needs, ServiceName},
    release::{Release, ReleaseGate, ReleaseWave},
    wellknown::kubernetes::SERVICE_NAME,
};
use mainstay_waves::Gate;

use super::checks::is_asked;
use crate::runtime::Cache;

/// Why a gate is closed whose check has yet to be asked.
pub const SLOW_GATE: &str = "its checks have not been asked yet";

/// The gate before each wave, as far as it can be told at once. A wave with a check that others answer is closed by [`SLOW_GATE`] if nothing else
/// closes it.
pub fn judge_all(release: &Release, slices: &Cache<EndpointSlice>) -> Vec<Gate> {
    let waves = release.spec.waves.iter().enumerate();
    let judge = |(number, wave): (usize, &ReleaseWave)| {
        let closed = wave.gates.iter().find_map(|gate| closed_by(gate, release, number, slices));
        let is_slow = wave.gates.iter().any(is_asked);
        match closed.or_else(|| is_slow.then(|| SLOW_GATE.to_owned())) {
            Some(why) => Gate::Closed { why },
            None => Gate::Open,
        }
    };
    waves.map(judge).collect()
}

fn closed_by(gate: &ReleaseGate, release: &Release, wave: usize, slices: &Cache<EndpointSlice>) -> Option<String> {
    if gate.approval {
        let approval = release.spec.approval.as_ref().filter(|own| own.version == release.spec.version);
        let is_approved = approval.and_then(|own| usize::try_from(own.wave).ok()).is_some_and(|own| own >= wave);
        let name = release.name();
        return (!is_approved).then(|| format!("nobody has approved it: mainstay release approve {name}"));
    }
    let needs: Needs = gate.needs.as_ref()?.parse().ok()?;
    needs.needs.iter().find_map(|need| missing(need, slices))
}

/// What is missing of a need; nothing if it is met.
fn missing(need: &Need, slices: &Cache<EndpointSlice>) -> Option<String> {
    let NeedTarget::Service { service, at_least, state } = &need.target else {
        return Some(format!("{}: only Services can be needed", need.target));
    };
    let (name, namespace) = match service {
        ServiceName::InNamespace { name, namespace } => (name, Some(namespace)),
        ServiceName::InAnyNamespace(name) | ServiceName::InOwnNamespace(name) => (name, None),
    };
    let is_wanted = |slice: &EndpointSlice| {
        let labels = slice.metadata.labels.as_ref();
        let of_service = labels.and_then(|labels| labels.get(SERVICE_NAME)) == Some(name);
        of_service && namespace.is_none_or(|namespace| slice.metadata.namespace.as_ref() == Some(namespace))
    };
    let mut addresses = BTreeSet::new();
    for slice in slices.select(is_wanted) {
        for endpoint in slice.endpoints.iter().flatten() {
            let is_ready = endpoint.conditions.as_ref().is_none_or(|own| own.ready != Some(false));
            if is_ready || *state == EndpointState::Addressable {
                addresses.extend(endpoint.addresses.iter().cloned());
            }
        }
    }
    let word = match state {
        EndpointState::Ready => "ready",
        EndpointState::Addressable => "addressable",
    };
    let found = addresses.len();
    (found < usize::try_from(*at_least).unwrap_or(usize::MAX))
        .then(|| format!("{}: {found} of {at_least} {word}", need.target))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn release(gates: serde_json::Value, approval: serde_json::Value) -> Release {
        let spec =
            json!({"version": "v2", "selector": {}, "waves": [{"upTo": 1, "gates": gates}], "approval": approval});
        serde_json::from_value(json!({"metadata": {"name": "all"}, "spec": spec})).unwrap()
    }

    #[test]
    fn an_approval_opens_waves_of_its_version_up_to_its_own() {
        let slices = Cache::new();
        let judged = |approval| judge_all(&release(json!([{"approval": true}]), approval), &slices).remove(0);
        let closed = Gate::Closed { why: "nobody has approved it: mainstay release approve all".to_owned() };
        assert_eq!(judged(json!(null)), closed);
        assert_eq!(judged(json!({"version": "v1", "wave": 5})), closed);
        assert_eq!(judged(json!({"version": "v2", "wave": 0})), Gate::Open);
    }

    #[test]
    fn checks_that_others_answer_are_closed_until_they_are_asked() {
        let exec = json!({"exec": {"namespace": "db", "pod": "p", "command": ["true"]}});
        for gate in [json!({"http": {"url": "http://x/"}}), json!({"https": {"url": "https://x/"}}), exec] {
            let judged = judge_all(&release(json!([gate]), json!(null)), &Cache::new());
            assert_eq!(judged, [Gate::Closed { why: SLOW_GATE.to_owned() }]);
        }
    }

    #[test]
    fn needs_count_endpoints_of_the_service() {
        let slices = Cache::new();
        let slice = json!({
            "metadata": {"name": "mysql-1", "namespace": "db", "uid": "1", "resourceVersion": "1", "labels": {SERVICE_NAME: "mysql"}},
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
            ],
        });
        slices.wrote(serde_json::from_value(slice).unwrap());
        for (needs, expected) in [
            ("mysql.db", None),
            ("mysql.db >= 2", Some("mysql.db >= 2 ready: 1 of 2 ready")),
            ("mysql.db >= 2 addressable", None),
            ("mysql.other", Some("mysql.other: 0 of 1 ready")),
        ] {
            let gate = judge_all(&release(json!([{"needs": needs}]), json!(null)), &slices).remove(0);
            match (gate, expected) {
                (Gate::Open, None) => {}
                (Gate::Closed { why }, Some(words)) => {
                    assert!(why.ends_with(words.rsplit(": ").next().unwrap()), "{why}")
                }
                (gate, _) => panic!("{needs}: {gate:?}"),
            }
        }
    }
}
