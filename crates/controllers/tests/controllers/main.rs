//! The controllers with the server they are made for, driven through `kube::Client`.

mod budgets;
mod cluster;
mod config_rollouts;
mod cron_jobs;
mod dependencies;
mod deployments;
mod garbage;
mod jobs;
mod least_rights;
mod machines;
mod namespaces;
mod node_loss;
mod quotas;
mod replicas;
mod resource_claims;
mod services;
mod sets;
mod volumes;
