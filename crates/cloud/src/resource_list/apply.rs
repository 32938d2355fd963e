//! Carries out what a resource list asks for: creates servers, waits for them, gives them floating IPs, and deletes all of that by its tag.
//!
//! Every step is found again by name if a run ends in its middle: a server by its own, a floating IP by its description. A create whose answer
//! was lost is looked for before anything is said to have failed.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::{
    list::{Mappings, ResourceList},
    plan::{ListedServer, MissingServer, plan_apply, servers_with_tag},
};
use crate::openstack::{
    CloudError, Session,
    compute::{GroupName, NewServer, Server, ServerFilter, ServerNetwork},
    network::{NewFloatingIp, PortFilter},
};

/// How often a server that is built is looked at.
pub const POLL: Duration = Duration::from_secs(5);
/// How long servers may take to be built or to go.
pub const PATIENCE: Duration = Duration::from_secs(1800);
/// Metadata of every server that a list made.
const PROVISIONER: (&str, &str) = ("provisioner", "mainstay-resource-list");

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("{doing}")]
    Cloud {
        doing: String,
        #[source]
        source: Box<CloudError>,
    },
    #[error("resources.{role}.{field}: the cloud has {count} of name or id {name:?}, and needs exactly one")]
    NotOne { role: String, field: &'static str, name: String, count: usize },
    #[error("the project sees {count} external networks: name one with --floating-network")]
    FloatingNetwork { count: usize },
    #[error("server {name} is in error: {message}")]
    Errored { name: String, message: String },
    #[error("server {name} has no port that could have a floating IP")]
    NoPort { name: String },
    #[error("still waiting after {} s for {names}", PATIENCE.as_secs())]
    TooSlow { names: String },
}

fn cloud(doing: impl Into<String>) -> impl FnOnce(CloudError) -> ApplyError {
    let doing = doing.into();
    move |source| ApplyError::Cloud { doing, source: Box::new(source) }
}

/// How servers are created.
#[derive(Clone, Debug, Default)]
pub struct ApplySettings {
    pub tag: Option<String>,
    pub key_name: Option<String>,
    /// In base64.
    pub user_data: Option<String>,
    /// The id of the external network of floating IPs; the only one there is if not set.
    pub floating_network: Option<String>,
    pub poll: Option<Duration>,
}

/// What a run did, by names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApplyReport {
    pub created: Vec<String>,
    /// Servers and the floating IPs they got.
    pub assigned: Vec<(String, String)>,
}

impl ApplyReport {
    pub fn is_unchanged(&self) -> bool {
        self.created.is_empty() && self.assigned.is_empty()
    }
}

/// The servers of the project. Nova hears late of floating IPs, or never, so Neutron is asked for them.
pub async fn list_servers(session: &Session) -> Result<Vec<ListedServer>, ApplyError> {
    let servers = session.compute().list_servers(&ServerFilter::default()).await.map_err(cloud("list servers"))?;
    let mut servers: Vec<ListedServer> = servers.iter().map(view_server).collect();
    let addresses = session.network().list_floating_ips(None).await.map_err(cloud("list floating IPs"))?;
    for address in addresses.iter().filter(|address| address.port_id.is_some()) {
        let is_assigned = |server: &ListedServer| {
            address.description == floating_ip_description(&server.name)
                || address.fixed_ip_address.as_ref().is_some_and(|fixed| server.fixed.contains(fixed))
        };
        let known = |server: &ListedServer| server.floating.contains(&address.floating_ip_address);
        if let Some(server) = servers.iter_mut().find(|server| is_assigned(server) && !known(server)) {
            server.floating.push(address.floating_ip_address.clone());
        }
    }
    Ok(servers)
}

fn view_server(server: &Server) -> ListedServer {
    let of_type = |kind: &str| {
        let addresses = server.addresses.values().flatten().filter(|address| address.address_type == kind);
        addresses.map(|address| address.addr.clone()).collect()
    };
    ListedServer {
        id: server.id.clone(),
        name: server.name.clone(),
        status: server.status.clone(),
        fixed: of_type("fixed"),
        floating: of_type("floating"),
    }
}

pub async fn apply_list(
    session: &Session,
    list: &ResourceList,
    mappings: &Mappings,
    settings: &ApplySettings,
) -> Result<ApplyReport, ApplyError> {
    let servers = list_servers(session).await?;
    let plan = plan_apply(list, mappings, settings.tag.as_deref(), &servers);
    let ids = resolve_names(session, &plan.create).await?;
    let mut report = ApplyReport::default();
    for missing in &plan.create {
        create_server(session, missing, &ids, settings).await?;
        report.created.push(missing.name.clone());
    }
    let mut wants_address: Vec<String> = plan.assign;
    wants_address
        .extend(plan.create.iter().filter(|server| server.assign_floating_ip).map(|server| server.name.clone()));
    let waited_for: Vec<String> = report.created.iter().chain(&wants_address).cloned().collect();
    let built = wait_until_built(session, &waited_for, settings.poll.unwrap_or(POLL)).await?;
    if !wants_address.is_empty() {
        let network = floating_network(session, settings).await?;
        for name in wants_address {
            let Some(server) = built.get(&name) else { continue };
            let address = assign_floating_ip(session, server, &network).await?;
            report.assigned.push((name, address));
        }
    }
    Ok(report)
}

