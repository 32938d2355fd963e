//! The server of a new machine, as Nova is asked for it.

use std::collections::BTreeMap;

use mainstay_api::cloud::node_pool::PoolSpec;

use crate::openstack::compute::{BlockDevice, GroupName, NewServer, ServerNetwork};

/// The version of what machines are set up with; a label of the Node and metadata of the server.
pub const TEMPLATE_VERSION: &str = "9";
pub const TEMPLATE_LABEL: &str = "kubernikus.cloud.sap/template-version";
pub const POOL_LABEL: &str = "ccloud.sap.com/nodepool";

/// Flavors of the KVM hypervisors have no local disk.
const KVM_FLAVORS: [&str; 4] = ["hana_k_", "c_k_", "g_k_", "m_k_"];
const KVM_VOLUME_TYPE: &str = "premium";
const VOLUME_TYPE: &str = "vmware";
const KVM_DISK_GIGABYTES: u64 = 64;

/// How the servers of a pool are spread over hypervisors, if at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affinity {
    SoftAffinity,
    SoftAntiAffinity,
}

impl Affinity {
    /// Of `NODEPOOL_AFFINITY` and `NODEPOOL_ANTI_AFFINITY`.
    pub fn from_variables(affinity: Option<&str>, anti_affinity: Option<&str>) -> Option<Self> {
        let is_set = |value: Option<&str>| value.is_some_and(|value| !value.is_empty());
        if is_set(affinity) {
            Some(Self::SoftAffinity)
        } else {
            is_set(anti_affinity).then_some(Self::SoftAntiAffinity)
        }
    }

    /// Nova's name of the policy.
    pub fn policy(self) -> &'static str {
        match self {
            Self::SoftAffinity => "soft-affinity",
            Self::SoftAntiAffinity => "soft-anti-affinity",
        }
    }
}

/// What was looked up for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerParts {
    pub name: String,
    /// The Kluster's name in names and tags.
    pub kluster: String,
    /// The version of the kluster's API.
    pub api_version: String,
    pub flavor_id: String,
    pub image_id: String,
    pub network_id: String,
    pub security_group: String,
    pub user_data: String,
    pub server_group: Option<String>,
}

/// Tags of a member, which flight control keeps.
pub fn member_tags(kluster: &str, pool: &str) -> [String; 3] {
    ["kubernikus".to_owned(), format!("kubernikus:kluster={kluster}"), format!("kubernikus:nodepool={pool}")]
}

