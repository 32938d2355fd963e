//! What every worker works with.

use std::sync::Arc;

use kube::Client;
use mainstay_runtime::Runtime;

use crate::{
    events::Events, heal::Healer, hook::Hooks, node::Evictions, objects::Objects, pods::Pods, probe::Probes,
    services::Traffic, settings::Settings, sources::mirror::Mirrors, spec::Specs, user_ids::UserIds, volumes::Volumes,
    wake::Wake,
};

pub struct Tools {
    pub settings: Arc<Settings>,
    /// As in `containerID: mainstay://…`.
    pub runtime_name: String,
    pub client: Client,
    pub runtime: Arc<dyn Runtime>,
    pub pods: Arc<Pods>,
    pub wake: Wake,
    pub events: Events,
    pub objects: Arc<Objects>,
    pub specs: Specs,
    pub volumes: Arc<Volumes>,
    pub probes: Probes,
    pub hooks: Hooks,
    pub healer: Arc<Healer>,
    pub evictions: Evictions,
    pub traffic: Arc<Traffic>,
    pub mirrors: Arc<Mirrors>,
    pub user_ids: UserIds,
    /// Containers are made by a CRI runtime.
    pub is_cri: bool,
}
