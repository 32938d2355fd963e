//! Which resources of the cloud belong to a cluster, as far as its objects, its ledger and the cloud itself tell.
//!
//! A volume belongs to it if a PersistentVolume has its id, or if it bears the cluster's name as the Cinder CSI driver writes it. A load balancer
//! belongs to it if a Service names it, has its address, or gave it its name (`kube_service_CLUSTER_NAMESPACE_NAME`, or `a` and the Service's uid). A floating
//! IP belongs to it if it is at such a load balancer and a cloud controller made it, by its description or its entry in the ledger; one that the user brought along is
//! not listed. Nothing is taken for the cluster's because it merely looks alike: names are compared whole.

use std::collections::BTreeMap;

use mainstay_api::cloud::{
    cloud_resource::ResourceType,
    teardown_receipt::{DELETED_BY_OWNER, LEFT, ReceiptItem},
};

use super::objects::{ClusterObjects, ServiceView};

/// What one look at the cloud showed. A service that the cloud does not have has nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CloudInventory {
    pub volumes: Vec<CloudItem>,
    pub snapshots: Vec<CloudItem>,
    pub load_balancers: Vec<BalancerItem>,
    pub floating_ips: Vec<FloatingIpItem>,
    pub ports: Vec<CloudItem>,
    pub servers: Vec<CloudItem>,
}

/// A volume, snapshot, port or server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CloudItem {
    pub id: String,
    pub name: String,
    pub status: String,
    pub metadata: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct BalancerItem {
    pub id: String,
    pub name: String,
    pub status: String,
    pub vip_address: String,
    pub vip_port_id: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct FloatingIpItem {
    pub id: String,
    pub address: String,
    pub port_id: String,
    pub description: String,
}

/// An entry of the cluster's ledger whose id is known.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerItem {
    pub resource: ResourceType,
    pub id: String,
    pub name: String,
    pub owner: String,
}

/// The name by which a cluster's controllers know it, where it has one.
const CSI_CLUSTER: &str = "cinder.csi.openstack.org/cluster";
const STOCK_CLUSTER: &str = "kubernetes";

impl CloudInventory {
    /// What the cloud says of a resource; nothing if it is not there.
    pub fn status_of(&self, resource: ResourceType, id: &str) -> Option<String> {
        let listed = |items: &[CloudItem]| items.iter().find(|item| item.id == id).map(|item| item.status.clone());
        match resource {
            ResourceType::Volume => listed(&self.volumes),
            ResourceType::Snapshot => listed(&self.snapshots),
            ResourceType::Port => listed(&self.ports),
            ResourceType::Server => listed(&self.servers),
            ResourceType::LoadBalancer => {
                self.load_balancers.iter().find(|item| item.id == id).map(|item| item.status.clone())
            }
            ResourceType::FloatingIP => {
                let item = self.floating_ips.iter().find(|item| item.id == id);
                item.map(|item| format!("at port {:?}", item.port_id))
            }
            ResourceType::ServerGroup
            | ResourceType::Route
            | ResourceType::AddressPair
            | ResourceType::SecurityGroup
            | ResourceType::SecurityGroupRule
            | ResourceType::User => None,
        }
    }
}