/// Metadata of a member, likewise.
pub fn member_metadata(kluster: &str, pool: &str) -> BTreeMap<String, String> {
    [("provisioner", "kubernikus"), ("kubernikus:kluster", kluster), ("kubernikus:nodepool", pool)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// Labels of a member's Node when it first joins.
pub fn node_labels(pool: &PoolSpec) -> BTreeMap<String, String> {
    let mut labels = pool.labels.clone();
    labels.insert(POOL_LABEL.to_owned(), pool.name.clone());
    labels.insert(TEMPLATE_LABEL.to_owned(), TEMPLATE_VERSION.to_owned());
    labels
}

pub fn server_group_name(kluster: &str, pool: &str) -> String {
    format!("{kluster}/{pool}")
}

pub fn new_server(pool: &PoolSpec, parts: ServerParts) -> NewServer {
    let root = root_volume(pool, &parts.image_id);
    let mut metadata = member_metadata(&parts.kluster, &pool.name);
    metadata.insert("kubernikus:template-version".to_owned(), TEMPLATE_VERSION.to_owned());
    metadata.insert("kubernikus:api-version".to_owned(), parts.api_version);
    let tags = member_tags(&parts.kluster, &pool.name).to_vec();
    NewServer {
        name: parts.name,
        flavor: parts.flavor_id,
        image: root.is_none().then_some(parts.image_id),
        networks: vec![ServerNetwork { network: Some(parts.network_id), ..ServerNetwork::default() }],
        security_groups: vec![GroupName { name: parts.security_group }],
        metadata,
        tags,
        user_data: Some(parts.user_data),
        config_drive: Some(true),
        availability_zone: (!pool.availability_zone.is_empty()).then(|| pool.availability_zone.clone()),
        key_name: None,
        block_devices: root.into_iter().collect(),
        server_group: parts.server_group,
    }
}

/// A volume to boot from: for flavors without a disk, and for pools that ask for a size.
fn root_volume(pool: &PoolSpec, image: &str) -> Option<BlockDevice> {
    let asked = pool.custom_root_disk_size.and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0);
    let is_kvm = KVM_FLAVORS.iter().any(|prefix| pool.flavor.starts_with(prefix));
    if asked.is_none() && !is_kvm {
        return None;
    }
    let (size, volume_type) = if is_kvm {
        (asked.unwrap_or(KVM_DISK_GIGABYTES), KVM_VOLUME_TYPE)
    } else {
        (asked.unwrap_or_default(), VOLUME_TYPE)
    };
    Some(BlockDevice {
        boot_index: 0,
        source_type: "image".to_owned(),
        destination_type: "volume".to_owned(),
        uuid: Some(image.to_owned()),
        size_gb: Some(size),
        volume_type: Some(volume_type.to_owned()),
        delete_on_termination: true,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(flavor: &str, disk: Option<i64>) -> PoolSpec {
        PoolSpec {
            name: "small".to_owned(),
            flavor: flavor.to_owned(),
            availability_zone: "zone-a".to_owned(),
            custom_root_disk_size: disk,
            ..PoolSpec::default()
        }
    }

    fn parts() -> ServerParts {
        ServerParts {
            name: "kks-kate-small-ab2cd".to_owned(),
            kluster: "kate".to_owned(),
            api_version: "1.36.0".to_owned(),
            flavor_id: "f".to_owned(),
            image_id: "i".to_owned(),
            network_id: "n".to_owned(),
            security_group: "default".to_owned(),
            user_data: "dXNlcg==".to_owned(),
            server_group: Some("g".to_owned()),
        }
    }

    #[test]
    fn nova_is_asked_for_a_machine_with_everything_the_row_has() {
        let body = serde_json::to_value(new_server(&pool("m1.small", None), parts())).unwrap();
        let expected = json!({
            "name": "kks-kate-small-ab2cd", "flavorRef": "f", "imageRef": "i",
            "networks": [{ "uuid": "n" }], "security_groups": [{ "name": "default" }],
            "metadata": {
                "provisioner": "kubernikus", "kubernikus:kluster": "kate", "kubernikus:nodepool": "small",
                "kubernikus:template-version": "9", "kubernikus:api-version": "1.36.0",
            },
            "tags": ["kubernikus", "kubernikus:kluster=kate", "kubernikus:nodepool=small"],
            "user_data": "dXNlcg==", "config_drive": true, "availability_zone": "zone-a",
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn pools_boot_from_a_volume_by_size_and_by_flavor() {
        for (flavor, disk, expected) in [
            ("m1.small", None, None),
            ("m1.small", Some(0), None),
            ("m1.small", Some(100), Some((100, "vmware"))),
            ("c_k_c4_m16", None, Some((64, "premium"))),
            ("hana_k_1", Some(200), Some((200, "premium"))),
            ("g_k_1", None, Some((64, "premium"))),
            ("m_k_1", None, Some((64, "premium"))),
            ("xm_k_1", None, None),
        ] {
            let server = new_server(&pool(flavor, disk), parts());
            let device = server.block_devices.first();
            let found = device.map(|device| (device.size_gb.unwrap(), device.volume_type.as_deref().unwrap()));
            assert_eq!(found, expected, "{flavor} {disk:?}");
            assert_eq!(server.image.is_some(), expected.is_none());
            if let Some(device) = device {
                assert!(device.delete_on_termination && device.boot_index == 0);
                assert_eq!(device.uuid.as_deref(), Some("i"));
            }
        }
    }

    #[test]
    fn affinity_is_what_the_environment_says() {
        let policy = |one, other| Affinity::from_variables(one, other).map(Affinity::policy);
        assert_eq!(policy(None, None), None);
        assert_eq!(policy(Some("1"), None), Some("soft-affinity"));
        assert_eq!(policy(None, Some("1")), Some("soft-anti-affinity"));
        assert_eq!(policy(Some(""), Some("1")), Some("soft-anti-affinity"));
    }

    #[test]
    fn a_node_has_labels_of_its_pool_which_users_cannot_override() {
        let mut pool = pool("m1.small", None);
        pool.labels = [("team".to_owned(), "a".to_owned()), (POOL_LABEL.to_owned(), "else".to_owned())].into();
        let labels = node_labels(&pool);
        assert_eq!(
            (labels["team"].as_str(), labels[POOL_LABEL].as_str(), labels[TEMPLATE_LABEL].as_str()),
            ("a", "small", "9")
        );
    }
}
