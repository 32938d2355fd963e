//! Binds pods to nodes, many at once.
//!
//! Mainstay's server takes many placements in one request and writes them, with their `Scheduled` events, in one commit.
//! Other Kubernetes API servers have only `pods/binding`: then it is one request per pod, and one per event. Either way
//! each pod is fenced by its uid: bindings of pods that were deleted or changed are refused, and the others stand.
//! Placements are fenced by the uid of the offer as well, so that no pod is bound on an offer that was withdrawn.
//!
//! ResourceClaims are allocated and reserved before ([`claim_writer`](crate::claim_writer)); a pod with a claim that could
//! not be is not bound, and one whose devices are not ready waits.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::PostParams};
use mainstay_events::EventNote;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    claim_writer::{ClaimWriter, WrittenClaim},
    core::{devices::ClaimBinding, view::PodKey},
    event_recorder::{EventRecorder, PodEvent},
};

const PLACEMENTS: &str = "/apis/mainstay.dev/v1/placements";
/// Requests to `pods/binding` under way at once.
const CONCURRENT_BINDINGS: usize = 32;

/// A pod to bind to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindRequest {
    pub pod: PodKey,
    pub uid: String,
    pub node: String,
    /// The uid of the offer that was used; empty if it is not known.
    pub offer_uid: String,
    /// Put on the pod: its automatic host ports, and what it takes of pools of roles.
    pub annotations: BTreeMap<String, String>,
    /// Allocated and reserved before it is bound.
    pub claims: Vec<ClaimBinding>,
}

impl BindRequest {
    fn message(&self) -> String {
        format!("Successfully assigned {} to {}", self.pod, self.node)
    }
}

/// The result of a [`BindRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindResult {
    /// The pod is bound, at this version of it; 0 if that is not known.
    Bound { version: u64 },
    /// Its claims are reserved, but its devices are not ready. They have been allocated for so long.
    Waiting { allocated_for: Duration },
    /// The pod, the node or the offer is not what it was.
    Refused { message: String },
    /// It is not known whether the pod is bound, since the API did not answer properly. The watch will tell.
    Failed { message: String },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PlacementItem<'a> {
    metadata: PlacementMetadata<'a>,
    node: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    offer_uid: &'a str,
    message: String,
}

#[derive(Serialize)]
struct PlacementMetadata<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: &'a BTreeMap<String, String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PlacementList<'a> {
    api_version: &'static str,
    kind: &'static str,
    items: Vec<PlacementItem<'a>>,
}

#[derive(Deserialize)]
struct ResultList {
    items: Vec<PlacementResult>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PlacementResult {
    code: u16,
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    message: String,
}

impl From<PlacementResult> for BindResult {
    fn from(result: PlacementResult) -> Self {
        match result.code {
            200..300 => Self::Bound { version: result.resource_version.parse().unwrap_or(0) },
            400..500 if result.code != 429 => Self::Refused { message: result.message },
            _ => Self::Failed { message: result.message },
        }
    }
}

pub struct Binder {
    client: Client,
    claims: ClaimWriter,
    event_recorder: EventRecorder,
    /// The server does not serve `placements`.
    single_only: AtomicBool,
}

impl Binder {
    pub fn new(client: Client, event_recorder: EventRecorder) -> Self {
        let claims = ClaimWriter::new(client.clone());
        Self { client, claims, event_recorder, single_only: AtomicBool::new(false) }
    }

    /// A result for each request, in their order, and the claims that were written.
    pub async fn bind_with_claims(&self, requests: &[BindRequest]) -> (Vec<BindResult>, Vec<WrittenClaim>) {
        if requests.iter().all(|request| request.claims.is_empty()) {
            return (self.bind(requests).await, vec![]);
        }
        let (failures, written) = self.claims.reserve_all(requests).await;
        let ready: Vec<BindRequest> = requests
            .iter()
            .zip(&failures)
            .filter(|(_, failure)| failure.is_none())
            .map(|(request, _)| request.clone())
            .collect();
        let mut bound = if ready.is_empty() { vec![] } else { self.bind(&ready).await }.into_iter();
        let unanswered = || BindResult::Failed { message: "no answer".to_owned() };
        let results = failures.into_iter().map(|failure| failure.or_else(|| bound.next()).unwrap_or_else(unanswered));
        (results.collect(), written)
    }

