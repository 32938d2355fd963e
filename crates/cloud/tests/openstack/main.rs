//! Tests against a real OpenStack, which `tools/openstack/up` starts once for all of them and leaves running; each has a project of its own.
//!
//! `tools/openstack/down --purge` ends it. `OPENSTACK_DIR` and `OPENSTACK_PORT_OFFSET` choose another.

mod attachments;
mod client;
mod facade;
mod fault_proxy;
mod fault_runs;
mod faults;
mod flight;
mod harness;
mod kills;
mod kluster_kills;
mod klusters;
mod load_balancers;
mod resource_list;
mod route_kills;
mod routes;
mod snapshots;
mod teardown;
mod volumes;
