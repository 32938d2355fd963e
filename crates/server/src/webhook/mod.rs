//! Webhooks: HTTPS servers of others that the API asks while it serves a request.

pub mod client;
