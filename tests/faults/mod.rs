//! What bad input, clients that misbehave and faults of the machine get from the real binary.
//!
//! The client here is our own and speaks HTTP by hand over TLS, because the usual clients refuse to
//! send most of this.

mod support;

mod bad_bodies;
mod bad_heads;
mod bad_paths;
mod bad_queries;
mod credentials;
mod dry_run;
mod expired;
mod patches;
mod races;
mod refused_objects;
