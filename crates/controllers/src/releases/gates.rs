//! Gates of a Release: needs of Services from the cache of EndpointSlices, approvals from the Release itself, HTTP checks by asking.

use std::{collections::BTreeSet, time::Duration};

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Empty;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use mainstay_api::{
    needs::{EndpointState, Need, NeedTarget, Needs, ServiceName},
    release::{Release, ReleaseGate, ReleaseWave},
    wellknown::kubernetes::SERVICE_NAME,
};
use mainstay_waves::Gate;

use crate::runtime::Cache;

/// Why a gate is closed whose check has yet to be asked.
pub const SLOW_GATE: &str = "its HTTP check has not been asked yet";
const HTTP_TIMEOUT: Duration = Duration::from_secs(5);

/// The gate before each wave, as far as it can be told at once. A wave with an HTTP check is closed by [`SLOW_GATE`] if nothing else
/// closes it.
pub fn judge_all(release: &Release, slices: &Cache<EndpointSlice>) -> Vec<Gate> {
    let waves = release.spec.waves.iter().enumerate();
    let judge = |(number, wave): (usize, &ReleaseWave)| {
        let closed = wave.gates.iter().find_map(|gate| closed_by(gate, release, number, slices));
        let is_slow = wave.gates.iter().any(|gate| gate.http.is_some());
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

/// Asks HTTP checks.
pub struct GateClient(Client<HttpConnector, Empty<Bytes>>);

impl GateClient {
    pub fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build(HttpConnector::new()))
    }

    /// Whether all HTTP checks before a wave answer as they should.
    pub async fn ask(&self, wave: &ReleaseWave) -> Gate {
        for gate in wave.gates.iter().filter_map(|gate| gate.http.as_ref()) {
            if let Err(why) = self.check(&gate.url).await {
                return Gate::Closed { why: format!("{}: {why}", gate.url) };
            }
        }
        Gate::Open
    }

    async fn check(&self, url: &str) -> Result<(), String> {
        let uri: Uri = url.parse().map_err(|_| "is not a URL".to_owned())?;
        let request = Request::get(uri).header("user-agent", "mainstay-release-gate").body(Empty::new());
        let request = request.map_err(|error| error.to_string())?;
        match tokio::time::timeout(HTTP_TIMEOUT, self.0.request(request)).await {
            Err(_) => Err(format!("no answer in {HTTP_TIMEOUT:?}")),
            Ok(Err(error)) => Err(mainstay_errors::error_chain(&error)),
            Ok(Ok(answer)) if answer.status().is_success() => Ok(()),
            Ok(Ok(answer)) => Err(format!("answers {}", answer.status().as_u16())),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

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

    #[tokio::test]
    async fn an_http_check_is_open_while_it_answers_well() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/healthy", listener.local_addr().unwrap());
        tokio::spawn(async move {
            for status in ["204 No Content", "503 Service Unavailable"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                assert_ne!(stream.read(&mut request).await.unwrap(), 0);
                let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let asked = release(json!([{"http": {"url": url}}]), json!(null));
        assert_eq!(judge_all(&asked, &Cache::new()), [Gate::Closed { why: SLOW_GATE.to_owned() }]);
        let client = GateClient::new();
        assert_eq!(client.ask(&asked.spec.waves[0]).await, Gate::Open);
        assert_eq!(client.ask(&asked.spec.waves[0]).await, Gate::Closed { why: format!("{url}: answers 503") });
        assert!(matches!(client.ask(&asked.spec.waves[0]).await, Gate::Closed { .. }), "nobody listens");
    }
}
