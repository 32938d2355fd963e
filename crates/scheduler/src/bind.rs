//! Asks the API to put pods on machines, many at once.
//!
//! Our own server takes many placements in one request and writes them, with the events that tell of them, in one
//! commit. Another Kubernetes API server knows only `pods/binding`: then it is one request per pod, and one per event.
//! Either way each pod is judged by itself, by its uid: what has gone or changed is refused and the rest stands.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::PostParams};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    core::view::PodKey,
    events::{Events, Note, Tone},
};

const PLACEMENTS: &str = "/apis/mainstay.dev/v1/placements";
/// Single bindings under way at once.
const ABREAST: usize = 32;

/// A pod that is to go to a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub pod: PodKey,
    pub uid: String,
    pub node: String,
    /// What the pod is told: the ports it was given.
    pub annotations: BTreeMap<String, String>,
}

impl Order {
    fn message(&self) -> String {
        format!("Successfully assigned {} to {}", self.pod, self.node)
    }
}

/// What became of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The pod is on the machine, since this version of it; 0 if that was not told.
    Bound { version: u64 },
    /// It is not, because the pod or the machine is not what it was.
    Refused { message: String },
    /// It cannot be said: the API did not answer as it should. The watch will tell.
    Failed { message: String },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Placement<'a> {
    metadata: Metadata<'a>,
    node: &'a str,
    message: String,
}

#[derive(Serialize)]
struct Metadata<'a> {
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
    items: Vec<Placement<'a>>,
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

impl From<PlacementResult> for Answer {
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
    events: Events,
    /// The server has turned out to know nothing of many placements at once.
    singly: AtomicBool,
}

impl Binder {
    pub fn new(client: Client, events: Events) -> Self {
        Self { client, events, singly: AtomicBool::new(false) }
    }

    /// An answer for each order, in their order.
    pub async fn bind(&self, orders: &[Order]) -> Vec<Answer> {
        if !self.singly.load(Ordering::Relaxed)
            && let Some(answers) = self.together(orders).await
        {
            return answers;
        }
        let each: Vec<_> = orders.iter().map(|order| self.one(order)).collect();
        stream::iter(each).buffered(ABREAST).collect().await
    }

    /// Nothing if the server knows no such request.
    async fn together(&self, orders: &[Order]) -> Option<Vec<Answer>> {
        let items = orders.iter().map(|order| Placement {
            metadata: Metadata {
                namespace: &order.pod.namespace,
                name: &order.pod.name,
                uid: &order.uid,
                annotations: &order.annotations,
            },
            node: &order.node,
            message: order.message(),
        });
        let list = PlacementList { api_version: "mainstay.dev/v1", kind: "PlacementList", items: items.collect() };
        let all = |message: &dyn std::fmt::Display| {
            let message = message.to_string();
            Some(vec![Answer::Failed { message }; orders.len()])
        };
        let body = match serde_json::to_vec(&list) {
            Ok(body) => body,
            Err(error) => return all(&error),
        };
        let request = http::Request::post(PLACEMENTS).header(http::header::CONTENT_TYPE, "application/json").body(body);
        let request = match request {
            Ok(request) => request,
            Err(error) => return all(&error),
        };
        match self.client.request::<ResultList>(request).await {
            Ok(results) if results.items.len() == orders.len() => {
                Some(results.items.into_iter().map(Answer::from).collect())
            }
            Ok(results) => all(&format_args!("{} answers to {} placements", results.items.len(), orders.len())),
            Err(kube::Error::Api(status)) if status.code == 404 || status.code == 405 => {
                self.singly.store(true, Ordering::Relaxed);
                None
            }
            Err(error) => all(&error),
        }
    }

    async fn one(&self, order: &Order) -> Answer {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {
                "name": order.pod.name, "namespace": order.pod.namespace, "uid": order.uid,
                "annotations": order.annotations,
            },
            "target": { "apiVersion": "v1", "kind": "Node", "name": order.node },
        });
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &order.pod.namespace);
        let body = PostParams::default();
        match pods.create_subresource::<_, Value>("binding", &order.pod.name, &body, &binding).await {
            Ok(_) => {
                let (pod, uid, message) = (order.pod.clone(), order.uid.clone(), order.message());
                self.events.tell(&Note { pod, uid, tone: Tone::Normal, reason: "Scheduled", message }).await;
                Answer::Bound { version: 0 }
            }
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) && status.code != 429 => {
                Answer::Refused { message: status.message.clone() }
            }
            Err(error) => Answer::Failed { message: error.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart() {
        let answer = |value: Value| Answer::from(serde_json::from_value::<PlacementResult>(value).unwrap());
        assert_eq!(answer(json!({ "code": 201, "resourceVersion": "12" })), Answer::Bound { version: 12 });
        let gone = json!({ "code": 404, "reason": "NotFound", "message": "no" });
        assert_eq!(answer(gone), Answer::Refused { message: "no".to_owned() });
        assert!(matches!(answer(json!({ "code": 409 })), Answer::Refused { .. }));
        assert!(matches!(answer(json!({ "code": 429 })), Answer::Failed { .. }));
        assert!(matches!(answer(json!({ "code": 500 })), Answer::Failed { .. }));
    }
}
