//! Scheduling rule by rule, and as properties of random clusters.

mod cluster;
mod decoded_views;
pub mod fixtures;
mod preemption;
mod properties;
mod reference;
mod roles;
mod rules;
