//! A project of the cloud for one run: without limits of machines, with a network and a router.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context;
use futures::{StreamExt, stream};
use mainstay_cloud::openstack::{
    CloudsFile, SecretText, Session,
    compute::{NewServer, ServerFilter, ServerNetwork},
    identity::NewUser,
};
use serde_json::json;

const PASSWORD: &str = "secret";
/// As many Klusters as the controllers look at at once.
const CONCURRENCY: usize = 10;

pub struct BenchProject {
    admin: Session,
    pub session: Session,
    yaml: String,
    user: String,
    pub id: String,
    pub network: String,
    pub router: String,
}

impl BenchProject {
    pub async fn create(clouds: &Path, cloud: &str) -> anyhow::Result<Self> {
        let admin = Session::new(CloudsFile::read(Some(clouds))?.cloud(Some(cloud))?)?;
        let identity = admin.identity();
        let name = format!("bench-{}", std::process::id());
        let id = identity.create_project(&name, "default").await?.id;
        let user = NewUser {
            name: name.clone(),
            domain: "default".to_owned(),
            password: SecretText::new(PASSWORD),
            description: String::new(),
            default_project: None,
        };
        let user = identity.create_user(&user).await?.id;
        let roles = identity.list_roles().await?;
        let member = roles.iter().find(|role| role.name == "member").context("the cloud has no role member")?;
        identity.assign_role(&id, &user, &member.id).await?;
        let limits = json!({"instances": -1, "cores": -1, "ram": -1, "server_groups": -1});
        admin.compute().set_quota(&id, &limits).await?;
        let limits = json!({"port": -1, "security_group_rule": -1, "security_group": -1});
        admin.network().set_quota(&id, &limits).await?;
        let yaml = format!(
            "clouds:\n  bench:\n    region_name: RegionOne\n    auth:\n      auth_url: {}\n      username: {name}\n      \
             password: {PASSWORD}\n      project_name: {name}\n",
            admin.auth_url()
        );
        let session = Session::new(CloudsFile::parse("bench", &yaml)?.cloud(None)?)?;
        let client = session.network();
        let network = client.create_network("nodes", "").await?.id;
        let subnet = client.create_subnet(&network, "nodes", "10.180.0.0/16").await?.id;
        let router = client.create_router("router", None).await?.id;
        client.add_router_interface(&router, &subnet).await?;
        Ok(Self { admin, session, yaml, user, id, network, router })
    }

    /// The project's login as a file.
    pub fn clouds_file(&self, directory: &Path) -> anyhow::Result<PathBuf> {
        let file = directory.join("clouds.yaml");
        mainstay_server::pki::write_private(&file, &self.yaml)?;
        Ok(file)
    }

    /// How many servers per second Nova is rid of, if ten are deleted at once and nothing else is asked of it.
    pub async fn measure_deletes(&self, count: usize) -> anyhow::Result<f64> {
        let compute = self.session.compute();
        let flavor = compute.list_flavors().await?.into_iter().find(|flavor| flavor.name == "m1.tiny");
        let image = self.session.image().list_images(Some("tiny")).await?.into_iter().next();
        let (flavor, image) = (flavor.context("no flavor m1.tiny")?.id, image.context("no image tiny")?.id);
        for number in 0..count {
            let server = NewServer {
                name: format!("delete-{number}"),
                flavor: flavor.clone(),
                image: Some(image.clone()),
                networks: vec![ServerNetwork { network: Some(self.network.clone()), ..ServerNetwork::default() }],
                ..NewServer::default()
            };
            compute.create_server(&server).await?;
        }
        let all = || self.list_servers();
        while all().await?.iter().any(|(_, status)| status == "BUILD") {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let ids: Vec<String> = all().await?.into_iter().map(|(id, _)| id).collect();
        let began = Instant::now();
        let deletes = stream::iter(&ids).map(|id| async { self.session.compute().delete_server(id).await });
        let results: Vec<_> = deletes.buffer_unordered(CONCURRENCY).collect().await;
        results.into_iter().collect::<Result<Vec<_>, _>>()?;
        while !all().await?.is_empty() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(ids.len() as f64 / began.elapsed().as_secs_f64())
    }

    async fn list_servers(&self) -> anyhow::Result<Vec<(String, String)>> {
        let servers = self.session.compute().list_servers(&ServerFilter::default()).await?;
        Ok(servers.into_iter().map(|server| (server.id, server.status)).collect())
    }

    pub async fn remove(self) -> anyhow::Result<()> {
        self.admin.identity().delete_user(&self.user).await?;
        Ok(())
    }
}