/// Ids by what the list calls them.
#[derive(Default)]
struct ResolvedNames {
    flavors: BTreeMap<String, String>,
    images: BTreeMap<String, String>,
    networks: BTreeMap<String, String>,
}

/// Everything is looked up before anything is created: a mistake in the last role leaves nothing behind.
async fn resolve_names(session: &Session, missing: &[MissingServer]) -> Result<ResolvedNames, ApplyError> {
    let mut ids = ResolvedNames::default();
    if missing.is_empty() {
        return Ok(ids);
    }
    let flavors = session.compute().list_flavors().await.map_err(cloud("list flavors"))?;
    let flavors: Vec<(String, String)> = flavors.into_iter().map(|flavor| (flavor.id, flavor.name)).collect();
    let images = session.image().list_images(None).await.map_err(cloud("list images"))?;
    let images: Vec<(String, String)> =
        images.into_iter().map(|image| (image.id, image.name.unwrap_or_default())).collect();
    let networks = session.network().list_networks().await.map_err(cloud("list networks"))?;
    let networks: Vec<(String, String)> = networks.into_iter().map(|network| (network.id, network.name)).collect();
    for server in missing {
        ids.flavors.insert(server.flavor.clone(), choose_id(&server.role, "flavor", &server.flavor, &flavors)?);
        ids.images.insert(server.image.clone(), choose_id(&server.role, "image", &server.image, &images)?);
        for network in &server.networks {
            ids.networks.insert(network.clone(), choose_id(&server.role, "networks", network, &networks)?);
        }
    }
    Ok(ids)
}

/// An id is taken as it is; a name has to belong to exactly one.
fn choose_id(role: &str, field: &'static str, name: &str, all: &[(String, String)]) -> Result<String, ApplyError> {
    if all.iter().any(|(id, _)| id == name) {
        return Ok(name.to_owned());
    }
    let found: Vec<&str> = all.iter().filter(|(_, known)| known == name).map(|(id, _)| id.as_str()).collect();
    match found.as_slice() {
        [id] => Ok((*id).to_owned()),
        _ => Err(ApplyError::NotOne { role: role.to_owned(), field, name: name.to_owned(), count: found.len() }),
    }
}

async fn create_server(
    session: &Session,
    missing: &MissingServer,
    ids: &ResolvedNames,
    settings: &ApplySettings,
) -> Result<(), ApplyError> {
    let network =
        |name: &String| ServerNetwork { network: ids.networks.get(name).cloned(), ..ServerNetwork::default() };
    let mut metadata = BTreeMap::from([(PROVISIONER.0.to_owned(), PROVISIONER.1.to_owned())]);
    metadata.insert("role".to_owned(), missing.role.clone());
    metadata.extend(settings.tag.iter().map(|tag| ("project_tag".to_owned(), tag.clone())));
    let server = NewServer {
        name: missing.name.clone(),
        flavor: ids.flavors.get(&missing.flavor).cloned().unwrap_or_default(),
        image: ids.images.get(&missing.image).cloned(),
        networks: missing.networks.iter().map(network).collect(),
        security_groups: missing.security_groups.iter().map(|name| GroupName { name: name.clone() }).collect(),
        metadata,
        user_data: settings.user_data.clone(),
        key_name: settings.key_name.clone(),
        ..NewServer::default()
    };
    match session.compute().create_server(&server).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_outcome_unknown() => {
            let exists = list_servers(session).await?.iter().any(|server| server.name == missing.name);
            if exists { Ok(()) } else { Err(cloud(format!("create server {}", missing.name))(error)) }
        }
        Err(error) => Err(cloud(format!("create server {}", missing.name))(error)),
    }
}

/// Looks until none of these servers is in `BUILD`, and returns them.
async fn wait_until_built(
    session: &Session,
    names: &[String],
    poll: Duration,
) -> Result<BTreeMap<String, ListedServer>, ApplyError> {
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let end = Instant::now() + PATIENCE;
    loop {
        let servers = list_servers(session).await?.into_iter().filter(|server| names.contains(&server.name));
        let servers: BTreeMap<String, ListedServer> = servers.map(|server| (server.name.clone(), server)).collect();
        if let Some(server) = servers.values().find(|server| server.status == "ERROR") {
            let shown = session.compute().show_server(&server.id).await.map_err(cloud("show server"))?;
            let message = shown.and_then(|server| server.fault).map(|fault| fault.message).unwrap_or_default();
            return Err(ApplyError::Errored { name: server.name.clone(), message });
        }
        let waiting = |name: &&String| servers.get(*name).is_none_or(|server| server.status == "BUILD");
        let waiting: Vec<&str> = names.iter().filter(waiting).map(String::as_str).collect();
        if waiting.is_empty() {
            return Ok(servers);
        }
        if Instant::now() >= end {
            return Err(ApplyError::TooSlow { names: waiting.join(", ") });
        }
        tokio::time::sleep(poll).await;
    }
}

