//! Carries out what was decided about pools: calls of the cloud, of the kluster's API and of the ledger.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Node, Secret};
use kube::{
    Api,
    api::{DeleteParams, PostParams, Preconditions},
};
use mainstay_api::{
    cloud::{cloud_resource::ResourceType, kluster::Kluster, node_pool::PoolSpec},
    machine::{Machine, MachineSpec},
    wellknown::namespace::SYSTEM,
};
use mainstay_controllers::runtime::{ApiError, error};

use super::{
    bootstrap_token::BootstrapToken,
    controller::{PoolSettings, short_name},
    members::{MemberState, ServerView, new_member_name},
    new_server::{ServerParts, new_server, node_labels, server_group_name},
    problems::{CloudOffers, ImageOffer, PoolProblem, check_pool, judge_create_error},
    server_driver::{GroupDriver, ServerDriver},
    terminate::TerminationAction,
    user_data::{self, MachineSetup},
};
use crate::{
    context::CloudContext,
    deorbit::receipt::kluster_owner,
    kluster_access::{KlusterAccess, KlusterClient},
    ledger::{Intent, LedgerEntry, LedgerError},
    openstack::{
        CloudError, Session,
        compute::{ComputeQuota, Flavor, Server, ServerFilter},
        network::RouterRoute,
    },
    routes::{records::parse_route, router::RouterClient},
};

pub struct Launcher {
    pub context: Arc<CloudContext>,
    pub access: Arc<KlusterAccess>,
    pub settings: PoolSettings,
}

/// What was asked of the cloud for one look at a Kluster, so that several pools ask once.
#[derive(Default)]
pub struct PoolChecks {
    shared: Option<(Vec<Flavor>, Vec<String>, usize, ComputeQuota)>,
    images: BTreeMap<String, Vec<ImageOffer>>,
}

fn failed(doing: &'static str) -> impl FnOnce(CloudError) -> ApiError {
    move |error| ApiError::other(doing, error)
}

impl From<Server> for ServerView {
    fn from(server: Server) -> Self {
        let state = MemberState::from_nova(&server.task_state, &server.vm_state, server.power_state);
        let addresses = server.all_addresses().map(str::to_owned).collect();
        let kept = server.volumes_attached.into_iter().filter(|volume| !volume.delete_on_termination);
        Self { id: server.id, name: server.name, state, volumes: kept.map(|volume| volume.id).collect(), addresses }
    }
}

impl Launcher {
    async fn session(&self, kluster: &Kluster) -> Result<Session, ApiError> {
        self.access.session(&self.context, kluster).await
    }

    /// All servers of the Kluster's project.
    pub async fn list_servers(&self, kluster: &Kluster) -> Result<Vec<ServerView>, ApiError> {
        let servers = self.session(kluster).await?.compute().list_servers(&ServerFilter::default()).await;
        Ok(servers.map_err(failed("list servers"))?.into_iter().map(ServerView::from).collect())
    }

    /// Why a pool cannot have so many more servers.
    pub async fn check(
        &self,
        kluster: &Kluster,
        pool: &PoolSpec,
        needed: usize,
        checks: &mut PoolChecks,
    ) -> Result<Option<PoolProblem>, ApiError> {
        let offers = self.look_up(kluster, pool, checks).await?;
        let openstack = &kluster.spec.openstack;
        let group = security_group(kluster);
        Ok(check_pool(pool, group, &openstack.network_id, &offers, needed).err())
    }

    async fn look_up(
        &self,
        kluster: &Kluster,
        pool: &PoolSpec,
        checks: &mut PoolChecks,
    ) -> Result<CloudOffers, ApiError> {
        let session = self.session(kluster).await?;
        if checks.shared.is_none() {
            let compute = session.compute();
            let project = session.project_id().await.map_err(failed("find the project"))?;
            let flavors = compute.list_flavors().await.map_err(failed("list flavors"))?;
            let zones = compute.list_availability_zones().await.map_err(failed("list availability zones"))?;
            let groups = session.network().list_security_groups(Some(security_group(kluster))).await;
            let groups = groups.map_err(failed("list security groups"))?;
            // An administrator sees those of other projects as well.
            let groups =
                groups.iter().filter(|group| group.project_id.is_empty() || group.project_id == project).count();
            let quota = compute.show_quota(&project).await.map_err(failed("read the compute quota"))?;
            checks.shared = Some((flavors, zones, groups, quota));
        }
        let image = image_name(pool).to_owned();
        if !checks.images.contains_key(&image) {
            let found = session.image().list_images(Some(&image)).await.map_err(failed("list images"))?;
            let active = found.into_iter().filter(|image| image.status == "active");
            let mut offers: Vec<ImageOffer> = active.map(ImageOffer::from).collect();
            if offers.is_empty() {
                let by_id = session.image().show_image(&image).await.map_err(failed("read image"))?;
                offers.extend(by_id.filter(|image| image.status == "active").map(ImageOffer::from));
            }
            checks.images.insert(image.clone(), offers);
        }
        let (flavors, zones, security_groups, quota) = checks.shared.clone().unwrap_or_default();
        let images = checks.images.get(&image).cloned().unwrap_or_default();
        Ok(CloudOffers { flavors, images, zones, security_groups, quota })
    }

