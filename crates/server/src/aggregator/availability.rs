//! Keeps the condition `Available` of every APIService, and what its server says of its resources.
//!
//! An APIService is looked at when it changes, when its Service or that one's endpoints do, and from time to time: every half
//! minute while it is available, sooner after a failure. A check looks for the Service, its port and its endpoints, and then asks
//! the server for its resources. Every API server does so for itself; a condition that two would write is written once.
//! A condition is no reason to look again, and no more than one look is taken per [`MIN_INTERVAL`]: neither a message that differs each
//! time nor two servers of different opinion make a loop.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, future, stream};
use http::{Method, StatusCode};
use mainstay_backoff::{Backoff, RetryState};
use mainstay_store::{Change, Entry, List, StoreError, WatchEvent};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Aggregator, COLLECTION, PLURAL,
    api_services::{AVAILABLE, RemoteService, condition},
    extra_openapi, proxy,
};
use crate::{
    api::{self, Api},
    background::bootstrap::BootstrapClient,
    handler::Handler,
    http::status::ApiResult,
    objects::{keys, object},
};

const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5), 0.5);
/// How often what is available is looked at again, and what is not.
const INTERVAL: Duration = Duration::from_secs(30);
const INTERVAL_UNAVAILABLE: Duration = Duration::from_secs(2);
/// However much changes.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// How long the answer to a check may take, and how often it is tried.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
const ATTEMPTS: usize = 3;
/// APIServices that are checked at the same time.
const CONCURRENT_CHECKS: usize = 16;
const MAX_RESOURCE_LIST: usize = 3 << 20;

/// What a check found: the parts of the condition that tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Finding {
    fn new(status: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { status, reason, message: message.into() }
    }

    fn unavailable(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new("False", reason, message)
    }

    fn local() -> Self {
        Self::new("True", "Local", "Local APIServices are always available")
    }
}

/// Looks at all APIServices until `stop`.
pub async fn follow(handler: Arc<Handler>, stop: CancellationToken) {
    let mut retry = RetryState::new(RETRY);
    while !stop.is_cancelled() {
        let followed = stop.run_until_cancelled(follow_once(&handler, &mut retry)).await;
        let Some(Err(error)) = followed else { return };
        tracing::debug!(%error, "the watch of APIServices and their Services ended; it is opened anew");
        let delay = retry.record_failure(fastrand::f64());
        stop.run_until_cancelled(tokio::time::sleep(delay)).await;
    }
}

async fn follow_once(handler: &Arc<Handler>, retry: &mut RetryState) -> Result<(), StoreError> {
    let api = &handler.api;
    let watched = [(super::GROUP, PLURAL), ("", "services"), ("discovery.k8s.io", "endpointslices")];
    let mut watches = Vec::new();
    for (group, plural) in watched {
        let Some(d) = api.registry.find(group, "v1", plural) else { continue };
        let prefix = keys::prefix(d, None);
        let listing = api.store.list(List { prefix: &prefix, limit: Some(1), ..List::default() }).await?;
        let watch = api.store.watch(&prefix, listing.revision).await?;
        let events = stream::unfold(watch, |mut watch| async move { Some((watch.next().await, watch)) });
        watches.push(events.map(move |event| (prefix.clone(), plural, event)).boxed());
    }
    retry.reset();
    let mut changes = stream::select_all(watches);
    loop {
        let soonest = tokio::time::Instant::now() + MIN_INTERVAL;
        let is_all_available = check_all(handler).await;
        let next = tokio::time::sleep(if is_all_available { INTERVAL } else { INTERVAL_UNAVAILABLE });
        tokio::pin!(next);
        loop {
            tokio::select! {
                () = &mut next => break,
                event = changes.next() => {
                    let Some((prefix, plural, event)) = event else { return Ok(()) };
                    let WatchEvent::Changes(changes) = event? else { continue };
                    if changes.iter().any(|change| concerns(api, plural, &prefix, change)) {
                        break;
                    }
                }
            }
        }
        tokio::time::sleep_until(soonest).await;
    }
}

/// Whether a change may make a difference: slices are named after their Service.
fn concerns(api: &Api, plural: &str, prefix: &str, change: &Change) -> bool {
    if plural == PLURAL {
        return has_new_spec(api, change);
    }
    let key = change.key.strip_prefix(prefix).unwrap_or_default();
    api.aggregator.remotes(api).iter().any(|(_, remote)| {
        let name = key.strip_prefix(&*remote.namespace).and_then(|rest| rest.strip_prefix('/'));
        name.is_some_and(|name| name.starts_with(&remote.service))
    })
}

/// Whether an APIService is new, gone, or is to be another: not if only its condition was written.
fn has_new_spec(api: &Api, change: &Change) -> bool {
    let Some(d) = api.registry.find(super::GROUP, "v1", PLURAL) else { return true };
    let spec = |entry: &Option<Arc<Entry>>| Some(object::parse(d, entry.as_deref()?).ok()?["spec"].clone());
    match (spec(&change.previous), spec(&change.current)) {
        (Some(before), Some(now)) => before != now,
        _ => true,
    }
}