/// Everything that is known to belong to the cluster now, each once. `cluster_name` is what its controllers call it.
pub fn discover(
    objects: Option<&ClusterObjects>,
    cloud: &CloudInventory,
    ledger: &[LedgerItem],
    cluster_name: &str,
) -> Vec<ReceiptItem> {
    let mut items = BTreeMap::new();
    let none = ClusterObjects::default();
    let objects = objects.unwrap_or(&none);
    for volume in &objects.volumes {
        let Some(handle) = volume.handle.as_deref() else { continue };
        let Some(listed) = cloud.volumes.iter().find(|item| item.id == handle) else { continue };
        let mut item =
            new_item(ResourceType::Volume, handle, &listed.name, format!("PersistentVolume {}", volume.name));
        // Nobody will ever delete it: its claim goes, and it stays.
        if volume.retained || volume.phase == "Available" {
            LEFT.clone_into(&mut item.action);
            item.message = "the PersistentVolume's reclaim policy keeps it".to_owned();
        }
        insert(&mut items, item);
    }
    for content in &objects.contents {
        let Some(handle) = content.handle.as_deref() else { continue };
        let Some(listed) = cloud.snapshots.iter().find(|item| item.id == handle) else { continue };
        let owner = format!("VolumeSnapshotContent {}", content.name);
        let mut item = new_item(ResourceType::Snapshot, handle, &listed.name, owner);
        if content.retained {
            LEFT.clone_into(&mut item.action);
            item.message = "the VolumeSnapshotContent's deletion policy keeps it".to_owned();
        }
        insert(&mut items, item);
    }
    for balancer in &cloud.load_balancers {
        let service = objects.load_balancer_services().find(|service| is_balancer_of(balancer, service, cluster_name));
        let owner = match service {
            Some(service) => format!("Service {}", service.id),
            None if has_cluster_prefix(&balancer.name, cluster_name) => String::new(),
            None => continue,
        };
        insert(&mut items, new_item(ResourceType::LoadBalancer, &balancer.id, &balancer.name, owner.clone()));
        if !balancer.vip_port_id.is_empty() {
            let name = format!("VIP of load balancer {}", balancer.name);
            insert(&mut items, new_item(ResourceType::Port, &balancer.vip_port_id, &name, owner.clone()));
        }
        let at_balancer = |ip: &&FloatingIpItem| !ip.port_id.is_empty() && ip.port_id == balancer.vip_port_id;
        for ip in cloud.floating_ips.iter().filter(at_balancer) {
            let brought = service.and_then(|service| service.own_address.as_deref()) == Some(&ip.address);
            if brought || !is_made_by_controller(ip) {
                continue;
            }
            let mut item = new_item(ResourceType::FloatingIP, &ip.id, &ip.address, owner.clone());
            if service.is_some_and(|service| service.keeps_floating_ip) {
                LEFT.clone_into(&mut item.action);
                item.message = "the Service's annotation keeps it".to_owned();
            }
            insert(&mut items, item);
        }
    }
    if !cluster_name.is_empty() && cluster_name != STOCK_CLUSTER {
        let bears_name = |item: &&CloudItem| item.metadata.get(CSI_CLUSTER).is_some_and(|name| name == cluster_name);
        for volume in cloud.volumes.iter().filter(bears_name) {
            insert(&mut items, new_item(ResourceType::Volume, &volume.id, &volume.name, String::new()));
        }
        for snapshot in cloud.snapshots.iter().filter(bears_name) {
            insert(&mut items, new_item(ResourceType::Snapshot, &snapshot.id, &snapshot.name, String::new()));
        }
    }
    for entry in ledger {
        // Machines and what connects them go with the pools.
        let is_ours = matches!(
            entry.resource,
            ResourceType::Volume
                | ResourceType::Snapshot
                | ResourceType::LoadBalancer
                | ResourceType::FloatingIP
                | ResourceType::Port
        );
        if is_ours && cloud.status_of(entry.resource, &entry.id).is_some() {
            insert(&mut items, new_item(entry.resource, &entry.id, &entry.name, entry.owner.clone()));
            let balancer = cloud.load_balancers.iter().find(|balancer| balancer.id == entry.id);
            if let Some(balancer) = balancer.filter(|balancer| !balancer.vip_port_id.is_empty()) {
                let name = format!("VIP of load balancer {}", balancer.name);
                insert(&mut items, new_item(ResourceType::Port, &balancer.vip_port_id, &name, entry.owner.clone()));
            }
        }
    }
    items.into_values().collect()
}

fn new_item(resource: ResourceType, id: &str, name: &str, owner: String) -> ReceiptItem {
    ReceiptItem {
        resource,
        id: id.to_owned(),
        name: name.to_owned(),
        owner,
        action: DELETED_BY_OWNER.to_owned(),
        ..ReceiptItem::default()
    }
}

fn insert(items: &mut BTreeMap<(ResourceType, String), ReceiptItem>, item: ReceiptItem) {
    items.entry((item.resource, item.id.clone())).or_insert(item);
}

fn is_balancer_of(balancer: &BalancerItem, service: &ServiceView, cluster_name: &str) -> bool {
    let id = &service.id;
    let by_uid = format!("a{}", id.uid.replace('-', ""));
    let by_name = format!("kube_service_{cluster_name}_{}_{}", id.namespace, id.name);
    service.load_balancer_id.as_deref() == Some(&balancer.id)
        || (!balancer.vip_address.is_empty() && service.addresses.contains(&balancer.vip_address))
        || (!id.uid.is_empty() && balancer.name == by_uid.chars().take(32).collect::<String>())
        || (!cluster_name.is_empty() && balancer.name == by_name)
}

/// Whether a load balancer without a Service bears the cluster's name; not with the stock name, which every cluster of the project may have.
fn has_cluster_prefix(balancer: &str, cluster_name: &str) -> bool {
    !cluster_name.is_empty()
        && cluster_name != STOCK_CLUSTER
        && balancer.strip_prefix("kube_service_").and_then(|rest| rest.strip_prefix(cluster_name)).is_some_and(|rest| {
            // Neither a namespace nor a name of Kubernetes has an underscore.
            rest.strip_prefix('_').is_some_and(|rest| rest.split('_').count() == 2)
        })
}

