//! Controllers: loops that bring the cluster into the state that its objects ask for, as clients of the API.
//!
//! Everything here goes through a `kube::Client`, so it runs within the server's process, in one
//! of its own, and against any Kubernetes API server.
//!
//! * [`manager`]: the list of all controllers, read it first
//! * [`runtime`]: the framework they share: caches, work queues, reconciling, events, metrics
//! * [`objects`]: objects as far as controllers read them; [`names`]: names of new objects
//! * [`namespace`]: deletes the content of a terminating namespace; [`namespace_defaults`]: what every namespace has
//! * [`garbage_collector`]: deletes dependents whose owners are gone
//! * [`cluster_role_aggregation`]: the rules of ClusterRoles that are the sum of others
//! * [`machines`]: Machines of nodes, and which are unaccounted for; [`releases`]: brings them to a version, in waves
//! * [`node_lifecycle`]: heartbeats, conditions and taints of nodes
//! * [`resource_claims`]: ResourceClaims made of templates, their end, and eviction by taints of devices
//! * [`resource_quota`]: counts what namespaces use of their quotas
//! * [`dependencies`]: needs of pods that nodes cannot judge, and cycles among them
//! * [`config_rollout`]: changed ConfigMaps and Secrets reach pods by rolling updates
//! * [`config_templates`]: renders ConfigTemplates and brings new versions to their consumers
//! * [`follow`]: moves pods whose leader has moved
//! * [`services`]: endpoints of Services, and drain acknowledgements
//! * [`volumes`]: binds claims, and provisions and reclaims volumes
//! * [`certificates`]: approves and signs certificate requests; [`expiry`]: deletes old Events and tokens
//! * [`autoscaling`]: scales workloads by metrics
//! * [`workloads`]: Deployments, StatefulSets, DaemonSets, Jobs and what belongs to them
//!
//! With a store that several servers share, one of them runs these controllers at a time. Should two ever overlap,
//! creates collide by name as far as [`names`] says, deletes carry the uid (and the version that was judged), and every
//! other write carries a version: whoever comes second is refused and reconciles again.

mod autoscaling;
mod certificates;
mod cluster_role_aggregation;
mod config_rollout;
mod config_templates;
mod dependencies;
mod expiry;
mod follow;
mod garbage_collector;
mod machines;
mod manager;
mod names;
mod namespace;
mod namespace_defaults;
mod node_lifecycle;
mod objects;
mod releases;
mod resource_claims;
mod resource_quota;
pub mod runtime;
mod service_account_tokens;
mod services;
mod storage_version_migration;
mod volumes;
mod workloads;

pub use certificates::{CertificateAuthority, CertificateRequest, Signer};
pub use config_templates::{
    notify::{CommandResult, ConsumerNotifier, PodCommand, PodRequest},
    renderer::{InputText, TemplateRenderer, render_texts},
};
pub use expiry::{ExpiringKind, ExpirySweeper, SweepError};
pub use manager::{Settings, run, run_with_metrics};
pub use runtime::{Clients, ControllerMetrics, metrics::Registry};
pub use service_account_tokens::{TokenSignError, TokenSigner, TokenSubject};
pub use storage_version_migration::{MigrationFailure, StorageMigrator};
