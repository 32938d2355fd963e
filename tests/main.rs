//! Black-box tests: the real binary, driven by the clients that people use.
//!
//! Every test starts a cluster of its own, so that tests share nothing and run side by side. The
//! clients come from `tools/test-deps`; a test whose client is missing fails and says so.

mod harness;

mod aggregation;
mod api_from_pods;
mod autoscaling;
mod cluster_settings;
mod columns;
mod config_rollouts;
mod config_templates;
mod containerd_lifecycle;
mod convert_units;
mod custom_resources;
mod devices;
mod encryption;
mod examples;
mod exclusive_drains;
mod faults;
mod fencing;
mod full_disk;
mod healing;
mod javascript_client;
mod jobs;
mod joining;
mod kube_rs;
mod kubectl_apply;
mod kubectl_change;
mod kubectl_create;
mod kubectl_describe;
mod kubectl_errors;
mod kubectl_get;
mod kubectl_pods;
mod kubectl_server_side_apply;
mod lifecycle;
mod machines;
mod moves;
mod needs;
mod node_confinement;
mod node_drain;
mod node_loss;
mod offers;
mod other_users;
mod outages;
mod outliving;
mod placement;
mod pods;
mod protection;
mod python_client;
mod rbac;
mod releases;
mod restarts;
mod rollouts;
mod services;
mod services_api;
mod sets;
mod several_servers;
mod tokens;
mod upgrades;
mod watch_resume;
mod why;