    /// Creates a server and everything it needs to join. Inside: its name, or why the pool cannot have it; nothing half made stays.
    pub async fn create(
        &self,
        kluster: &Kluster,
        pool: &PoolSpec,
        name: Option<&str>,
    ) -> Result<Result<String, PoolProblem>, ApiError> {
        let short = short_name(kluster);
        let name =
            name.map_or_else(|| new_member_name(short, &pool.name, |below| fastrand::usize(..below)), str::to_owned);
        let (session, access) = (self.session(kluster).await?, self.access.client(&self.context, kluster).await?);
        let offers = self.look_up(kluster, pool, &mut PoolChecks::default()).await?;
        let checked = check_pool(pool, security_group(kluster), &kluster.spec.openstack.network_id, &offers, 1);
        let (flavor, image) = match checked {
            Ok(found) => found,
            Err(problem) => return Ok(Err(problem)),
        };
        let token = BootstrapToken::generate().map_err(|error| ApiError::other("make a bootstrap token", error))?;
        let mut setup = machine_setup(kluster, pool, &name, &access, &token);
        setup.download.clone_from(&self.context.klusters.agent);
        let user_data = match user_data::render(&setup, image.user_data) {
            Ok(data) => data,
            Err(error) => return Ok(Err(PoolProblem::new(&pool.name, "labels", "UserDataTooLong", error.to_string()))),
        };
        let server_group = self.ensure_group(kluster, pool, &session).await?;
        let parts = ServerParts {
            name: name.clone(),
            kluster: short.to_owned(),
            api_version: kluster.status.as_ref().map(|status| status.apiserver_version.clone()).unwrap_or_default(),
            flavor_id: flavor.id,
            image_id: image.id,
            network_id: kluster.spec.openstack.network_id.clone(),
            security_group: security_group(kluster).to_owned(),
            user_data,
            server_group,
        };
        let secrets: Api<Secret> = Api::namespaced(access.client.clone(), SYSTEM);
        let secret = token.secret(&name, self.context.clock.now());
        let written = secrets.create(&PostParams::default(), &secret).await;
        written.map_err(ApiError::when("write the bootstrap token to the kluster"))?;
        let driver = ServerDriver { session: session.clone(), server: Some(new_server(pool, parts)) };
        let intent = self.intent(kluster, &session, ResourceType::Server, &name);
        match self.context.ledger.ensure(&intent, &driver).await {
            Ok(_) => {
                expect_machine(&access, &name, &pool.name).await;
                Ok(Ok(name))
            }
            Err(error) => {
                // Nobody will join with it.
                let _ = secrets.delete(&token.secret_name(), &DeleteParams::default()).await;
                if error.settles_at().is_some() {
                    return Ok(Err(PoolProblem::new(&pool.name, "", "ServerUnsettled", error.to_string())));
                }
                match error.cloud().and_then(|cloud| judge_create_error(pool, cloud)) {
                    Some(problem) => Ok(Err(problem)),
                    None => Err(error.into_api_error(format!("create server {name}"))),
                }
            }
        }
    }

    fn intent(&self, kluster: &Kluster, session: &Session, resource: ResourceType, name: &str) -> Intent {
        Intent {
            cloud: session.cloud_name().to_owned(),
            project: kluster.spec.openstack.project_id.clone(),
            resource,
            name: name.to_owned(),
            slot: name.to_owned(),
            parent: String::new(),
            owner: kluster_owner(kluster),
        }
    }

    async fn ensure_group(
        &self,
        kluster: &Kluster,
        pool: &PoolSpec,
        session: &Session,
    ) -> Result<Option<String>, ApiError> {
        let Some(affinity) = self.settings.affinity else { return Ok(None) };
        let name = server_group_name(kluster.name(), &pool.name);
        let driver = GroupDriver { session: session.clone(), name: name.clone(), policy: affinity.policy() };
        let intent = self.intent(kluster, session, ResourceType::ServerGroup, &name);
        let entry = self.context.ledger.ensure(&intent, &driver).await;
        Ok(entry.map_err(|error| error.into_api_error(format!("create server group {name}")))?.id)
    }

