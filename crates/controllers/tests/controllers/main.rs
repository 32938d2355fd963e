//! The controllers with the server they are made for, driven through `kube::Client`.

mod budgets;
mod cluster;
mod cron_jobs;
mod deployments;
mod garbage;
mod jobs;
mod least_rights;
mod machines;
mod namespaces;
mod quotas;
mod replicas;
mod services;
mod sets;
mod volumes;