async fn floating_network(session: &Session, settings: &ApplySettings) -> Result<String, ApplyError> {
    if let Some(network) = &settings.floating_network {
        return Ok(network.clone());
    }
    let networks = session.network().list_networks().await.map_err(cloud("list networks"))?;
    let external: Vec<_> = networks.into_iter().filter(|network| network.external).collect();
    match external.as_slice() {
        [network] => Ok(network.id.clone()),
        _ => Err(ApplyError::FloatingNetwork { count: external.len() }),
    }
}

/// How a floating IP is found again by a later run.
fn floating_ip_description(server: &str) -> String {
    format!("mainstay resource list: {server}")
}

async fn assign_floating_ip(session: &Session, server: &ListedServer, network: &str) -> Result<String, ApplyError> {
    let client = session.network();
    let doing = || format!("give server {} a floating IP", server.name);
    let filter = PortFilter { device: Some(server.id.clone()), ..PortFilter::default() };
    let ports = client.list_ports(&filter).await.map_err(cloud(doing()))?;
    let Some(port) = ports.into_iter().find(|port| !port.fixed_ips.is_empty()) else {
        return Err(ApplyError::NoPort { name: server.name.clone() });
    };
    let description = floating_ip_description(&server.name);
    let known = client.list_floating_ips(Some(&description)).await.map_err(cloud(doing()))?;
    let assigned = match known.into_iter().find(|known| known.description == description) {
        Some(known) if known.port_id.as_deref() == Some(&port.id) => known,
        Some(known) => client.associate_floating_ip(&known.id, Some(&port.id)).await.map_err(cloud(doing()))?,
        None => {
            let new = NewFloatingIp { floating_network_id: network.to_owned(), description, port_id: Some(port.id) };
            client.create_floating_ip(&new).await.map_err(cloud(doing()))?
        }
    };
    Ok(assigned.floating_ip_address)
}

/// What a delete removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteReport {
    pub floating_ips: Vec<String>,
    pub servers: Vec<String>,
}

/// Removes the floating IPs of all servers with a tag, then the servers, and waits until they are gone.
pub async fn delete_by_tag(session: &Session, tag: &str, poll: Duration) -> Result<DeleteReport, ApplyError> {
    let all = list_servers(session).await?;
    let servers = servers_with_tag(&all, tag);
    let mut report = DeleteReport::default();
    let network = session.network();
    let descriptions: Vec<String> = servers.iter().map(|server| floating_ip_description(&server.name)).collect();
    let addresses = network.list_floating_ips(None).await.map_err(cloud("list floating IPs"))?;
    // One that was made and lost its server is found by its description alone.
    let suffix = format!("_{tag}");
    let is_tagged =
        |description: &str| description.starts_with(&floating_ip_description("")) && description.ends_with(&suffix);
    for address in addresses {
        let is_assigned = servers.iter().any(|server| server.floating.contains(&address.floating_ip_address));
        if is_assigned || descriptions.contains(&address.description) || is_tagged(&address.description) {
            let doing = format!("delete floating IP {}", address.floating_ip_address);
            network.delete_floating_ip(&address.id).await.map_err(cloud(doing))?;
            report.floating_ips.push(address.floating_ip_address);
        }
    }
    let compute = session.compute();
    for server in &servers {
        compute.delete_server(&server.id).await.map_err(cloud(format!("delete server {}", server.name)))?;
        report.servers.push(server.name.clone());
    }
    let end = Instant::now() + PATIENCE;
    loop {
        let left = list_servers(session).await?;
        let ids: Vec<&str> = servers.iter().map(|server| server.id.as_str()).collect();
        let left: Vec<&str> =
            left.iter().filter(|left| ids.contains(&left.id.as_str())).map(|left| left.name.as_str()).collect();
        if left.is_empty() {
            return Ok(report);
        }
        if Instant::now() >= end {
            return Err(ApplyError::TooSlow { names: left.join(", ") });
        }
        tokio::time::sleep(poll).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_to_belong_to_exactly_one() {
        let all = [("1", "a"), ("2", "b"), ("3", "b")].map(|(id, name)| (id.to_owned(), name.to_owned()));
        let chosen = |name| choose_id("web", "image", name, &all).map_err(|error| error.to_string());
        assert_eq!(chosen("a").as_deref(), Ok("1"));
        assert_eq!(chosen("3").as_deref(), Ok("3"), "an id");
        let message = "resources.web.image: the cloud has 2 of name or id \"b\", and needs exactly one";
        assert_eq!(chosen("b").unwrap_err(), message);
        assert!(chosen("c").unwrap_err().contains("has 0"));
    }
}
