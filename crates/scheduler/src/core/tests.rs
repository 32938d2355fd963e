//! What the decision promises, rule by rule, and as properties of random clusters.

mod build;
mod cluster;
mod forms;
mod naive;
mod preemption;
mod properties;
mod rules;
