//! Conversion between versions by a webhook: `ConversionReview`.
//!
//! Lists, watches and GETs ask for all of their objects at once beforehand ([`prefetch`]), and what was converted is kept beside the stored entry, so
//! that an object is converted once per version and not once per reader.
//!
//! Reading a stored object is not asynchronous anywhere else, so the conversion of a write waits on the thread that needs it, which hands its
//! connections to another meanwhile. Threads are not endless: only so many conversions wait like that, and further ones fail, so that a webhook
//! that hangs holds up nobody else.

use std::{
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use mainstay_api::{
    crd::{default::apply_defaults, prune::prune_resource, structural::Structural},
    descriptor::{Conversion, Descriptor},
};
use mainstay_store::Entry;
use serde_json::{Value, json};
use tokio::runtime::{Handle, RuntimeFlavor};
use uuid::Uuid;

use crate::{
    api::Api,
    handler::Handler,
    http::status::{ApiError, ApiResult},
    objects::object::{self, Wire},
};

const TIMEOUT: Duration = Duration::from_secs(30);
/// How many objects one review asks for, and about how many bytes of them: an answer is bounded.
const BATCH: usize = 500;
const BATCH_BYTES: usize = 1 << 20;
/// How many threads wait for conversions at most; the runtime has some hundreds.
pub const MAX_WAITING_THREADS: usize = 128;

/// The handler, once there is one: webhooks are called through it.
pub type HandlerCell = Arc<OnceLock<Weak<Handler>>>;

pub struct WebhookConversion {
    pub handler: HandlerCell,
    /// `spec.conversion.webhook`.
    pub webhook: Arc<Value>,
    pub kind: Box<str>,
    pub served: Arc<Structural>,
    pub served_version: Box<str>,
    pub stored_version: Box<str>,
}

impl Conversion for WebhookConversion {
    fn to_stored(&self, object: &mut Value) {
        let _ = self.try_to_stored(object);
    }

    fn to_served(&self, object: &mut Value) {
        let _ = self.try_to_served(object);
    }

    fn try_to_stored(&self, object: &mut Value) -> Result<(), String> {
        self.convert_one(object, &self.stored_version)
    }

    fn try_to_served(&self, object: &mut Value) -> Result<(), String> {
        self.convert_one(object, &self.served_version)?;
        prune_resource(&self.served, object);
        apply_defaults(&self.served, object).map_err(|why| self.failure(object, &why.to_string()))
    }
}

impl WebhookConversion {
    fn convert_one(&self, object: &mut Value, version: &str) -> Result<(), String> {
        if object["apiVersion"] == version {
            return Ok(());
        }
        if Handle::current().runtime_flavor() != RuntimeFlavor::MultiThread {
            return Err("conversion webhooks need a runtime of several threads".to_owned());
        }
        let handler = self.handler()?;
        let waiting = handler.api.webhooks.waiting_threads.try_acquire();
        let _waiting = waiting.map_err(|_| self.failure(object, "too many conversions wait for webhooks"))?;
        let objects = vec![object.take()];
        let converted = tokio::task::block_in_place(|| Handle::current().block_on(self.convert(objects, version)))?;
        *object = converted.into_iter().next().unwrap_or_default();
        Ok(())
    }

    fn handler(&self) -> Result<Arc<Handler>, String> {
        self.handler.get().and_then(Weak::upgrade).ok_or_else(|| "the server stops".to_owned())
    }

    fn failure(&self, object: &Value, why: &str) -> String {
        let from = object["apiVersion"].as_str().unwrap_or_default();
        format!("conversion webhook for {from}, Kind={} failed: {why}", self.kind)
    }

    async fn convert(&self, objects: Vec<Value>, version: &str) -> Result<Vec<Value>, String> {
        let first = objects.first().map(|object| json!({ "apiVersion": object["apiVersion"] })).unwrap_or_default();
        let failed = |why: String| self.failure(&first, &why);
        let handler = self.handler()?;
        let uid = Uuid::new_v4().to_string();
        let versions = self.webhook["conversionReviewVersions"].as_array().into_iter().flatten();
        let version_name = versions.filter_map(Value::as_str).find(|version| ["v1", "v1beta1"].contains(version));
        let api_version = format!("apiextensions.k8s.io/{}", version_name.unwrap_or("v1"));
        let review = json!({
            "kind": "ConversionReview", "apiVersion": api_version,
            "request": { "uid": uid, "desiredAPIVersion": version, "objects": objects },
        });
        let api = &handler.api;
        let answer = api.webhooks.call::<_, Value>(api, &self.webhook["clientConfig"], TIMEOUT, &review).await;
        let answer = answer.map_err(|error| failed(error.to_string()))?;
        check_answer(objects, answer, &uid, version).map_err(failed)
    }
}

/// The converted objects, if the webhook did what it may: metadata stays as it was, but for labels and annotations.
fn check_answer(objects: Vec<Value>, mut answer: Value, uid: &str, version: &str) -> Result<Vec<Value>, String> {
    let response = &mut answer["response"];
    if response["uid"] != uid {
        return Err(format!("expected response.uid={uid:?}, got {}", response["uid"]));
    }
    if response["result"]["status"] != "Success" {
        let message = response["result"]["message"].as_str().unwrap_or_default();
        return Err(if message.is_empty() { "the webhook reported a failure".to_owned() } else { message.to_owned() });
    }
    let converted = match response["convertedObjects"].take() {
        Value::Array(converted) => converted,
        _ => Vec::new(),
    };
    if converted.len() != objects.len() {
        return Err(format!("expected {} converted objects, got {}", objects.len(), converted.len()));
    }
    let check = |(index, (mut new, old)): (usize, (Value, Value))| {
        if new["apiVersion"] != version || new["kind"] != old["kind"] {
            return Err(format!(
                "invalid converted object at index {index}: expected {version} {}, got {} {}",
                old["kind"], new["apiVersion"], new["kind"]
            ));
        }
        for field in ["name", "namespace", "uid"] {
            if new["metadata"][field] != old["metadata"][field] {
                return Err(format!("invalid metadata of converted object at index {index}: {field} was changed"));
            }
        }
        let (labels, annotations) = (new["metadata"]["labels"].take(), new["metadata"]["annotations"].take());
        let mut metadata = old["metadata"].clone();
        if let Some(fields) = metadata.as_object_mut() {
            for (name, value) in [("labels", labels), ("annotations", annotations)] {
                if value.is_object() {
                    fields.insert(name.to_owned(), value)
                } else {
                    fields.remove(name)
                };
            }
        }
        new["metadata"] = metadata;
        Ok(new)
    };
    converted.into_iter().zip(objects).enumerate().map(check).collect()
}

/// Converts those of the entries that are stored in another version, with as few reviews as possible.
pub async fn prefetch(api: &Api, d: &Descriptor, entries: &[Arc<Entry>]) -> ApiResult<()> {
    match api.served.webhook_conversion(d) {
        Some(conversion) => conversion.prefetch(d, entries).await,
        None => Ok(()),
    }
}

impl WebhookConversion {
    /// The same, where it is known that a webhook converts them.
    pub async fn prefetch(&self, d: &Descriptor, entries: &[Arc<Entry>]) -> ApiResult<()> {
        let missing: Vec<&Arc<Entry>> = entries.iter().filter(|entry| !object::is_converted(d, entry)).collect();
        let mut bytes = 0;
        let batches = missing.chunk_by(move |_, next| {
            bytes += next.value.len() + BATCH_BYTES / BATCH;
            let fits = bytes <= BATCH_BYTES;
            bytes *= usize::from(fits);
            fits
        });
        for batch in batches {
            let mut waiting = Vec::new();
            let mut objects = Vec::new();
            for entry in batch {
                let stored: Value =
                    serde_json::from_slice(&entry.value).map_err(|e| object::unreadable(entry, &e.to_string()))?;
                if stored["apiVersion"] != *self.served_version {
                    waiting.push(entry);
                    objects.push(stored);
                }
            }
            if objects.is_empty() {
                continue;
            }
            let converted = self.convert(objects, &self.served_version).await.map_err(ApiError::internal)?;
            for (entry, mut converted) in waiting.into_iter().zip(converted) {
                prune_resource(&self.served, &mut converted);
                apply_defaults(&self.served, &mut converted).map_err(|why| ApiError::internal(why.to_string()))?;
                object::remember_converted(d, entry, Wire::encode(&converted));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(object: Value) -> Value {
        json!({"response": {"uid": "u", "result": {"status": "Success"}, "convertedObjects": [object]}})
    }

    fn stored() -> Value {
        json!({"apiVersion": "x.io/v1", "kind": "X", "metadata": {"name": "a", "uid": "1", "labels": {"a": "b"}, "generation": 3}})
    }

    #[test]
    fn a_webhook_may_change_labels_and_annotations_of_metadata_and_nothing_else() {
        let mut converted = stored();
        converted["apiVersion"] = json!("x.io/v2");
        converted["metadata"]["generation"] = json!(9);
        converted["metadata"]["annotations"] = json!({"c": "d"});
        converted["metadata"].as_object_mut().unwrap().remove("labels");
        let checked = check_answer(vec![stored()], answer(converted.clone()), "u", "x.io/v2").unwrap();
        assert_eq!(
            checked[0]["metadata"],
            json!({"name": "a", "uid": "1", "annotations": {"c": "d"}, "generation": 3})
        );
        converted["metadata"]["name"] = json!("other");
        let refused = check_answer(vec![stored()], answer(converted), "u", "x.io/v2").unwrap_err();
        assert!(refused.contains("name was changed"), "{refused}");
    }

    #[test]
    fn an_answer_that_is_none_is_refused() {
        let failed = json!({"response": {"uid": "u", "result": {"status": "Failed", "message": "no way"}}});
        assert_eq!(check_answer(vec![stored()], failed, "u", "x.io/v2").unwrap_err(), "no way");
        assert!(check_answer(vec![stored()], json!({}), "u", "x.io/v2").unwrap_err().contains("response.uid"));
        let fewer = json!({"response": {"uid": "u", "result": {"status": "Success"}}});
        assert_eq!(
            check_answer(vec![stored()], fewer, "u", "x.io/v2").unwrap_err(),
            "expected 1 converted objects, got 0"
        );
        assert!(
            check_answer(vec![stored()], answer(stored()), "u", "x.io/v2")
                .unwrap_err()
                .contains("invalid converted object")
        );
    }
}