    /// A result for each request, in their order.
    async fn bind(&self, requests: &[BindRequest]) -> Vec<BindResult> {
        if !self.single_only.load(Ordering::Relaxed)
            && let Some(results) = self.bind_batch(requests).await
        {
            return results;
        }
        let each: Vec<_> = requests.iter().map(|request| self.bind_single(request)).collect();
        stream::iter(each).buffered(CONCURRENT_BINDINGS).collect().await
    }

    /// `None` if the server does not serve `placements`.
    async fn bind_batch(&self, requests: &[BindRequest]) -> Option<Vec<BindResult>> {
        let items = requests.iter().map(|request| PlacementItem {
            metadata: PlacementMetadata {
                namespace: &request.pod.namespace,
                name: &request.pod.name,
                uid: &request.uid,
                annotations: &request.annotations,
            },
            node: &request.node,
            offer_uid: &request.offer_uid,
            message: request.message(),
        });
        let list = PlacementList {
            api_version: mainstay_api::wellknown::mainstay::API_VERSION,
            kind: "PlacementList",
            items: items.collect(),
        };
        let fail_all = |message: &dyn std::fmt::Display| {
            let message = message.to_string();
            Some(vec![BindResult::Failed { message }; requests.len()])
        };
        let body = match serde_json::to_vec(&list) {
            Ok(body) => body,
            Err(error) => return fail_all(&error),
        };
        let http_request =
            http::Request::post(PLACEMENTS).header(http::header::CONTENT_TYPE, "application/json").body(body);
        let http_request = match http_request {
            Ok(request) => request,
            Err(error) => return fail_all(&error),
        };
        match self.client.request::<ResultList>(http_request).await {
            Ok(results) if results.items.len() == requests.len() => {
                Some(results.items.into_iter().map(BindResult::from).collect())
            }
            Ok(results) => fail_all(&format_args!("{} answers to {} placements", results.items.len(), requests.len())),
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 405 => {
                self.single_only.store(true, Ordering::Relaxed);
                None
            }
            Err(error) => fail_all(&error),
        }
    }

    async fn bind_single(&self, request: &BindRequest) -> BindResult {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {
                "name": request.pod.name, "namespace": request.pod.namespace, "uid": request.uid,
                "annotations": request.annotations,
            },
            "target": { "apiVersion": "v1", "kind": "Node", "name": request.node },
        });
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &request.pod.namespace);
        let body = PostParams::default();
        match pods.create_subresource::<_, Value>("binding", &request.pod.name, &body, &binding).await {
            Ok(_) => {
                let (pod, uid, message) = (request.pod.clone(), request.uid.clone(), request.message());
                self.event_recorder.record(PodEvent { pod, uid, note: EventNote::normal("Scheduled", message) });
                BindResult::Bound { version: 0 }
            }
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429 => {
                BindResult::Refused { message: status.message.clone() }
            }
            Err(error) => BindResult::Failed { message: error.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_names_the_offer_it_uses() {
        let annotations = BTreeMap::new();
        let item = |offer_uid| {
            let metadata = PlacementMetadata { namespace: "ns", name: "p", uid: "u", annotations: &annotations };
            serde_json::to_value(PlacementItem { metadata, node: "n", offer_uid, message: String::new() }).unwrap()
        };
        assert_eq!(item("o")["offerUid"], "o");
        assert!(item("").get("offerUid").is_none(), "an unknown one fences nothing");
    }

    #[test]
    fn results_are_distinguished() {
        let result = |value: Value| BindResult::from(serde_json::from_value::<PlacementResult>(value).unwrap());
        assert_eq!(result(json!({ "code": 201, "resourceVersion": "12" })), BindResult::Bound { version: 12 });
        let gone = json!({ "code": 404, "reason": "NotFound", "message": "no" });
        assert_eq!(result(gone), BindResult::Refused { message: "no".to_owned() });
        assert!(matches!(result(json!({ "code": 409 })), BindResult::Refused { .. }));
        assert!(matches!(result(json!({ "code": 429 })), BindResult::Failed { .. }));
        assert!(matches!(result(json!({ "code": 500 })), BindResult::Failed { .. }));
    }
}
