//! What a machine tells the API of one of its pods: that it runs, that it is gone, that it is refused.

use http::Method;
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};

use crate::{
    pod::Pod,
    wire::{self, CallError, JSON, STRATEGIC},
};

/// The pod and what is to be told of it.
pub struct Word {
    pub machine: usize,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub what: What,
}

pub enum What {
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

impl Word {
    pub fn of(machine: usize, pod: &Pod, what: What) -> Self {
        let (namespace, name, uid) = (pod.namespace().to_owned(), pod.name().to_owned(), pod.uid().to_owned());
        Self { machine, namespace, name, uid, what }
    }

    fn path(&self, subresource: &str) -> String {
        format!("/api/v1/namespaces/{}/pods/{}{subresource}", self.namespace, self.name)
    }

    /// Tells it. That the pod is gone, or that its name is another's by now, is no error.
    pub async fn tell(&self, client: &Client, address: Option<String>) -> Result<(), CallError> {
        let told = match &self.what {
            What::Runs { containers } => {
                let body = json!({
                    "metadata": { "uid": self.uid }, "status": running(containers, address, Timestamp::now()),
                });
                wire::call(client, Method::PATCH, &self.path("/status"), STRATEGIC, body.to_string().into()).await
            }
            What::Gone => {
                let body = json!({
                    "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0,
                    "preconditions": { "uid": self.uid },
                });
                wire::call(client, Method::DELETE, &self.path(""), JSON, body.to_string().into()).await
            }
            What::Refused { reason, message } => {
                let body = json!({ "uid": self.uid, "reason": reason, "message": message });
                wire::call(client, Method::POST, &self.path("/refusal"), JSON, body.to_string().into()).await
            }
        };
        match told {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The whole status as an agent would tell it.
fn running(containers: &[(String, String)], address: Option<String>, now: Timestamp) -> Value {
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
