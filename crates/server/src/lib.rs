//! The Kubernetes HTTP API over a store: what `kube-apiserver` does.
//!
//! A request passes, in this order:
//! 1. [`http`](mod@http): TLS, connection and request limits, routing, content negotiation
//! 2. [`auth`]: authentication by certificate or token, impersonation; [`authorize`]: what the user may do
//! 3. [`handler`]: which verb serves it
//! 4. [`verbs`]: one file per verb, for every kind
//! 5. [`admission`]: one list of plugins that complete or refuse a write, and add to its transaction
//! 6. [`objects`]: decoding, metadata, selectors, compare-and-set, stored bytes to wire bytes
//! 7. back in [`http`](mod@http): the reply, or a `Status` for every refusal
//!
//! Beside the resources: [`documents`] (discovery, OpenAPI, health, metrics), [`relay`] (requests that agents answer),
//! [`placement`] (pods onto nodes), [`webhook`] (requests to webhooks), [`background`] (bootstrap objects, expiry), [`pki`]
//! (certificate authorities) and [`client`] (a `kube::Client` within the process).

mod admission;
pub mod api;
pub mod auth;
mod authorize;
mod background;
pub mod client;
mod documents;
pub mod handler;
mod http;
mod objects;
pub mod pki;
mod placement;
pub mod relay;
pub mod settings;
mod verbs;
mod webhook;

pub use background::{bootstrap, event_expiry};
pub use documents::debug;
pub use objects::keys::volatile_prefixes;
pub use relay::agent_tls;

pub use self::http::{response_body as body, serve};
