//! Nova: servers and what belongs to them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::{
    CloudError, Service, Session,
    session::{API_VERSION, Request},
};

const SERVICE: Service = Service::Compute;
/// Since Stein, a volume to boot from can have a type.
const VOLUME_TYPE_VERSION: &str = "compute 2.67";

#[derive(Clone, Debug)]
pub struct Compute(Session);

impl Session {
    pub fn compute(&self) -> Compute {
        Compute(self.clone())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Server {
    pub id: String,
    pub name: String,
    /// `ACTIVE`, `BUILD`, `ERROR`, `DELETED`…
    pub status: String,
    #[serde(rename = "OS-EXT-STS:vm_state", deserialize_with = "null_as_default")]
    pub vm_state: String,
    /// Empty if nothing is being done with it.
    #[serde(rename = "OS-EXT-STS:task_state", deserialize_with = "null_as_default")]
    pub task_state: String,
    #[serde(rename = "OS-EXT-STS:power_state", deserialize_with = "null_as_default")]
    pub power_state: i64,
    #[serde(rename = "OS-EXT-AZ:availability_zone", deserialize_with = "null_as_default")]
    pub availability_zone: String,
    pub created: Option<Timestamp>,
    pub metadata: BTreeMap<String, String>,
    pub tags: Vec<String>,
    /// By network.
    pub addresses: BTreeMap<String, Vec<ServerAddress>>,
    pub security_groups: Vec<NamedGroup>,
    pub flavor: Value,
    pub image: Value,
    pub key_name: Option<String>,
    pub user_id: String,
    pub tenant_id: String,
    #[serde(rename = "os-extended-volumes:volumes_attached")]
    pub volumes_attached: Vec<AttachedVolume>,
    pub fault: Option<ServerFault>,
}

impl Server {
    /// All its addresses, in all networks, fixed and floating.
    pub fn all_addresses(&self) -> impl Iterator<Item = &str> {
        self.addresses.values().flatten().map(|address| address.addr.as_str())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServerAddress {
    pub addr: String,
    pub version: u8,
    /// `fixed` or `floating`.
    #[serde(rename = "OS-EXT-IPS:type")]
    pub address_type: String,
    #[serde(rename = "OS-EXT-IPS-MAC:mac_addr")]
    pub mac: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NamedGroup {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AttachedVolume {
    pub id: String,
    pub delete_on_termination: bool,
}

/// Why a server is in `ERROR`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServerFault {
    pub code: i64,
    pub message: String,
}

/// A server to be created.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NewServer {
    pub name: String,
    #[serde(rename = "flavorRef")]
    pub flavor: String,
    /// None if it boots from a volume.
    #[serde(rename = "imageRef", skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    pub networks: Vec<ServerNetwork>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<GroupName>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// In base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_drive: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub availability_zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_name: Option<String>,
    #[serde(rename = "block_device_mapping_v2", skip_serializing_if = "Vec::is_empty")]
    pub block_devices: Vec<BlockDevice>,
    /// The id of a server group.
    #[serde(skip)]
    pub server_group: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServerNetwork {
    #[serde(rename = "uuid", skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixed_ip: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GroupName {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BlockDevice {
    pub boot_index: i32,
    /// `image`, `volume` or `blank`.
    pub source_type: String,
    pub destination_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    #[serde(rename = "volume_size", skip_serializing_if = "Option::is_none")]
    pub size_gb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_type: Option<String>,
    pub delete_on_termination: bool,
}

/// Which servers to list.
#[derive(Clone, Debug, Default)]
pub struct ServerFilter {
    /// A regular expression over names, as Nova has it; callers compare exactly.
    pub name: Option<String>,
    pub tag: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Interface {
    pub port_id: String,
    pub net_id: String,
    pub mac_addr: String,
    pub port_state: String,
    pub fixed_ips: Vec<InterfaceAddress>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct InterfaceAddress {
    pub subnet_id: String,
    pub ip_address: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeAttachment {
    /// The volume's id.
    #[serde(rename = "volumeId")]
    pub volume_id: String,
    #[serde(rename = "serverId")]
    pub server_id: String,
    #[serde(deserialize_with = "null_as_default")]
    pub device: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Flavor {
    pub id: String,
    pub name: String,
    pub vcpus: u64,
    pub ram: u64,
    pub disk: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServerGroup {
    pub id: String,
    pub name: String,
    pub policies: Vec<String>,
    pub members: Vec<String>,
}

/// How much of a quota is left; -1 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct QuotaUse {
    pub limit: i64,
    pub in_use: i64,
    pub reserved: i64,
}

impl QuotaUse {
    /// How much is missing for so much more; nothing if there is room.
    pub fn missing_for(&self, wanted: i64) -> Option<i64> {
        let over = self.in_use + self.reserved + wanted - self.limit;
        (self.limit >= 0 && over > 0).then_some(over)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ComputeQuota {
    pub instances: QuotaUse,
    pub cores: QuotaUse,
    pub ram: QuotaUse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebootType {
    Soft,
    Hard,
}

pub(super) fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

#[derive(Deserialize)]
struct OneServer {
    server: Server,
}

impl Compute {
    /// Servers of the project, all pages.
    pub async fn list_servers(&self, filter: &ServerFilter) -> Result<Vec<Server>, CloudError> {
        let mut request = Request::get(SERVICE, "list servers", "/servers/detail");
        if let Some(name) = &filter.name {
            request = request.query("name", name);
        }
        if let Some(tag) = &filter.tag {
            request = request.query("tags", tag);
        }
        self.0.list(request, "servers").await
    }

    pub async fn show_server(&self, id: &str) -> Result<Option<Server>, CloudError> {
        let found: Option<OneServer> =
            self.0.call_optional(Request::get(SERVICE, "show server", format!("/servers/{id}"))).await?;
        Ok(found.map(|found| found.server))
    }

    /// The user data that a server was created with, in base64; administrators alone see it. It is in no list: a thousand servers would have megabytes of it.
    pub async fn show_user_data(&self, id: &str) -> Result<Option<String>, CloudError> {
        #[derive(Deserialize)]
        struct One {
            server: WithUserData,
        }
        #[derive(Deserialize)]
        struct WithUserData {
            #[serde(rename = "OS-EXT-SRV-ATTR:user_data")]
            user_data: Option<String>,
        }
        let found: Option<One> =
            self.0.call_optional(Request::get(SERVICE, "show user data", format!("/servers/{id}"))).await?;
        Ok(found.and_then(|found| found.server.user_data))
    }

    /// Creates a server; returns its id. Nova answers before it is built.
    pub async fn create_server(&self, server: &NewServer) -> Result<String, CloudError> {
        #[derive(Deserialize)]
        struct Created {
            server: Id,
        }
        let mut body = json!({"server": server});
        if let Some(group) = &server.server_group {
            body["os:scheduler_hints"] = json!({"group": group});
        }
        let mut request = Request::post(SERVICE, "create server", "/servers", body);
        if server.block_devices.iter().any(|device| device.volume_type.is_some()) {
            request = request.header(API_VERSION, VOLUME_TYPE_VERSION);
        }
        let created: Created = self.0.call(request).await?;
        Ok(created.server.id)
    }

    /// Asks for the removal of a server; says whether there was one.
    pub async fn delete_server(&self, id: &str) -> Result<bool, CloudError> {
        self.0.call_delete(Request::delete(SERVICE, "delete server", format!("/servers/{id}"))).await
    }

    pub async fn reboot_server(&self, id: &str, reboot: RebootType) -> Result<(), CloudError> {
        let kind = if reboot == RebootType::Soft { "SOFT" } else { "HARD" };
        self.act(id, "reboot server", json!({"reboot": {"type": kind}})).await
    }

    pub async fn start_server(&self, id: &str) -> Result<(), CloudError> {
        self.act(id, "start server", json!({"os-start": null})).await
    }

    pub async fn stop_server(&self, id: &str) -> Result<(), CloudError> {
        self.act(id, "stop server", json!({"os-stop": null})).await
    }

    pub async fn add_security_group(&self, id: &str, group: &str) -> Result<(), CloudError> {
        self.act(id, "add security group to server", json!({"addSecurityGroup": {"name": group}})).await
    }

    pub async fn remove_security_group(&self, id: &str, group: &str) -> Result<(), CloudError> {
        self.act(id, "remove security group from server", json!({"removeSecurityGroup": {"name": group}})).await
    }

    /// Sets the state that Nova shows; administrators alone may.
    pub async fn reset_server_state(&self, id: &str, state: &str) -> Result<(), CloudError> {
        self.act(id, "reset server state", json!({"os-resetState": {"state": state}})).await
    }

    async fn act(&self, id: &str, operation: &'static str, body: Value) -> Result<(), CloudError> {
        self.0.call_without_answer(Request::post(SERVICE, operation, format!("/servers/{id}/action"), body)).await
    }

    pub async fn list_interfaces(&self, server: &str) -> Result<Vec<Interface>, CloudError> {
        let request = Request::get(SERVICE, "list interfaces of server", format!("/servers/{server}/os-interface"));
        self.0.list(request, "interfaceAttachments").await
    }

    /// Adds or replaces single metadata items, others stay.
    pub async fn update_server_metadata(&self, id: &str, items: &BTreeMap<String, String>) -> Result<(), CloudError> {
        let path = format!("/servers/{id}/metadata");
        let request = Request::post(SERVICE, "update server metadata", path, json!({"metadata": items}));
        self.0.call_without_answer(request.harmless()).await
    }

    pub async fn add_server_tag(&self, id: &str, tag: &str) -> Result<(), CloudError> {
        let path = format!("/servers/{id}/tags/{}", path_segment(tag));
        let request = Request::put(SERVICE, "add server tag", path, Value::Null);
        self.0.call_without_answer(Request { body: None, ..request }).await
    }

    pub async fn list_volume_attachments(&self, server: &str) -> Result<Vec<VolumeAttachment>, CloudError> {
        let path = format!("/servers/{server}/os-volume_attachments");
        self.0.list(Request::get(SERVICE, "list volume attachments", path), "volumeAttachments").await
    }

    /// Attaches a volume. A second attachment of the same volume to the same server is refused by Nova (409 or 400), so a repeat does no harm.
    pub async fn attach_volume(&self, server: &str, volume: &str) -> Result<VolumeAttachment, CloudError> {
        #[derive(Deserialize)]
        struct Attached {
            #[serde(rename = "volumeAttachment")]
            attachment: VolumeAttachment,
        }
        let path = format!("/servers/{server}/os-volume_attachments");
        let body = json!({"volumeAttachment": {"volumeId": volume}});
        let attached: Attached = self.0.call(Request::post(SERVICE, "attach volume", path, body)).await?;
        Ok(attached.attachment)
    }

    /// Asks for the detachment of a volume; says whether it was attached.
    pub async fn detach_volume(&self, server: &str, volume: &str) -> Result<bool, CloudError> {
        let path = format!("/servers/{server}/os-volume_attachments/{volume}");
        self.0.call_delete(Request::delete(SERVICE, "detach volume", path)).await
    }

    pub async fn list_flavors(&self) -> Result<Vec<Flavor>, CloudError> {
        self.0.list(Request::get(SERVICE, "list flavors", "/flavors/detail"), "flavors").await
    }

    pub async fn list_server_groups(&self) -> Result<Vec<ServerGroup>, CloudError> {
        self.0.list(Request::get(SERVICE, "list server groups", "/os-server-groups"), "server_groups").await
    }

    /// Creates a server group with one policy: `affinity`, `anti-affinity`, `soft-affinity` or `soft-anti-affinity`.
    pub async fn create_server_group(&self, name: &str, policy: &str) -> Result<String, CloudError> {
        #[derive(Deserialize)]
        struct Created {
            server_group: Id,
        }
        let body = json!({"server_group": {"name": name, "policies": [policy]}});
        let request = Request::post(SERVICE, "create server group", "/os-server-groups", body);
        let created: Created = self.0.call(request).await?;
        Ok(created.server_group.id)
    }

    pub async fn delete_server_group(&self, id: &str) -> Result<bool, CloudError> {
        self.0.call_delete(Request::delete(SERVICE, "delete server group", format!("/os-server-groups/{id}"))).await
    }

    pub async fn show_quota(&self, project: &str) -> Result<ComputeQuota, CloudError> {
        #[derive(Deserialize)]
        struct Quota {
            quota_set: ComputeQuota,
        }
        let path = format!("/os-quota-sets/{project}/detail");
        let quota: Quota = self.0.call(Request::get(SERVICE, "show compute quota", path)).await?;
        Ok(quota.quota_set)
    }

    /// Sets limits of a project; administrators alone may.
    pub async fn set_quota(&self, project: &str, limits: &Value) -> Result<(), CloudError> {
        let path = format!("/os-quota-sets/{project}");
        let request = Request::put(SERVICE, "set compute quota", path, json!({"quota_set": limits}));
        self.0.call_without_answer(request).await
    }

    pub async fn list_availability_zones(&self) -> Result<Vec<String>, CloudError> {
        #[derive(Deserialize)]
        struct Zone {
            #[serde(rename = "zoneName")]
            name: String,
        }
        let request = Request::get(SERVICE, "list availability zones", "/os-availability-zone");
        let zones: Vec<Zone> = self.0.list(request, "availabilityZoneInfo").await?;
        Ok(zones.into_iter().map(|zone| zone.name).collect())
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Id {
    pub id: String,
}

/// Text as one segment of a path.
pub(super) fn path_segment(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}
