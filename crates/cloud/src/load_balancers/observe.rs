//! What Octavia and Neutron have of one Service's load balancer.

use std::net::IpAddr;

use super::plan::{AddressView, BalancerView, ListenerView, Observed, PoolView};
use crate::{
    ledger::LedgerEntry,
    openstack::{
        CloudError, Session,
        network::{PortFilter, Subnet},
    },
};

pub async fn observe_balancer(
    session: &Session,
    entry: Option<&LedgerEntry>,
) -> Result<Observed<BalancerView>, CloudError> {
    let Some(entry) = entry else { return Ok(Observed::Absent) };
    let Some(id) = &entry.id else { return Ok(Observed::Intended) };
    let client = session.load_balancer();
    let balancer = client.show_load_balancer(id).await?;
    let Some(balancer) = balancer.filter(|balancer| balancer.provisioning_status != "DELETED") else {
        return Ok(Observed::Lost);
    };
    let mut view = BalancerView {
        provisioning_status: balancer.provisioning_status,
        vip_address: balancer.vip_address,
        vip_port: balancer.vip_port_id,
        listeners: Vec::new(),
    };
    if view.provisioning_status != "ACTIVE" {
        return Ok(Observed::Present(view)); // nothing else matters then
    }
    let pools = client.list_pools(id).await?;
    for listener in client.list_listeners(id).await? {
        let pool = listener.default_pool_id.as_ref().and_then(|id| pools.iter().find(|pool| pool.id == *id));
        let pool = match pool {
            None => None,
            Some(pool) => {
                let members = client.list_members(&pool.id).await?;
                let members = members.into_iter().map(|member| (member.address, member.protocol_port));
                let has_monitor = pool.healthmonitor_id.is_some();
                Some(PoolView { id: pool.id.clone(), has_monitor, members: members.collect() })
            }
        };
        view.listeners.push(ListenerView {
            id: listener.id,
            protocol: listener.protocol,
            port: listener.protocol_port,
            allowed: listener.allowed_cidrs.unwrap_or_default().into_iter().collect(),
            pool,
        });
    }
    Ok(Observed::Present(view))
}

pub async fn observe_address(
    session: &Session,
    entry: Option<&LedgerEntry>,
) -> Result<Observed<AddressView>, CloudError> {
    let Some(entry) = entry else { return Ok(Observed::Absent) };
    let Some(id) = &entry.id else { return Ok(Observed::Intended) };
    Ok(match session.network().show_floating_ip(id).await? {
        None => Observed::Lost,
        Some(address) => {
            let view = AddressView { id: address.id, address: address.floating_ip_address, port: address.port_id };
            Observed::Present(view)
        }
    })
}

/// The subnet that holds an address.
pub fn subnet_of_address(subnets: &[Subnet], address: IpAddr) -> Option<&Subnet> {
    let holds = |subnet: &&Subnet| subnet.cidr.parse::<ipnet::IpNet>().is_ok_and(|range| range.contains(&address));
    subnets.iter().find(holds)
}

/// The external network of a router that has the subnet, if any has.
pub async fn external_network(session: &Session, subnet: &Subnet) -> Result<Option<String>, CloudError> {
    let network = session.network();
    let filter = PortFilter { network: Some(subnet.network_id.clone()), ..PortFilter::default() };
    let ports = network.list_ports(&filter).await?;
    let mut of_routers = ports.into_iter().filter(|port| port.device_owner.starts_with("network:router_interface"));
    let Some(port) = of_routers.find(|port| port.fixed_ips.iter().any(|ip| ip.subnet_id == subnet.id)) else {
        return Ok(None);
    };
    let router = network.show_router(&port.device_id).await?;
    Ok(router.and_then(|router| router.external_gateway_info).map(|gateway| gateway.network_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subnet_of_a_node_is_found_by_its_range() {
        let subnet = |id: &str, cidr: &str| Subnet { id: id.into(), cidr: cidr.into(), ..Subnet::default() };
        let subnets = [subnet("a", "10.0.0.0/24"), subnet("b", "10.0.1.0/24"), subnet("c", "rubbish")];
        assert_eq!(subnet_of_address(&subnets, "10.0.1.7".parse().unwrap()).unwrap().id, "b");
        assert_eq!(subnet_of_address(&subnets, "10.0.2.7".parse().unwrap()), None);
    }
}
