//! What bad input, clients that misbehave and faults of the machine get from the real binary.
//!
//! The client here is our own and speaks HTTP by hand over TLS, because the usual clients refuse to
//! send most of this.

mod support;

mod bad_bodies;
mod bad_bulk;
mod bad_heads;
mod bad_http2;
mod bad_paths;
mod bad_queries;
mod commands;
mod credentials;
mod crowds;
mod damage;
mod disk_full;
mod dry_run;
mod etcd;
mod expired;
mod kill;
mod lazy_watchers;
mod limits;
mod openapi_operations;
mod patches;
mod races;
mod refused_objects;
mod removed;
mod servers;
mod slow_clients;
mod stopping;
mod unwanted_bodies;
