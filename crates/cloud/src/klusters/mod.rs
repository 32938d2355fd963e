//! Klusters: brings each through its phases, runs its control plane as pods here, and removes both when it goes.
//!
//! Pending → Creating → Running ⇄ Upgrading → Terminating. While it is Pending, ids that the spec leaves out are discovered in the
//! project ([`discovery`]); then certificates ([`certificates`]), a user of its own in the cloud ([`service_user`]) and its control plane
//! ([`control_plane`]) are made. It is Running once its pods are ready and its API answers. Migrations ([`migrations`]) come before anything
//! else. When it is deleted, nothing here happens before `deorbiter` and `launchctl` have let go: its API is needed until then.
//!
//! All of that is decided in [`plan`], from what was observed; nothing stores a step, so that a crash between any two is one more look.

mod certificates;
mod control_plane;
mod controller;
mod discovery;
mod metrics;
mod migrations;
mod names;
mod objects;
mod plan;
mod service_user;
mod settings;

pub use self::{
    controller::{KlusterContext, KlusterController, controller},
    discovery::observe_project,
    metrics::KlusterMetrics,
    names::{
        CLOUDS_YAML, KUBECONFIG, cloud_authorities_path, cloud_secret, kubeconfig_secret, pki_secret, service_name,
        workload_name,
    },
    settings::{
        InvalidDownload, InvalidImage, KlusterSettings, ProgramDownload, ServiceType, ServiceUserSettings, parse_images,
    },
};
