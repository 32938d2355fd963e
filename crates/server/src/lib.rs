//! The Kubernetes HTTP API over a store.
//!
//! A request passes, in this order:
//! * [`serve`]: TLS, connection limits; [`auth`]: who asks, by certificate or token
//! * [`fairness`], [`request_limits`], [`request_body`], [`large_work`]: nobody holds up the others
//! * [`handler`]: who may ([`authorize`], [`node_restriction`]), what is asked ([`route`], [`query`], [`negotiate`])
//! * [`verbs`]: one file per verb, for every kind; they share [`incoming`] (bodies), [`change`]
//!   (read-change-compare-and-set), [`admission`] (what a write depends on), [`metadata`]
//! * [`object`]: objects between store and wire; [`keys`]: where they are stored; [`prune`]: some of their fields
//! * [`reply`] and, for every refusal, [`status`]
//!
//! Beside the resources: [`relay`] (what machines answer), [`discovery`], [`openapi`], [`documents`] (version, backup), [`health`], [`debug`],
//! [`bootstrap`] (what every cluster has), [`servers`] (who answers for the API), [`expire`] (events), [`pki`] (certificates) and
//! [`client`] (a `kube::Client` within the process).

mod admission;
pub mod agent_tls;
mod allocation;
pub mod api;
pub mod auth;
mod authorize;
pub mod body;
pub mod bootstrap;
mod certificate_limit;
mod change;
pub mod client;
mod connection;
pub mod debug;
mod discovery;
mod documents;
pub mod expire;
mod fairness;
mod filter;
pub mod handler;
mod health;
mod incoming;
mod issuer;
mod keys;
mod large_work;
mod members;
mod metadata;
mod metrics;
mod negotiate;
mod node_restriction;
mod object;
mod openapi;
pub mod pki;
mod placement;
mod pod_ranges;
mod priority;
mod prune;
mod query;
pub mod relay;
mod reply;
mod request_body;
mod request_limits;
mod request_log;
mod reviews;
mod route;
pub mod serve;
mod servers;
mod service_accounts;
pub mod settings;
pub mod signer;
mod status;
mod storage_class;
mod store_space;
mod verbs;
mod warnings;
