//! The REST API of Kubernikus over Klusters, for clients that know Keystone and not Kubernetes.
//!
//! A request shows a Keystone token of a project in `X-Auth-Token`; it sees that project's Klusters and no others, and what it may do follows from
//! the token's roles ([`policy`]). Everything is done by the Kubernetes API, with its rules: objects are those of `kubernikus.sap.cc/v1` in one
//! namespace, named `<name>-<project>`. Requests are bounded in size, time and number ([`server`]).
//!
//! It listens where it is told to, and not at all otherwise. It speaks plain HTTP: whatever terminates TLS stands before it.

mod handlers;
mod model;
mod policy;
mod server;

pub use self::{
    handlers::{Facade, FacadeSettings, TokenValidator},
    server::{BindError, FacadeServer},
};
