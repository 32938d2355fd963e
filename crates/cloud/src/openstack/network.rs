//! Neutron: networks, ports, routers, floating IPs and security groups.
//!
//! The tag of the ledger is a resource's description: unlike Neutron's tags, it is part of the create, so that there is no moment without it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    CloudError, Service, Session,
    compute::{QuotaUse, null_as_default, path_segment},
    session::Request,
};

const SERVICE: Service = Service::Network;

#[derive(Clone, Debug)]
pub struct NetworkClient(Session);

impl Session {
    pub fn network(&self) -> NetworkClient {
        NetworkClient(self.clone())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Network {
    pub id: String,
    pub name: String,
    pub subnets: Vec<String>,
    #[serde(rename = "router:external")]
    pub external: bool,
    pub shared: bool,
    #[serde(deserialize_with = "null_as_default")]
    pub description: String,
    pub project_id: String,
    pub tags: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Subnet {
    pub id: String,
    pub name: String,
    pub network_id: String,
    pub cidr: String,
    pub ip_version: u8,
    pub gateway_ip: Option<String>,
    #[serde(deserialize_with = "null_as_default")]
    pub description: String,
    pub project_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Port {
    pub id: String,
    pub name: String,
    pub network_id: String,
    pub device_id: String,
    pub device_owner: String,
    pub status: String,
    pub mac_address: String,
    pub fixed_ips: Vec<FixedIp>,
    pub allowed_address_pairs: Vec<AddressPair>,
    pub security_groups: Vec<String>,
    pub revision_number: i64,
    #[serde(deserialize_with = "null_as_default")]
    pub description: String,
    pub project_id: String,
    pub tags: Vec<String>,
    pub created_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FixedIp {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subnet_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip_address: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct AddressPair {
    pub ip_address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Router {
    pub id: String,
    pub name: String,
    pub routes: Vec<RouterRoute>,
    pub external_gateway_info: Option<ExternalGateway>,
    pub revision_number: i64,
    pub project_id: String,
    #[serde(deserialize_with = "null_as_default")]
    pub description: String,
    pub status: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RouterRoute {
    pub destination: String,
    pub nexthop: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ExternalGateway {
    pub network_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FloatingIp {
    pub id: String,
    pub floating_ip_address: String,
    pub floating_network_id: String,
    pub fixed_ip_address: Option<String>,
    pub port_id: Option<String>,
    pub status: String,
    #[serde(deserialize_with = "null_as_default")]
    pub description: String,
    pub project_id: String,
    pub tags: Vec<String>,
    pub created_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct SecurityGroup {
    pub id: String,
    pub name: String,
    #[serde(deserialize_with = "null_as_default")]
    pub description: String,
    pub security_group_rules: Vec<SecurityGroupRule>,
    pub project_id: String,
    pub tags: Vec<String>,
    pub created_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SecurityGroupRule {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    pub security_group_id: String,
    /// `ingress` or `egress`.
    pub direction: String,
    pub ethertype: String,
    pub protocol: Option<String>,
    pub port_range_min: Option<i64>,
    pub port_range_max: Option<i64>,
    pub remote_ip_prefix: Option<String>,
    pub remote_group_id: Option<String>,
    #[serde(deserialize_with = "null_as_default")]
    pub description: String,
}

/// Which ports to list.
#[derive(Clone, Debug, Default)]
pub struct PortFilter {
    pub device: Option<String>,
    pub network: Option<String>,
    pub description: Option<String>,
    pub fixed_ip: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NewPort {
    pub network_id: String,
    pub name: String,
    pub description: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fixed_ips: Vec<FixedIp>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_address_pairs: Vec<AddressPair>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NewFloatingIp {
    pub floating_network_id: String,
    pub description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_id: Option<String>,
}

/// A resource with tags, as its path has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tagged {
    Ports,
    FloatingIps,
    SecurityGroups,
    Routers,
    Networks,
}

impl Tagged {
    fn path(self) -> &'static str {
        match self {
            Self::Ports => "ports",
            Self::FloatingIps => "floatingips",
            Self::SecurityGroups => "security-groups",
            Self::Routers => "routers",
            Self::Networks => "networks",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct NetworkQuotaUse {
    pub limit: i64,
    pub used: i64,
    pub reserved: i64,
}

impl From<NetworkQuotaUse> for QuotaUse {
    fn from(NetworkQuotaUse { limit, used, reserved }: NetworkQuotaUse) -> Self {
        Self { limit, in_use: used, reserved }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NetworkQuota {
    pub port: NetworkQuotaUse,
    pub floatingip: NetworkQuotaUse,
    pub security_group: NetworkQuotaUse,
    pub security_group_rule: NetworkQuotaUse,
    pub router: NetworkQuotaUse,
    pub network: NetworkQuotaUse,
}

macro_rules! envelope {
    ($name:ident, $field:ident, $content:ty) => {
        #[derive(Deserialize)]
        struct $name {
            $field: $content,
        }
    };
}

envelope!(OneNetwork, network, Network);
envelope!(OneSubnet, subnet, Subnet);
envelope!(OnePort, port, Port);
envelope!(OneRouter, router, Router);
envelope!(OneFloatingIp, floatingip, FloatingIp);
envelope!(OneGroup, security_group, SecurityGroup);
envelope!(OneRule, security_group_rule, SecurityGroupRule);

impl NetworkClient {
    pub async fn list_networks(&self) -> Result<Vec<Network>, CloudError> {
        self.0.list(Request::get(SERVICE, "list networks", "/networks"), "networks").await
    }

    pub async fn show_network(&self, id: &str) -> Result<Option<Network>, CloudError> {
        let request = Request::get(SERVICE, "show network", format!("/networks/{id}"));
        Ok(self.0.call_optional::<OneNetwork>(request).await?.map(|found| found.network))
    }

    pub async fn create_network(&self, name: &str, description: &str) -> Result<Network, CloudError> {
        let body = json!({"network": {"name": name, "description": description}});
        let created: OneNetwork = self.0.call(Request::post(SERVICE, "create network", "/networks", body)).await?;
        Ok(created.network)
    }

    pub async fn delete_network(&self, id: &str) -> Result<bool, CloudError> {
        self.0.call_delete(Request::delete(SERVICE, "delete network", format!("/networks/{id}"))).await
    }

    /// All subnets, or those of a network.
    pub async fn list_subnets(&self, network: Option<&str>) -> Result<Vec<Subnet>, CloudError> {
        let mut request = Request::get(SERVICE, "list subnets", "/subnets");
        if let Some(network) = network {
            request = request.query("network_id", network);
        }
        self.0.list(request, "subnets").await
    }

    pub async fn show_subnet(&self, id: &str) -> Result<Option<Subnet>, CloudError> {
        let request = Request::get(SERVICE, "show subnet", format!("/subnets/{id}"));
        Ok(self.0.call_optional::<OneSubnet>(request).await?.map(|found| found.subnet))
    }

    pub async fn create_subnet(&self, network: &str, name: &str, cidr: &str) -> Result<Subnet, CloudError> {
        let body = json!({"subnet": {"network_id": network, "name": name, "cidr": cidr, "ip_version": 4}});
        let created: OneSubnet = self.0.call(Request::post(SERVICE, "create subnet", "/subnets", body)).await?;
        Ok(created.subnet)
    }

    pub async fn list_ports(&self, filter: &PortFilter) -> Result<Vec<Port>, CloudError> {
        let mut request = Request::get(SERVICE, "list ports", "/ports");
        for (name, value) in [
            ("device_id", filter.device.clone()),
            ("network_id", filter.network.clone()),
            ("description", filter.description.clone()),
            ("fixed_ips", filter.fixed_ip.as_ref().map(|address| format!("ip_address={address}"))),
        ] {
            if let Some(value) = value {
                request = request.query(name, value);
            }
        }
        self.0.list(request, "ports").await
    }

    pub async fn show_port(&self, id: &str) -> Result<Option<Port>, CloudError> {
        let request = Request::get(SERVICE, "show port", format!("/ports/{id}"));
        Ok(self.0.call_optional::<OnePort>(request).await?.map(|found| found.port))
    }

    pub async fn create_port(&self, port: &NewPort) -> Result<Port, CloudError> {
        let request = Request::post(SERVICE, "create port", "/ports", json!({"port": port}));
        Ok(self.0.call::<OnePort>(request).await?.port)
    }

    pub async fn delete_port(&self, id: &str) -> Result<bool, CloudError> {
        self.0.call_delete(Request::delete(SERVICE, "delete port", format!("/ports/{id}"))).await
    }

    /// Replaces the address pairs of a port, if it still has this revision; 412 otherwise.
    pub async fn set_address_pairs(&self, id: &str, revision: i64, pairs: &[AddressPair]) -> Result<Port, CloudError> {
        let body = json!({"port": {"allowed_address_pairs": pairs}});
        self.update_port(id, Some(revision), body).await
    }

    /// Replaces the security groups of a port, if it still has this revision; 412 otherwise.
    pub async fn set_port_security_groups(
        &self,
        id: &str,
        revision: i64,
        groups: &[String],
    ) -> Result<Port, CloudError> {
        self.update_port(id, Some(revision), json!({"port": {"security_groups": groups}})).await
    }

    async fn update_port(&self, id: &str, revision: Option<i64>, body: Value) -> Result<Port, CloudError> {
        let mut request = Request::put(SERVICE, "update port", format!("/ports/{id}"), body);
        if let Some(revision) = revision {
            request = request.header("If-Match", format!("revision_number={revision}"));
        }
        Ok(self.0.call::<OnePort>(request).await?.port)
    }

    pub async fn list_routers(&self) -> Result<Vec<Router>, CloudError> {
        self.0.list(Request::get(SERVICE, "list routers", "/routers"), "routers").await
    }

    pub async fn show_router(&self, id: &str) -> Result<Option<Router>, CloudError> {
        let request = Request::get(SERVICE, "show router", format!("/routers/{id}"));
        Ok(self.0.call_optional::<OneRouter>(request).await?.map(|found| found.router))
    }

    pub async fn create_router(&self, name: &str, external_network: Option<&str>) -> Result<Router, CloudError> {
        let mut body = json!({"router": {"name": name}});
        if let Some(network) = external_network {
            body["router"]["external_gateway_info"] = json!({"network_id": network});
        }
        let created: OneRouter = self.0.call(Request::post(SERVICE, "create router", "/routers", body)).await?;
        Ok(created.router)
    }

    pub async fn delete_router(&self, id: &str) -> Result<bool, CloudError> {
        self.0.call_delete(Request::delete(SERVICE, "delete router", format!("/routers/{id}"))).await
    }

    pub async fn add_router_interface(&self, router: &str, subnet: &str) -> Result<(), CloudError> {
        let path = format!("/routers/{router}/add_router_interface");
        let request = Request {
            body: Some(json!({"subnet_id": subnet})),
            ..Request::put(SERVICE, "add router interface", path, Value::Null)
        };
        self.0.call_without_answer(request).await
    }

    pub async fn remove_router_interface(&self, router: &str, subnet: &str) -> Result<(), CloudError> {
        let path = format!("/routers/{router}/remove_router_interface");
        let request = Request::put(SERVICE, "remove router interface", path, json!({"subnet_id": subnet}));
        self.0.call_without_answer(request).await
    }

    /// Replaces all routes of a router, if it still has this revision; 412 otherwise.
    pub async fn set_routes(&self, router: &str, revision: i64, routes: &[RouterRoute]) -> Result<Router, CloudError> {
        let body = json!({"router": {"routes": routes}});
        let request = Request::put(SERVICE, "set routes", format!("/routers/{router}"), body)
            .header("If-Match", format!("revision_number={revision}"));
        Ok(self.0.call::<OneRouter>(request).await?.router)
    }

    /// Adds routes to a router, atomically; those that it has already stay as they are.
    pub async fn add_routes(&self, router: &str, routes: &[RouterRoute]) -> Result<Router, CloudError> {
        let path = format!("/routers/{router}/add_extraroutes");
        let request = Request::put(SERVICE, "add routes", path, json!({"router": {"routes": routes}}));
        Ok(self.0.call::<OneRouter>(request).await?.router)
    }

    /// Removes routes from a router, atomically; those that it does not have are ignored.
    pub async fn remove_routes(&self, router: &str, routes: &[RouterRoute]) -> Result<Router, CloudError> {
        let path = format!("/routers/{router}/remove_extraroutes");
        let request = Request::put(SERVICE, "remove routes", path, json!({"router": {"routes": routes}}));
        Ok(self.0.call::<OneRouter>(request).await?.router)
    }

    /// All floating IPs of the project, or those with this description.
    pub async fn list_floating_ips(&self, description: Option<&str>) -> Result<Vec<FloatingIp>, CloudError> {
        let mut request = Request::get(SERVICE, "list floating IPs", "/floatingips");
        if let Some(description) = description {
            request = request.query("description", description);
        }
        self.0.list(request, "floatingips").await
    }

    pub async fn show_floating_ip(&self, id: &str) -> Result<Option<FloatingIp>, CloudError> {
        let request = Request::get(SERVICE, "show floating IP", format!("/floatingips/{id}"));
        Ok(self.0.call_optional::<OneFloatingIp>(request).await?.map(|found| found.floatingip))
    }

    pub async fn create_floating_ip(&self, address: &NewFloatingIp) -> Result<FloatingIp, CloudError> {
        let body = json!({"floatingip": address});
        let request = Request::post(SERVICE, "create floating IP", "/floatingips", body);
        Ok(self.0.call::<OneFloatingIp>(request).await?.floatingip)
    }

    /// Gives a floating IP to a port, or takes it away.
    pub async fn associate_floating_ip(&self, id: &str, port: Option<&str>) -> Result<FloatingIp, CloudError> {
        let body = json!({"floatingip": {"port_id": port}});
        let request = Request::put(SERVICE, "associate floating IP", format!("/floatingips/{id}"), body);
        Ok(self.0.call::<OneFloatingIp>(request).await?.floatingip)
    }

    pub async fn delete_floating_ip(&self, id: &str) -> Result<bool, CloudError> {
        self.0.call_delete(Request::delete(SERVICE, "delete floating IP", format!("/floatingips/{id}"))).await
    }

    /// All security groups of the project, or those with this name.
    pub async fn list_security_groups(&self, name: Option<&str>) -> Result<Vec<SecurityGroup>, CloudError> {
        let mut request = Request::get(SERVICE, "list security groups", "/security-groups");
        if let Some(name) = name {
            request = request.query("name", name);
        }
        self.0.list(request, "security_groups").await
    }

    pub async fn create_security_group(&self, name: &str, description: &str) -> Result<SecurityGroup, CloudError> {
        let body = json!({"security_group": {"name": name, "description": description}});
        let request = Request::post(SERVICE, "create security group", "/security-groups", body);
        Ok(self.0.call::<OneGroup>(request).await?.security_group)
    }

    pub async fn delete_security_group(&self, id: &str) -> Result<bool, CloudError> {
        let path = format!("/security-groups/{id}");
        self.0.call_delete(Request::delete(SERVICE, "delete security group", path)).await
    }

    /// Creates a rule. Neutron refuses a second one that is the same (409).
    pub async fn create_security_group_rule(&self, rule: &SecurityGroupRule) -> Result<SecurityGroupRule, CloudError> {
        let body = json!({"security_group_rule": rule});
        let request = Request::post(SERVICE, "create security group rule", "/security-group-rules", body);
        Ok(self.0.call::<OneRule>(request).await?.security_group_rule)
    }

    pub async fn delete_security_group_rule(&self, id: &str) -> Result<bool, CloudError> {
        let path = format!("/security-group-rules/{id}");
        self.0.call_delete(Request::delete(SERVICE, "delete security group rule", path)).await
    }

    pub async fn add_tag(&self, resource: Tagged, id: &str, tag: &str) -> Result<(), CloudError> {
        let path = format!("/{}/{id}/tags/{}", resource.path(), path_segment(tag));
        let request = Request::put(SERVICE, "add tag", path, Value::Null);
        self.0.call_without_answer(Request { body: None, ..request }).await
    }

    pub async fn remove_tag(&self, resource: Tagged, id: &str, tag: &str) -> Result<bool, CloudError> {
        let path = format!("/{}/{id}/tags/{}", resource.path(), path_segment(tag));
        self.0.call_delete(Request::delete(SERVICE, "remove tag", path)).await
    }

    pub async fn show_quota(&self, project: &str) -> Result<NetworkQuota, CloudError> {
        #[derive(Deserialize)]
        struct Quota {
            quota: NetworkQuota,
        }
        let path = format!("/quotas/{project}/details");
        let quota: Quota = self.0.call(Request::get(SERVICE, "show network quota", path)).await?;
        Ok(quota.quota)
    }

    /// Sets limits of a project; administrators alone may.
    pub async fn set_quota(&self, project: &str, limits: &Value) -> Result<(), CloudError> {
        let request =
            Request::put(SERVICE, "set network quota", format!("/quotas/{project}"), json!({"quota": limits}));
        self.0.call_without_answer(request).await
    }
}
