//! HTTP: from accepted connections to parsed requests, and from results to responses.
//!
//! * [`serve`], [`connection`]: the TLS listener and its limits; [`request_body`], [`response_body`]: bodies
//! * [`route`], [`query`], [`negotiate`]: what a request asks for, and in which form
//! * [`fairness`], [`request_limits`]: how many requests run at once, and whose; [`request_log`]: the access log
//! * [`reply`], [`warnings`], [`websocket`]: responses; [`status`]: every refusal, as a Kubernetes `Status`
//! * [`outages`]: one log line when the store or an agent stops to answer

mod connection;
pub mod fairness;
mod handshakes;
pub mod negotiate;
pub mod outages;
pub mod query;
pub mod reply;
pub mod request_body;
pub mod request_limits;
pub mod request_log;
pub mod response_body;
pub mod route;
pub mod serve;
pub mod status;
pub mod warnings;
pub mod websocket;
pub mod write_options;