/// As cloud controllers describe the addresses they make, and delete again.
fn is_made_by_controller(ip: &FloatingIpItem) -> bool {
    ip.description.starts_with("Floating IP for Kubernetes ") && ip.description.contains(" from cluster ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deorbit::objects::{ObjectId, VolumeView};

    fn listed(id: &str) -> CloudItem {
        CloudItem { id: id.to_owned(), status: "in-use".to_owned(), ..CloudItem::default() }
    }

    fn service(uid: &str) -> ServiceView {
        ServiceView {
            id: ObjectId { namespace: "shop".to_owned(), name: "web".to_owned(), uid: uid.to_owned() },
            is_load_balancer: true,
            ..ServiceView::default()
        }
    }

    fn balancer(id: &str, name: &str) -> BalancerItem {
        BalancerItem {
            id: id.to_owned(),
            name: name.to_owned(),
            vip_address: "10.0.0.9".to_owned(),
            vip_port_id: format!("port-{id}"),
            ..BalancerItem::default()
        }
    }

    #[test]
    fn a_load_balancer_is_recognised_by_id_address_and_names_and_by_nothing_alike() {
        let uid = "0b1c2d3e-0000-4000-8000-123456789abc";
        let by_id = ServiceView { load_balancer_id: Some("lb".to_owned()), ..service(uid) };
        let by_address = ServiceView { addresses: vec!["10.0.0.9".to_owned()], ..service(uid) };
        for (service, name, expected) in [
            (by_id, "x", true),
            (by_address, "x", true),
            (service(uid), "a0b1c2d3e000040008000123456789ab", true),
            (service(uid), "kube_service_kate_shop_web", true),
            (service(uid), "kube_service_kate_shop_web2", false),
            (service(uid), "kube_service_kat_shop_web", false),
            (service(uid), "a0b1c2d3e", false),
        ] {
            assert_eq!(is_balancer_of(&balancer("lb", name), &service, "kate"), expected, "{name}");
        }
    }

    #[test]
    fn balancers_without_a_service_are_known_by_the_whole_name_of_the_cluster() {
        for (name, cluster, expected) in [
            ("kube_service_kate_shop_web", "kate", true),
            ("kube_service_kate-2_shop_web", "kate", false),
            ("kube_service_kubernetes_shop_web", "kubernetes", false),
            ("kube_service__shop_web", "", false),
            ("kube_service_kate_web", "kate", false),
        ] {
            assert_eq!(has_cluster_prefix(name, cluster), expected, "{name} {cluster}");
        }
    }

    #[test]
    fn a_floating_ip_that_the_user_brought_is_not_listed_and_a_kept_one_is_left() {
        let ip = |id: &str, description: &str| FloatingIpItem {
            id: id.to_owned(),
            address: format!("203.0.113.{id}"),
            port_id: "port-lb".to_owned(),
            description: description.to_owned(),
        };
        let made = "Floating IP for Kubernetes external service shop/web from cluster kate";
        let cloud = CloudInventory {
            load_balancers: vec![balancer("lb", "kube_service_kate_shop_web")],
            floating_ips: vec![ip("7", made), ip("8", "mine")],
            ..CloudInventory::default()
        };
        let with = |service: ServiceView| {
            let objects = ClusterObjects { services: vec![service], ..ClusterObjects::default() };
            let items = discover(Some(&objects), &cloud, &[], "kate");
            let ips = items.into_iter().filter(|item| item.resource == ResourceType::FloatingIP);
            ips.map(|item| (item.name, item.action)).collect::<Vec<_>>()
        };
        assert_eq!(with(service("u")), [("203.0.113.7".to_owned(), DELETED_BY_OWNER.to_owned())]);
        let kept = ServiceView { keeps_floating_ip: true, ..service("u") };
        assert_eq!(with(kept), [("203.0.113.7".to_owned(), LEFT.to_owned())]);
        let brought = ServiceView { own_address: Some("203.0.113.7".to_owned()), ..service("u") };
        assert_eq!(with(brought), []);
    }

    #[test]
    fn retained_volumes_are_left_and_volumes_that_cinder_does_not_have_are_no_items() {
        let volume = |handle: &str, retained: bool| VolumeView {
            name: format!("pv-{handle}"),
            handle: Some(handle.to_owned()),
            phase: "Bound".to_owned(),
            retained,
            ..VolumeView::default()
        };
        let volumes = vec![volume("a", false), volume("b", true), volume("nfs", false)];
        let objects = ClusterObjects { volumes, ..ClusterObjects::default() };
        let cloud =
            CloudInventory { volumes: vec![listed("a"), listed("b"), listed("c")], ..CloudInventory::default() };
        let items = discover(Some(&objects), &cloud, &[], "kate");
        let actions: Vec<(&str, &str)> = items.iter().map(|item| (item.id.as_str(), item.action.as_str())).collect();
        assert_eq!(actions, [("a", DELETED_BY_OWNER), ("b", LEFT)]);
    }

    #[test]
    fn without_the_cluster_its_volumes_are_known_by_the_name_they_bear() {
        let mut named = listed("a");
        named.metadata.insert(CSI_CLUSTER.to_owned(), "kate".to_owned());
        let mut other = listed("b");
        other.metadata.insert(CSI_CLUSTER.to_owned(), "kat".to_owned());
        let cloud = CloudInventory { volumes: vec![named, other], ..CloudInventory::default() };
        let ids = |name: &str| discover(None, &cloud, &[], name).into_iter().map(|item| item.id).collect::<Vec<_>>();
        assert_eq!(ids("kate"), ["a"]);
        assert!(ids("").is_empty());
    }
}