    fn entry(&self, kluster: &Kluster, resource: ResourceType, name: &str) -> Option<LedgerEntry> {
        let entries = self.context.ledger.entries_of(kluster.metadata.uid.as_deref().unwrap_or_default());
        entries.into_iter().find(|entry| entry.resource == resource && entry.cloud_name == name)
    }

    pub async fn delete(&self, kluster: &Kluster, id: &str, name: &str) -> Result<(), ApiError> {
        let session = self.session(kluster).await?;
        match self.entry(kluster, ResourceType::Server, name) {
            Some(entry) => {
                let driver = ServerDriver { session, server: None };
                match self.context.ledger.remove(&entry, &driver).await {
                    Ok(_) | Err(LedgerError::Unsettled { .. }) => Ok(()), // the next look goes on
                    Err(error) => Err(error.into_api_error(format!("delete server {name}"))),
                }
            }
            None if id.is_empty() => Ok(()),
            None => session.compute().delete_server(id).await.map(drop).map_err(failed("delete server")),
        }
    }

    /// Writes down the id of a server that was created without an answer.
    pub async fn adopt(&self, kluster: &Kluster, name: &str, id: &str) -> Result<(), ApiError> {
        let Some(entry) = self.entry(kluster, ResourceType::Server, name) else { return Ok(()) };
        self.context.ledger.created(&entry, id).await.map(drop)
    }

    /// Ends the entry of a server that is not wanted any more, or that the cloud does not have.
    pub async fn forget(&self, kluster: &Kluster, name: &str) -> Result<(), ApiError> {
        self.delete(kluster, "", name).await
    }

    /// Removes the Node of a server that is gone, and its Machine.
    pub async fn remove_node(&self, kluster: &Kluster, name: &str, uid: &str) -> Result<(), ApiError> {
        let access = self.access.client(&self.context, kluster).await?;
        let preconditions = Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        let nodes: Api<Node> = Api::all(access.client.clone());
        match nodes.delete(name, &params).await {
            Ok(_) => {}
            Err(failure) if error::has_code(&failure, 404) || error::has_code(&failure, 409) => {}
            Err(failure) => return Err(ApiError::new(format!("delete node {name}"), failure)),
        }
        let machines: Api<Machine> = Api::all(access.client);
        match machines.delete(name, &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(failure) if error::has_code(&failure, 404) => Ok(()), // none, or the kind is not served
            Err(failure) => Err(ApiError::new(format!("delete machine {name}"), failure)),
        }
    }

    pub async fn list_routes(&self, kluster: &Kluster) -> Result<Vec<RouterRoute>, ApiError> {
        let router = &kluster.spec.openstack.router_id;
        if router.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.session(kluster).await?.network().show_router(router).await.map_err(failed("read router"))?;
        Ok(found.map(|router| router.routes).unwrap_or_default())
    }

    /// Ids and names of the Kluster's server groups.
    pub async fn list_groups(&self, kluster: &Kluster, pools: &[PoolSpec]) -> Result<Vec<(String, String)>, ApiError> {
        let has_entry = |name: &str| self.entry(kluster, ResourceType::ServerGroup, name).is_some();
        let names: Vec<String> = pools.iter().map(|pool| server_group_name(kluster.name(), &pool.name)).collect();
        let groups = self.session(kluster).await?.compute().list_server_groups().await;
        let groups = groups.map_err(failed("list server groups"))?.into_iter();
        let ours = groups.filter(|group| names.contains(&group.name) || has_entry(&group.name));
        Ok(ours.map(|group| (group.id, group.name)).collect())
    }

