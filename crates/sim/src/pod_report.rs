//! What a hollow node writes to the API about one of its pods: that it runs, that it is gone, that it is refused.

use http::Method;
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};

use crate::{
    pod::Pod,
    requests::{self, CallError, JSON, STRATEGIC},
};

/// One write about one pod, fenced by its uid.
pub struct PodReport {
    pub node: usize,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub kind: PodReportKind,
    /// How often sending it has failed.
    pub failures: u32,
}

pub enum PodReportKind {
    Runs {
        /// Names and images.
        containers: Vec<(String, String)>,
    },
    Gone,
    Refused {
        reason: String,
        message: String,
    },
}

impl PodReport {
    pub fn new(node: usize, pod: &Pod, kind: PodReportKind) -> Self {
        let (namespace, name, uid) = (pod.namespace().to_owned(), pod.name().to_owned(), pod.uid().to_owned());
        Self { node, namespace, name, uid, kind, failures: 0 }
    }

    fn path(&self, subresource: &str) -> String {
        format!("/api/v1/namespaces/{}/pods/{}{subresource}", self.namespace, self.name)
    }

    /// Sends it. That the pod is gone, or that another pod has its name by now, is no error.
    pub async fn send(&self, client: &Client, address: Option<String>) -> Result<(), CallError> {
        let sent = match &self.kind {
            PodReportKind::Runs { containers } => {
                let body = json!({
                    "metadata": { "uid": self.uid }, "status": running_status(containers, address, Timestamp::now()),
                });
                requests::call(client, Method::PATCH, &self.path("/status"), STRATEGIC, body.to_string().into()).await
            }
            PodReportKind::Gone => {
                let body = json!({
                    "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0,
                    "preconditions": { "uid": self.uid },
                });
                requests::call(client, Method::DELETE, &self.path(""), JSON, body.to_string().into()).await
            }
            PodReportKind::Refused { reason, message } => {
                let body = json!({ "uid": self.uid, "reason": reason, "message": message });
                requests::call(client, Method::POST, &self.path("/refusal"), JSON, body.to_string().into()).await
            }
        };
        match sent {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The whole status as an agent would write it.
fn running_status(containers: &[(String, String)], address: Option<String>, now: Timestamp) -> Value {
    let now = now.strftime("%FT%TZ").to_string();
    let condition = |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": now });
    let containers: Vec<Value> = containers
        .iter()
        .map(|(name, image)| {
            json!({
                "name": name, "image": image, "imageID": "", "containerID": format!("hollow://{name}"),
                "ready": true, "started": true, "restartCount": 0, "state": { "running": { "startedAt": now } },
            })
        })
        .collect();
    let mut status = json!({
        "phase": "Running", "startTime": now, "containerStatuses": containers,
        "conditions": [
            condition("PodReadyToStartContainers"), condition("Initialized"), condition("Ready"),
            condition("ContainersReady"), condition("PodScheduled"),
        ],
    });
    if let Some(address) = address {
        status["podIPs"] = json!([{ "ip": address }]);
        status["podIP"] = json!(address);
    }
    status
}
