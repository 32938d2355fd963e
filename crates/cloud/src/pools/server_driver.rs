//! Drivers of the ledger for servers and server groups.

use crate::{
    ledger::ResourceDriver,
    openstack::{
        CloudError, Session,
        compute::{NewServer, Server, ServerFilter},
    },
};

/// The item of metadata that holds the tag; Nova takes no slash in its name.
const TAG_METADATA: &str = "mainstay:tag";

/// A server. Its tag is one of its tags, and an item of its metadata.
pub struct ServerDriver {
    pub session: Session,
    /// What is created; nothing for a removal.
    pub server: Option<NewServer>,
}

impl ResourceDriver for ServerDriver {
    async fn find(&self, tag: &str) -> Result<Vec<String>, CloudError> {
        let filter = ServerFilter { tag: Some(tag.to_owned()), ..ServerFilter::default() };
        let servers = self.session.compute().list_servers(&filter).await?;
        let has_tag = |server: &Server| {
            server.tags.iter().any(|known| known == tag)
                || server.metadata.get(TAG_METADATA).map(String::as_str) == Some(tag)
        };
        Ok(servers.into_iter().filter(has_tag).map(|server| server.id).collect())
    }

    async fn create(&self, tag: &str) -> Result<String, CloudError> {
        let mut server = self.server.clone().unwrap_or_default();
        server.tags.push(tag.to_owned());
        server.metadata.insert(TAG_METADATA.to_owned(), tag.to_owned());
        self.session.compute().create_server(&server).await
    }

    async fn delete(&self, id: &str) -> Result<(), CloudError> {
        self.session.compute().delete_server(id).await.map(drop)
    }

    async fn exists(&self, id: &str) -> Result<bool, CloudError> {
        let server = self.session.compute().show_server(id).await?;
        Ok(server.is_some_and(|server| !matches!(server.status.as_str(), "DELETED" | "SOFT_DELETED")))
    }
}

/// A server group. It has neither tags nor metadata: it is found by its name, which has the Kluster's and the pool's.
pub struct GroupDriver {
    pub session: Session,
    pub name: String,
    pub policy: &'static str,
}

impl ResourceDriver for GroupDriver {
    async fn find(&self, _tag: &str) -> Result<Vec<String>, CloudError> {
        let groups = self.session.compute().list_server_groups().await?;
        Ok(groups.into_iter().filter(|group| group.name == self.name).map(|group| group.id).collect())
    }

    async fn create(&self, _tag: &str) -> Result<String, CloudError> {
        self.session.compute().create_server_group(&self.name, self.policy).await
    }

    async fn delete(&self, id: &str) -> Result<(), CloudError> {
        self.session.compute().delete_server_group(id).await.map(drop)
    }

    async fn exists(&self, id: &str) -> Result<bool, CloudError> {
        Ok(self.session.compute().list_server_groups().await?.iter().any(|group| group.id == id))
    }
}
