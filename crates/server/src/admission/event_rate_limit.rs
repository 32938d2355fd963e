//! EventRateLimit: how large an Event of a node may be, and how many a node may write.
//!
//! Whoever has a node's certificate may write Events in every namespace, and the store keeps each for an hour. So a node
//! has a token bucket, as with upstream's EventRateLimit of type `User`: without a token a write is answered with 429 and
//! `Retry-After`. Creates, updates and patches count. The buckets are those of one server: at several servers a node
//! has several. Other users are not limited here; the server's own components are trusted, and administrators may fill
//! the store by any kind.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use mainstay_api::descriptor::Descriptor;
use parking_lot::Mutex;
use serde_json::Value;

use super::{Plugin, Request, TxnAdditions};
use crate::http::status::{ApiError, ApiResult};

/// The largest Event, as JSON. Messages have 1024 bytes at most; the rest is room for names, series and annotations.
const MAX_BYTES: usize = 16 << 10;
/// Tokens of a full bucket: a node that starts its 110 pods at once writes about six Events for each.
const BURST: f64 = 1000.0;
/// Tokens that a bucket regains per second.
const QPS: f64 = 10.0;

pub struct EventRateLimit;

#[async_trait]
impl Plugin for EventRateLimit {
    fn name(&self) -> &'static str {
        "EventRateLimit"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.kind == "Event"
    }

    async fn admit_create(&self, request: &Request<'_>, object: &mut Value, _txn: &mut TxnAdditions) -> ApiResult<()> {
        check(request, object, Instant::now())
    }

    fn review_update(&self, request: &Request<'_>, submitted: &Value, _old: &Value) -> ApiResult<()> {
        check(request, submitted, Instant::now())
    }
}

fn check(request: &Request<'_>, event: &Value, now: Instant) -> ApiResult<()> {
    let Some(node) = request.user.node_name() else { return Ok(()) };
    request.api.event_rates.try_accept(node, now).map_err(|wait| {
        let seconds = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).saturating_add(1);
        ApiError::event_rate_exceeded(&request.user.name, seconds)
    })?;
    if event.to_string().len() > MAX_BYTES {
        return Err(ApiError::too_large(format!("an event of a node may have {MAX_BYTES} bytes")));
    }
    Ok(())
}

/// The token bucket of every node that wrote Events of late.
#[derive(Default)]
pub struct EventRates(Mutex<HashMap<String, TokenBucket>>);

struct TokenBucket {
    tokens: f64,
    refilled: Instant,
}

impl TokenBucket {
    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.refilled);
        self.tokens = (self.tokens + elapsed.as_secs_f64() * QPS).min(BURST);
        self.refilled = self.refilled.max(now);
    }
}

impl EventRates {
    /// Takes a token of this node, or says how long it has to wait for one.
    fn try_accept(&self, node: &str, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.0.lock();
        let Some(bucket) = buckets.get_mut(node) else {
            // A full bucket is as good as none: those of nodes that have been quiet are not kept.
            buckets.retain(|_, bucket| {
                bucket.refill(now);
                bucket.tokens < BURST
            });
            buckets.insert(node.to_owned(), TokenBucket { tokens: BURST - 1.0, refilled: now });
            return Ok(());
        };
        bucket.refill(now);
        if bucket.tokens < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.tokens) / QPS));
        }
        bucket.tokens -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mainstay_api::registry::Registry;
    use mainstay_store::Memory;
    use serde_json::json;

    use super::*;
    use crate::{
        api::{Api, Target},
        auth::User,
        settings::Settings,
    };

    #[test]
    fn a_node_gets_tokens_back_and_shares_none_with_others() {
        let (rates, start) = (EventRates::default(), Instant::now());
        let accepted = |node: &str, now| (0..2000).filter(|_| rates.try_accept(node, now).is_ok()).count();
        assert_eq!(accepted("a", start), 1000);
        assert_eq!(rates.try_accept("a", start), Err(Duration::from_millis(100)));
        assert_eq!(accepted("b", start), 1000);
        assert_eq!(accepted("a", start + Duration::from_secs(3)), 30);
        assert_eq!(accepted("a", start + Duration::from_secs(3600)), 1000);
        assert_eq!(rates.try_accept("c", start + Duration::from_secs(7200)), Ok(()));
        assert_eq!(rates.0.lock().len(), 1, "buckets of quiet nodes are dropped");
    }

    #[test]
    fn events_of_nodes_are_small_and_few_and_those_of_others_are_not_limited() {
        let api = Api::new(Registry::builtin(), Arc::new(Memory::new()), Settings::default());
        let (now, node, admin) = (Instant::now(), User::node("a"), User::internal("x"));
        let check = |group: &str, user: &User, length: usize| {
            let d = api.registry.find(group, "v1", "events").unwrap().clone();
            assert!(EventRateLimit.handles(&d));
            let target = Target { d, namespace: Some("default".into()), name: "e".into() };
            let event = json!({"message": "x".repeat(length)});
            let (query, notes) = Default::default();
            let request = Request { user, ..Request::for_test(&api, &target, &query, &notes) };
            check(&request, &event, now).map_err(|error| error.status())
        };
        assert_eq!(check("", &node, 1024), Ok(()));
        assert_eq!(check("", &node, MAX_BYTES).unwrap_err()["code"], 413);
        assert_eq!(check("", &admin, MAX_BYTES), Ok(()));
        for _ in 0..998 {
            assert_eq!(check("events.k8s.io", &node, 1), Ok(()));
        }
        let refused = check("", &node, 1).unwrap_err();
        assert_eq!((&refused["code"], &refused["reason"]), (&json!(429), &json!("TooManyRequests")));
        assert_eq!(refused["message"], "limit reached on type User for key system:node:a");
        assert_eq!(refused["details"]["retryAfterSeconds"], 1);
        assert_eq!(check("", &admin, 1), Ok(()));
    }
}
