//! The controllers with the server they are made for, driven through `kube::Client`.

mod autoscaling;
mod budgets;
mod certificates;
mod cluster;
mod config_rollouts;
mod config_templates;
mod cron_jobs;
mod dependencies;
mod deployments;
mod followers;
mod garbage;
mod jobs;
mod least_rights;
mod machines;
mod migrations;
mod namespaces;
mod node_loss;
mod quotas;
mod release_workloads;
mod releases;
mod replicas;
mod resource_claims;
mod services;
mod sets;
mod tokens;
mod volumes;