/// Looks at every APIService; returns whether all are available, and said to be so.
async fn check_all(handler: &Arc<Handler>) -> bool {
    let api = &handler.api;
    let objects = api.aggregator.objects.list(PLURAL, None);
    let names: Vec<String> =
        objects.iter().filter_map(|object| object.value["metadata"]["name"].as_str().map(str::to_owned)).collect();
    api.aggregator.forget_others(&names);
    let remotes = api.aggregator.remotes(api);
    let checks = objects.iter().map(|object| async {
        let name = object.value["metadata"]["name"].as_str().unwrap_or_default();
        let finding = match remotes.iter().find(|(_, remote)| remote.name == name) {
            Some((_, remote)) => check(api, remote).await,
            None => Finding::local(),
        };
        let (is_available, mut is_written) = (finding.status == "True", true);
        if let Some(condition) = changed_condition(&object.value, &finding, api::now()) {
            if !is_available {
                let (reason, message) = (finding.reason, &finding.message);
                tracing::warn!(api_service = name, reason, message, "an APIService is not available");
            }
            is_written = report(handler, &object.value, condition).await;
        }
        is_available && is_written
    });
    // Collected first: a stream of borrowing closures is not general enough to be sent between threads.
    let checks: Vec<_> = checks.collect();
    stream::iter(checks).buffer_unordered(CONCURRENT_CHECKS).fold(true, |all, one| future::ready(all && one)).await
}

/// The condition to write, if the object has another.
fn changed_condition(object: &Value, finding: &Finding, now: jiff::Timestamp) -> Option<Value> {
    let known = condition(object).unwrap_or(&Value::Null);
    let Finding { status, reason, message } = finding;
    if known["status"] == *status && known["reason"] == *reason && known["message"] == *message {
        return None;
    }
    let since = match known["lastTransitionTime"].as_str().filter(|_| known["status"] == *status) {
        Some(since) => since.to_owned(),
        None => now.to_string(),
    };
    Some(json!({
        "type": AVAILABLE, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    }))
}

/// Writes the condition; returns whether it is written. A conflict means that the APIService is looked at again.
async fn report(handler: &Arc<Handler>, object: &Value, condition: Value) -> bool {
    let mut object = object.clone();
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|known| known["type"] != AVAILABLE);
    conditions.push(condition);
    object["status"] = json!({ "conditions": conditions });
    let client = BootstrapClient::new(handler);
    match client.call(Method::PUT, &format!("{COLLECTION}/{name}/status"), Some(&object)).await {
        (StatusCode::OK | StatusCode::NOT_FOUND, _) => true,
        (StatusCode::CONFLICT, _) => false,
        (_, status) => {
            let error = status["message"].as_str().unwrap_or("no answer");
            tracing::warn!(api_service = name, error, "cannot write the condition of an APIService");
            false
        }
    }
}

async fn check(api: &Api, remote: &RemoteService) -> Finding {
    let found = match check_service(api, remote).await {
        Ok(found) => found,
        Err(error) => {
            let RemoteService { service, namespace, .. } = remote;
            let why = format!("service/{service} in {namespace:?} cannot be checked due to: {}", error.message());
            Some(Finding::new("Unknown", "ServiceAccessError", why))
        }
    };
    if let Some(finding) = found {
        return finding;
    }
    let mut failed = String::new();
    for _ in 0..ATTEMPTS {
        match tokio::time::timeout(CHECK_TIMEOUT, ask_for_resources(api, remote)).await {
            Ok(Ok(resources)) => {
                api.aggregator.set_resources(&remote.name, resources);
                extra_openapi::refresh(api, remote).await;
                return Finding::new("True", "Passed", "all checks passed");
            }
            Ok(Err(why)) => failed = why,
            Err(_) => failed = format!("failing or missing response from {}: context deadline exceeded", url(remote)),
        }
    }
    Finding::unavailable("FailedDiscoveryCheck", failed)
}

fn url(remote: &RemoteService) -> String {
    let RemoteService { group, version, port, .. } = remote;
    format!("https://{}:{port}/apis/{group}/{version}", remote.host())
}

async fn ask_for_resources(api: &Api, remote: &RemoteService) -> Result<Value, String> {
    let path = format!("/apis/{}/{}", remote.group, remote.version);
    let answer = proxy::fetch(api, remote, &path, "application/json", None, MAX_RESOURCE_LIST).await;
    let answer =
        answer.map_err(|why| format!("failing or missing response from {0}: Get \"{0}\": {why}", url(remote)))?;
    if !answer.status().is_success() {
        return Err(format!(
            "failing or missing response from {0}: bad status from {0}: {1}",
            url(remote),
            answer.status().as_u16()
        ));
    }
    // Whoever answers is there; what cannot be read is not shown.
    let list = serde_json::from_slice::<Value>(answer.body()).unwrap_or_default();
    Ok(if list["resources"].is_array() { list } else { json!({ "resources": [] }) })
}

