//! Looks at the cloud for a deorbit, and removes what nobody else will.

use futures::TryFutureExt;
use mainstay_api::cloud::cloud_resource::ResourceType;

use super::inventory::{BalancerItem, CloudInventory, CloudItem, FloatingIpItem};
use crate::openstack::{CloudError, Session, compute::ServerFilter, network::PortFilter};

/// The cloud, as a deorbit sees it.
pub trait DeorbitCloud: Send + Sync {
    /// Everything in the project that could belong to a cluster.
    fn inventory(&self) -> impl Future<Output = Result<CloudInventory, CloudError>> + Send;
    /// Asks for the removal of something; what is not there counts as removed.
    fn remove(&self, resource: ResourceType, id: &str) -> impl Future<Output = Result<(), CloudError>> + Send;
}

impl DeorbitCloud for Session {
    async fn inventory(&self) -> Result<CloudInventory, CloudError> {
        let (storage, network) = (self.block_storage(), self.network());
        let (compute, balancers) = (self.compute(), self.load_balancer());
        let ports_filter = PortFilter::default();
        let servers_filter = ServerFilter::default();
        let project = self.project_id().await?;
        let (volumes, snapshots, balancers, addresses, ports, servers) = futures::try_join!(
            storage.list_volumes().or_else(none_without_service),
            storage.list_snapshots().or_else(none_without_service),
            balancers.list_load_balancers().or_else(none_without_service),
            network.list_floating_ips(None),
            network.list_ports(&ports_filter),
            compute.list_servers(&servers_filter),
        )?;
        Ok(CloudInventory {
            volumes: volumes
                .into_iter()
                .map(|volume| CloudItem {
                    id: volume.id,
                    name: volume.name,
                    status: volume.status,
                    metadata: volume.metadata,
                })
                .collect(),
            snapshots: snapshots
                .into_iter()
                .map(|snapshot| CloudItem {
                    id: snapshot.id,
                    name: snapshot.name,
                    status: snapshot.status,
                    metadata: snapshot.metadata,
                })
                .collect(),
            load_balancers: balancers
                .into_iter()
                // Octavia shows what it deleted for a while, and an administrator what all projects have: names are unique in one alone.
                .filter(|balancer| balancer.provisioning_status != "DELETED")
                .filter(|balancer| balancer.project_id.is_empty() || balancer.project_id == project)
                .map(|balancer| BalancerItem {
                    id: balancer.id,
                    name: balancer.name,
                    status: balancer.provisioning_status,
                    vip_address: balancer.vip_address,
                    vip_port_id: balancer.vip_port_id.unwrap_or_default(),
                })
                .collect(),
            floating_ips: addresses
                .into_iter()
                .map(|address| FloatingIpItem {
                    id: address.id,
                    address: address.floating_ip_address,
                    port_id: address.port_id.unwrap_or_default(),
                    description: address.description,
                })
                .collect(),
            ports: ports
                .into_iter()
                .map(|port| CloudItem { id: port.id, name: port.name, status: port.status, ..CloudItem::default() })
                .collect(),
            servers: servers
                .into_iter()
                .map(|server| CloudItem {
                    id: server.id,
                    name: server.name,
                    status: server.status,
                    metadata: server.metadata,
                })
                .collect(),
        })
    }

    async fn remove(&self, resource: ResourceType, id: &str) -> Result<(), CloudError> {
        match resource {
            ResourceType::Volume => self.block_storage().delete_volume(id).await.map(drop),
            ResourceType::Snapshot => self.block_storage().delete_snapshot(id).await.map(drop),
            ResourceType::LoadBalancer => self.load_balancer().delete_load_balancer(id).await.map(drop),
            ResourceType::FloatingIP => self.network().delete_floating_ip(id).await.map(drop),
            ResourceType::Port => self.network().delete_port(id).await.map(drop),
            ResourceType::Server => self.compute().delete_server(id).await.map(drop),
            ResourceType::ServerGroup => self.compute().delete_server_group(id).await.map(drop),
            ResourceType::Route
            | ResourceType::AddressPair
            | ResourceType::SecurityGroup
            | ResourceType::SecurityGroupRule
            | ResourceType::User => Ok(()), // never part of a deorbit
        }
    }
}

/// A cloud without a service has nothing of it.
async fn none_without_service<T>(error: CloudError) -> Result<Vec<T>, CloudError> {
    match error {
        CloudError::NoSuchService { .. } => Ok(Vec::new()),
        other => Err(other),
    }
}
