//! Drivers of the ledger: how volumes, snapshots, load balancers and floating IPs are found by tag, created and deleted.

use std::collections::BTreeMap;

use super::{ResourceDriver, TAG_KEY};
use crate::openstack::{
    CloudError, Session, block_storage::NewVolume, load_balancer::NewLoadBalancer, network::NewFloatingIp,
};

/// A volume. Its tag is an item of its metadata.
pub struct VolumeDriver {
    pub session: Session,
    pub volume: NewVolume,
}

impl ResourceDriver for VolumeDriver {
    async fn find(&self, tag: &str) -> Result<Vec<String>, CloudError> {
        let found = self.session.block_storage().list_volumes_by_metadata(TAG_KEY, tag).await?;
        Ok(found.into_iter().map(|volume| volume.id).collect())
    }

    async fn create(&self, tag: &str) -> Result<String, CloudError> {
        let mut volume = self.volume.clone();
        volume.metadata.insert(TAG_KEY.to_owned(), tag.to_owned());
        Ok(self.session.block_storage().create_volume(&volume).await?.id)
    }

    async fn delete(&self, id: &str) -> Result<(), CloudError> {
        match self.session.block_storage().delete_volume(id).await {
            Ok(_) => Ok(()),
            // Cinder's words for a volume that is attached, has snapshots or is being deleted already: the next look tells.
            Err(error) if error.status() == Some(400) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn exists(&self, id: &str) -> Result<bool, CloudError> {
        Ok(self.session.block_storage().show_volume(id).await?.is_some())
    }
}

/// A snapshot of a volume.
pub struct SnapshotDriver {
    pub session: Session,
    pub volume: String,
    pub name: String,
}

impl ResourceDriver for SnapshotDriver {
    async fn find(&self, tag: &str) -> Result<Vec<String>, CloudError> {
        let found = self.session.block_storage().list_snapshots_by_metadata(TAG_KEY, tag).await?;
        Ok(found.into_iter().map(|snapshot| snapshot.id).collect())
    }

    async fn create(&self, tag: &str) -> Result<String, CloudError> {
        let metadata = BTreeMap::from([(TAG_KEY.to_owned(), tag.to_owned())]);
        Ok(self.session.block_storage().create_snapshot(&self.volume, &self.name, &metadata).await?.id)
    }

    async fn delete(&self, id: &str) -> Result<(), CloudError> {
        match self.session.block_storage().delete_snapshot(id).await {
            Ok(_) => Ok(()),
            Err(error) if error.status() == Some(400) => Ok(()), // being deleted already
            Err(error) => Err(error),
        }
    }

    async fn exists(&self, id: &str) -> Result<bool, CloudError> {
        Ok(self.session.block_storage().show_snapshot(id).await?.is_some())
    }
}

/// A load balancer. Its tag is its description, and a tag as well where Octavia has them.
pub struct LoadBalancerDriver {
    pub session: Session,
    pub balancer: NewLoadBalancer,
}

impl ResourceDriver for LoadBalancerDriver {
    async fn find(&self, tag: &str) -> Result<Vec<String>, CloudError> {
        let found = self.session.load_balancer().list_load_balancers_by_description(tag).await?;
        let there = found.into_iter().filter(|balancer| balancer.provisioning_status != "DELETED");
        Ok(there.map(|balancer| balancer.id).collect())
    }

    async fn create(&self, tag: &str) -> Result<String, CloudError> {
        let mut balancer = self.balancer.clone();
        balancer.description = tag.to_owned();
        balancer.tags.push(tag.to_owned());
        Ok(self.session.load_balancer().create_load_balancer(&balancer).await?.id)
    }

    async fn delete(&self, id: &str) -> Result<(), CloudError> {
        self.session.load_balancer().delete_load_balancer(id).await.map(drop)
    }

    async fn exists(&self, id: &str) -> Result<bool, CloudError> {
        let found = self.session.load_balancer().show_load_balancer(id).await?;
        Ok(found.is_some_and(|balancer| balancer.provisioning_status != "DELETED"))
    }
}

/// A floating IP. Its tag is its description.
pub struct FloatingIpDriver {
    pub session: Session,
    pub address: NewFloatingIp,
}

impl ResourceDriver for FloatingIpDriver {
    async fn find(&self, tag: &str) -> Result<Vec<String>, CloudError> {
        let found = self.session.network().list_floating_ips(Some(tag)).await?;
        Ok(found.into_iter().filter(|address| address.description == tag).map(|address| address.id).collect())
    }

    async fn create(&self, tag: &str) -> Result<String, CloudError> {
        let address = NewFloatingIp { description: tag.to_owned(), ..self.address.clone() };
        Ok(self.session.network().create_floating_ip(&address).await?.id)
    }

    async fn delete(&self, id: &str) -> Result<(), CloudError> {
        self.session.network().delete_floating_ip(id).await.map(drop)
    }

    async fn exists(&self, id: &str) -> Result<bool, CloudError> {
        Ok(self.session.network().show_floating_ip(id).await?.is_some())
    }
}
