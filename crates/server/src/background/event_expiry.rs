//! Deletes Events over their time to live, bootstrap tokens over their date and old PodCertificateRequests, many in one
//! transaction.
//!
//! When that happens is decided by the expiry controller; see `mainstay_controllers`.

use std::time::Duration;

use crate::{api::CommitError, auth::bootstrap_token, fence::Fence, handler::Handler};
use jiff::{SignedDuration, Timestamp};
use mainstay_store::{Compare, Expect, List, Op, Txn};
use serde::Deserialize;

const EVENTS: &str = "/registry/events/";
const POD_CERTIFICATE_REQUESTS: &str = "/registry/podcertificaterequests/";
/// How long a PodCertificateRequest stays, answered or not; upstream's.
const POD_CERTIFICATE_REQUEST_TTL: SignedDuration = SignedDuration::from_mins(15);
/// Keys looked at, and deleted, at a time.
const STRIDE: usize = 500;
const MOST_OPS: usize = 64;

/// How often it is worth while to look for what expired.
pub fn interval(handler: &Handler) -> Duration {
    (handler.api.settings.event_ttl / 20).clamp(Duration::from_millis(200), Duration::from_secs(60))
}

/// Deletes bootstrap tokens that are over their date.
pub async fn sweep_bootstrap_tokens(
    handler: &Handler,
    now: Timestamp,
    fence: Option<&Fence>,
) -> Result<(), CommitError> {
    bootstrap_token::sweep(&handler.api, now, fence).await
}

/// Deletes Events that happened last longer ago than their time to live.
pub async fn sweep_events(handler: &Handler, now: Timestamp, fence: Option<&Fence>) -> Result<(), CommitError> {
    let ttl = handler.api.settings.event_ttl;
    let oldest = SignedDuration::try_from(ttl).ok().and_then(|ttl| now.checked_sub(ttl).ok()).unwrap_or(Timestamp::MIN);
    sweep(handler, EVENTS, |json| last_seen(json).is_some_and(|seen| seen < oldest), fence).await
}

/// Deletes PodCertificateRequests that nobody needs any more: who asked has the certificate, or asks again.
pub async fn sweep_pod_certificate_requests(
    handler: &Handler,
    now: Timestamp,
    fence: Option<&Fence>,
) -> Result<(), CommitError> {
    let oldest = now.checked_sub(POD_CERTIFICATE_REQUEST_TTL).unwrap_or(Timestamp::MIN);
    let is_old = |json: &[u8]| creation(json).is_some_and(|created| created < oldest);
    sweep(handler, POD_CERTIFICATE_REQUESTS, is_old, fence).await
}

/// Deletes what has expired of everything that is stored below a prefix.
async fn sweep(
    handler: &Handler,
    prefix: &str,
    is_expired: impl Fn(&[u8]) -> bool,
    fence: Option<&Fence>,
) -> Result<(), CommitError> {
    let mut start: Option<String> = None;
    loop {
        let query = List { prefix, start: start.as_deref(), limit: Some(STRIDE), at: None };
        let listing = handler.store().list(query).await?;
        let expired: Vec<_> = listing.entries.iter().filter(|entry| is_expired(&entry.value)).collect();
        for batch in expired.chunks(MOST_OPS) {
            let mut txn = Txn::default();
            for entry in batch {
                txn.compares.push(Compare { key: entry.key.clone(), expect: Expect::ModifiedAt(entry.modified) });
                txn.ops.push(Op::Delete { key: entry.key.clone() });
            }
            handler.api.commit(txn, fence).await?; // a conflict means news: look again next time
        }
        match listing.entries.last() {
            Some(last) if listing.remaining > 0 => start = Some(format!("{}\0", last.key)),
            _ => return Ok(()),
        }
    }
}

#[derive(Deserialize)]
struct Created {
    metadata: Born,
}

fn creation(json: &[u8]) -> Option<Timestamp> {
    serde_json::from_slice::<Created>(json).ok()?.metadata.creation_timestamp
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventTimes {
    metadata: Born,
    last_timestamp: Option<Timestamp>,
    event_time: Option<Timestamp>,
    series: Option<Series>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Born {
    creation_timestamp: Option<Timestamp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Series {
    last_observed_time: Option<Timestamp>,
}

/// When an event last happened: each repetition renews its life.
fn last_seen(json: &[u8]) -> Option<Timestamp> {
    let times: EventTimes = serde_json::from_slice(json).ok()?;
    let series = times.series.and_then(|series| series.last_observed_time);
    [times.metadata.creation_timestamp, times.last_timestamp, times.event_time, series].into_iter().flatten().max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_event_is_as_young_as_its_last_repetition() {
        let json = br#"{"metadata":{"creationTimestamp":"2026-01-01T00:00:00Z"},"lastTimestamp":"2026-01-01T01:00:00Z",
            "eventTime":null,"series":{"count":2,"lastObservedTime":"2026-01-01T02:00:00.000001Z"}}"#;
        assert_eq!(last_seen(json).unwrap().to_string(), "2026-01-01T02:00:00.000001Z");
        assert_eq!(last_seen(b"not an event"), None);
    }
}
