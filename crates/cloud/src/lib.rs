//! OpenStack: what a cluster has in a cloud, clusters that are made there, and their removal without leftovers.
//!
//! Everything here is a client of two APIs: the Kubernetes API, by the controller framework of `mainstay-controllers`, and OpenStack's.
//!
//! * [`manager`]: the list of all controllers, read it first; [`context`]: what they share; [`conditions`]: how they are written
//! * [`openstack`]: the client of OpenStack's APIs: sessions, deadlines, retries, typed calls
//! * [`ledger`]: writes an entry to the API before anything is created in the cloud; [`debris`]: what exists there and belongs to nothing here
//! * [`routes`]: routes to pod ranges on the router, and their collection; [`volumes`]: claims as Cinder volumes;
//!   [`load_balancers`]: Services as Octavia load balancers
//! * [`provider_ids`]: which server each node is
//! * [`flight`]: flight control: repairs security groups, stuck and errored servers, roles and tags
//! * [`kluster_access`]: how controllers reach a Kluster; `kluster_kubeconfig`: what of a kubeconfig in a Secret is used; `bounded_client`, `watch_weight`: how much of its answers; [`kluster_observer`], [`observatory`]: the Nodes of all of them; [`metrics`]: what controllers did
//! * [`klusters`]: phases of Klusters, their control planes and certificates; [`pools`]: their machines
//! * [`hammertime`]: stops a Kluster's controllers while none of its machines is heard of; [`servicing`]: replaces and reboots old machines
//! * [`deorbit`]: removes what a cluster has in the cloud before it goes, with a receipt
//! * [`facade`]: the REST API of Kubernikus over Klusters; [`resource_list`]: servers from a list of roles

mod bounded_client;
pub mod conditions;
pub mod context;
pub mod debris;
pub mod deorbit;
pub mod facade;
pub mod flight;
pub mod hammertime;
pub mod kluster_access;
mod kluster_kubeconfig;
pub mod kluster_observer;
pub mod kluster_parts;
pub mod klusters;
pub mod ledger;
pub mod load_balancers;
pub mod manager;
pub mod metrics;
pub mod observatory;
pub mod openstack;
pub mod operation_metrics;
pub mod pools;
pub mod provider_ids;
pub mod resource_list;
pub mod routes;
pub mod servicing;
pub mod volumes;
mod watch_weight;
