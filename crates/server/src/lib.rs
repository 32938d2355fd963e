//! The Kubernetes HTTP API over a store: what `kube-apiserver` does.
//!
//! A request passes, in this order:
//! 1. [`http`](mod@http): TLS, connection and request limits, routing, content negotiation
//! 2. [`auth`]: authentication by certificate or token, impersonation; [`authorize`]: what the user may do
//! 3. [`handler`]: which verb serves it
//! 4. [`verbs`]: one file per verb, for every kind
//! 5. [`admission`]: one list of plugins that complete or refuse a write, and add to its transaction
//! 6. [`objects`]: decoding, metadata, selectors, compare-and-set, stored bytes to wire bytes
//! 7. [`storage`]: stored bytes, encrypted or written by upstream, to and from what the API writes
//! 8. back in [`http`](mod@http): the reply, or a `Status` for every refusal
//!
//! What everybody did is in the log of [`audit`]. Beside the resources: [`custom_resources`] (kinds that CustomResourceDefinitions define), [`documents`]
//! (discovery, OpenAPI, health, metrics), [`relay`] (requests that agents answer),
//! [`aggregator`] (groups that other API servers serve), [`flowcontrol`] (priority and fairness), [`placement`] (pods onto nodes), [`webhook`] (requests to webhooks), [`background`] (bootstrap objects, expiry), [`pki`]
//! (certificate authorities), [`fence`] (writes of leaders whose term is over) and [`client`] (a `kube::Client` within the process).

mod admission;
mod aggregator;
pub mod api;
pub mod audit;
pub mod auth;
mod authorize;
mod background;
pub mod client;
mod custom_resources;
mod documents;
pub mod fence;
mod flowcontrol;
pub mod handler;
mod http;
mod objects;
pub mod pki;
mod placement;
pub mod relay;
pub mod settings;
pub mod storage;
mod verbs;
mod webhook;

pub use authorize::rbac::controller_policy::{CONTROLLERS_USER, SCHEDULER_USER};
pub use background::{bootstrap, event_expiry, storage_migration};
pub use documents::debug;
pub use objects::keys::volatile_prefixes;
pub use relay::agent_tls;

pub use self::http::{response_body as body, serve};