    /// Ends entries of a Kluster that goes whose server, group, route or address pair the cloud does not have.
    pub async fn settle_entries(
        &self,
        kluster: &Kluster,
        entries: &[LedgerEntry],
        servers: &[ServerView],
        routes: &[RouterRoute],
    ) -> Result<(), ApiError> {
        for entry in entries {
            let is_there =
                servers.iter().any(|server| entry.id.as_deref() == Some(&server.id) || server.name == entry.cloud_name);
            match entry.resource {
                ResourceType::Server if !is_there => self.forget(kluster, &entry.cloud_name).await?,
                ResourceType::ServerGroup if servers.is_empty() => {
                    self.delete_group(kluster, &entry.cloud_name).await?;
                }
                ResourceType::Route if !recorded_route(entry).is_some_and(|route| routes.contains(&route)) => {
                    self.context.ledger.gone(entry).await?;
                }
                // While a server is there, its pods may still use the range.
                ResourceType::AddressPair if servers.is_empty() => self.disallow(kluster, entry).await?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes a pod range off a port that outlived its server; mostly there is none.
    async fn disallow(&self, kluster: &Kluster, entry: &LedgerEntry) -> Result<(), ApiError> {
        let session = self.session(kluster).await?;
        if session.network().show_port(&entry.parent).await.map_err(failed("read port"))?.is_some() {
            let router = RouterClient::new(&session, &kluster.spec.openstack.router_id);
            router.disallow(&entry.parent, &entry.cloud_name).await.map_err(failed("take the range off the port"))?;
        }
        self.context.ledger.gone(entry).await
    }

    async fn delete_group(&self, kluster: &Kluster, name: &str) -> Result<(), ApiError> {
        let session = self.session(kluster).await?;
        let driver = GroupDriver { session: session.clone(), name: name.to_owned(), policy: "" };
        match self.entry(kluster, ResourceType::ServerGroup, name) {
            Some(entry) => match self.context.ledger.remove(&entry, &driver).await {
                Ok(_) | Err(LedgerError::Unsettled { .. }) => Ok(()),
                Err(error) => Err(error.into_api_error(format!("delete server group {name}"))),
            },
            None => Ok(()),
        }
    }

    pub async fn terminate(&self, kluster: &Kluster, action: &TerminationAction) -> Result<(), ApiError> {
        let session = self.session(kluster).await?;
        match action {
            TerminationAction::Detach { server, volume } => {
                match session.compute().detach_volume(server, volume).await {
                    Ok(_) => Ok(()),
                    // Under way, or in a state that forbids it: the next look tells.
                    Err(error) if error.is_conflict() || error.status() == Some(400) => Ok(()),
                    Err(error) => Err(ApiError::other("detach volume", error)),
                }
            }
            TerminationAction::RemoveRoutes(routes) => {
                let router = &kluster.spec.openstack.router_id;
                session.network().remove_routes(router, routes).await.map(drop).map_err(failed("remove routes"))
            }
            TerminationAction::Delete { id, name } => self.delete(kluster, id, name).await,
            TerminationAction::DeleteGroup { id, name } => {
                self.delete_group(kluster, name).await?;
                session.compute().delete_server_group(id).await.map(drop).map_err(failed("delete server group"))
            }
        }
    }
}

/// The route that an entry of the ledger stands for.
pub fn recorded_route(entry: &LedgerEntry) -> Option<RouterRoute> {
    let is_route = entry.resource == ResourceType::Route;
    let route = parse_route(&entry.cloud_name).filter(|_| is_route)?;
    Some(RouterRoute { destination: route.destination, nexthop: route.next_hop })
}

fn security_group(kluster: &Kluster) -> &str {
    let name = kluster.spec.openstack.security_group_name.as_str();
    if name.is_empty() { mainstay_api::cloud::kluster::SECURITY_GROUP } else { name }
}

fn image_name(pool: &PoolSpec) -> &str {
    if pool.image.is_empty() { mainstay_api::cloud::node_pool::STOCK_IMAGE } else { &pool.image }
}

fn machine_setup(
    kluster: &Kluster,
    pool: &PoolSpec,
    name: &str,
    access: &KlusterClient,
    token: &BootstrapToken,
) -> MachineSetup {
    let spec = &kluster.spec;
    MachineSetup {
        name: name.to_owned(),
        server: access.server.clone(),
        token: token.join_token(&access.authority),
        pod_range: spec.cluster_cidr.clone().unwrap_or_default(),
        service_range: spec.service_cidr.clone(),
        cluster_domain: spec.dns_domain.clone(),
        labels: node_labels(pool),
        taints: pool.taints.clone(),
        ssh_public_key: spec.ssh_public_key.clone(),
        download: None,
    }
}

/// A member of a pool is expected in the kluster, where that has Machines; a machine that never joins is then unaccounted for there.
async fn expect_machine(access: &KlusterClient, name: &str, pool: &str) {
    let mut machine = Machine::new(name, MachineSpec { expected: true, ..MachineSpec::default() });
    machine.metadata.labels = Some([(super::new_server::POOL_LABEL.to_owned(), pool.to_owned())].into());
    let machines: Api<Machine> = Api::all(access.client.clone());
    match machines.create(&PostParams::default(), &machine).await {
        Ok(_) => {}
        Err(failure) if error::has_code(&failure, 404) || error::has_code(&failure, 409) => {}
        Err(failure) => {
            let error = mainstay_errors::error_chain(&failure);
            tracing::warn!(machine = name, error, "machine is not written to the kluster as expected");
        }
    }
}