/// Whether there is a Service with the port, and anybody behind it; what it lacks, if it lacks something.
async fn check_service(api: &Api, remote: &RemoteService) -> ApiResult<Option<Finding>> {
    let RemoteService { service: name, namespace, port, .. } = remote;
    let Some(service) = api.core_object("services", Some(namespace), name).await? else {
        return Ok(Some(Finding::unavailable(
            "ServiceNotFound",
            format!("service/{name} in {namespace:?} is not present"),
        )));
    };
    if service["spec"]["type"] == "ExternalName" {
        return Ok(None);
    }
    let slices = slices(api, namespace, name).await?;
    Ok(judge_service(&service, &slices, name, namespace, *port))
}

fn judge_service(service: &Value, slices: &[Value], name: &str, namespace: &str, port: u16) -> Option<Finding> {
    let mut ports = service["spec"]["ports"].as_array().into_iter().flatten();
    let Some(found) = ports.find(|own| own["port"] == port) else {
        let why = format!("service/{name} in {namespace:?} is not listening on port {port}");
        return Some(Finding::unavailable("ServicePortError", why));
    };
    if slices.is_empty() {
        let why = format!("cannot find endpointslices for service/{name} in {namespace:?}");
        return Some(Finding::unavailable("EndpointsNotFound", why));
    }
    let port_name = found["name"].as_str().unwrap_or_default();
    let serves = |slice: &Value| {
        let items = |field: &str| slice[field].as_array().cloned().unwrap_or_default();
        items("ports").iter().any(|own| own["name"].as_str().unwrap_or_default() == port_name)
            && items("endpoints").iter().any(|endpoint| {
                endpoint["conditions"]["ready"] != false
                    && endpoint["addresses"].as_array().is_some_and(|addresses| !addresses.is_empty())
            })
    };
    if slices.iter().any(serves) {
        return None;
    }
    let why = format!("endpoints for service/{name} in {namespace:?} have no addresses with port name {port_name:?}");
    Some(Finding::unavailable("MissingEndpoints", why))
}

async fn slices(api: &Api, namespace: &str, service: &str) -> ApiResult<Vec<Value>> {
    let Some(d) = api.registry.find("discovery.k8s.io", "v1", "endpointslices") else { return Ok(Vec::new()) };
    let listing = api.store.list(List { prefix: &keys::prefix(d, Some(namespace)), ..List::default() }).await?;
    let mut found = Vec::new();
    for entry in &listing.entries {
        let slice = object::parse(d, entry)?;
        if slice["metadata"]["labels"]["kubernetes.io/service-name"] == service {
            found.push(slice);
        }
    }
    Ok(found)
}

impl Aggregator {
    fn set_resources(&self, name: &str, resources: Value) {
        self.discovered.write().entry(name.to_owned()).or_default().resources = Some(Arc::new(resources));
    }

    /// Drops what is known of APIServices that are gone.
    fn forget_others(&self, names: &[String]) {
        self.discovered.write().retain(|name, _| names.contains(name));
        self.remotes.write().retain(|name, _| names.contains(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_found_wanting_in_upstreams_words() {
        let service = json!({ "spec": { "ports": [{ "name": "https", "port": 443 }] } });
        let slice =
            json!({ "ports": [{ "name": "https", "port": 8443 }], "endpoints": [{ "addresses": ["10.0.0.1"] }] });
        let judged = |slices: &[Value], port| {
            judge_service(&service, slices, "s", "n", port).map(|finding| (finding.reason, finding.message))
        };
        let found = |reason, message: &str| Some((reason, message.to_owned()));
        assert_eq!(judged(&[], 80), found("ServicePortError", "service/s in \"n\" is not listening on port 80"));
        assert_eq!(judged(&[], 443), found("EndpointsNotFound", "cannot find endpointslices for service/s in \"n\""));
        let mut empty = slice.clone();
        empty["endpoints"][0]["conditions"]["ready"] = json!(false);
        let message = "endpoints for service/s in \"n\" have no addresses with port name \"https\"";
        assert_eq!(judged(&[empty], 443), found("MissingEndpoints", message));
        assert_eq!(judged(&[slice], 443), None);
    }

    #[test]
    fn a_condition_is_written_when_it_tells_something_new_and_keeps_its_time() {
        let now = jiff::Timestamp::from_second(60).unwrap();
        let lost = Finding::unavailable("ServiceNotFound", "gone");
        let written = changed_condition(&json!({}), &lost, now).unwrap();
        assert_eq!(written["lastTransitionTime"], "1970-01-01T00:01:00Z");
        let object = json!({ "status": { "conditions": [written] } });
        assert_eq!(changed_condition(&object, &lost, now), None);
        let later = jiff::Timestamp::from_second(120).unwrap();
        let other = changed_condition(&object, &Finding::unavailable("ServicePortError", "x"), later).unwrap();
        assert_eq!(other["lastTransitionTime"], "1970-01-01T00:01:00Z", "still unavailable");
        let back = changed_condition(&object, &Finding::local(), later).unwrap();
        assert_eq!(back["lastTransitionTime"], "1970-01-01T00:02:00Z");
    }
}
