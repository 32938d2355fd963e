//! Webhooks: requests of this server to programs that users run.
//!
//! * [`client`]: one review to one webhook, for any kind of review
//! * [`circuit_breaker`]: which backends are known to be dead

mod circuit_breaker;
pub mod client;
