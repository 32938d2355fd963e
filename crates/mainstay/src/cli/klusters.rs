//! Flags of Klusters, which servers with a cloud run.

use std::net::SocketAddr;

use anyhow::Context;
use clap::Args;
use mainstay_cloud::{
    facade::FacadeSettings,
    klusters::{KlusterSettings, ProgramDownload, ServiceType, ServiceUserSettings, parse_images},
};

/// The version of Kubernetes that this program is.
pub const KUBERNETES_VERSION: &str = "1.37.0";

#[derive(Debug, Args)]
pub struct KlusterOptions {
    /// A version of Klusters and the image of its servers, `1.37.0=registry/mainstay:1`; this program, from the machine's own files, if none is given
    #[arg(long, env = "MAINSTAY_KLUSTER_IMAGES", value_name = "VERSION=IMAGE", value_delimiter = ',')]
    pub kluster_images: Vec<String>,

    /// The program in these images [default: where this program is]
    #[arg(long, env = "MAINSTAY_KLUSTER_PROGRAM", value_name = "PATH")]
    pub kluster_program: Option<String>,

    /// Where machines of Klusters that Ignition sets up (Flatcar) fetch this program from [default: their image has it in /opt/bin]
    #[arg(long, env = "MAINSTAY_KLUSTER_AGENT_URL", value_name = "URL", requires = "kluster_agent_sha512")]
    pub kluster_agent_url: Option<String>,

    /// SHA-512 of the program at --kluster-agent-url, in hexadecimal
    #[arg(long, env = "MAINSTAY_KLUSTER_AGENT_SHA512", value_name = "HASH", requires = "kluster_agent_url")]
    pub kluster_agent_sha512: Option<String>,

    /// StorageClass of volumes of Klusters' servers [default: the cluster's default one]
    #[arg(long, env = "MAINSTAY_KLUSTER_STORAGE_CLASS", value_name = "NAME")]
    pub kluster_storage_class: Option<String>,

    /// Domain of Klusters: the API of each is reached at NAME.DOMAIN [default: the address of its Service]
    #[arg(long, env = "MAINSTAY_KLUSTER_DOMAIN", value_name = "DOMAIN")]
    pub kluster_domain: Option<String>,

    /// Type of the Services of Klusters' APIs: with LoadBalancer, machines outside of this cluster reach them
    #[arg(long, env = "MAINSTAY_KLUSTER_SERVICE_TYPE", value_name = "TYPE", default_value = "ClusterIP", value_parser = ["ClusterIP", "LoadBalancer"])]
    pub kluster_service_type: String,

    /// Domain of Keystone in which each Kluster gets a user; none get one without it
    #[arg(long, env = "MAINSTAY_KLUSTER_USER_DOMAIN", value_name = "NAME")]
    pub kluster_user_domain: Option<String>,

    /// Roles of these users in their projects
    #[arg(long, env = "MAINSTAY_KLUSTER_USER_ROLES", value_name = "ROLE", value_delimiter = ',', default_values_t = ["network_admin".to_owned(), "member".to_owned()])]
    pub kluster_user_roles: Vec<String>,

    /// Address of the REST API of Kubernikus, plain HTTP for whatever terminates TLS before it; off without it
    #[arg(long, env = "MAINSTAY_KUBERNIKUS_LISTEN", value_name = "ADDRESS:PORT")]
    pub kubernikus_listen: Option<SocketAddr>,

    /// Namespace of Klusters that are made through it
    #[arg(long, env = "MAINSTAY_KUBERNIKUS_NAMESPACE", value_name = "NAMESPACE", default_value = "kubernikus")]
    pub kubernikus_namespace: String,
}

impl KlusterOptions {
    pub fn settings(&self) -> anyhow::Result<KlusterSettings> {
        let program = match &self.kluster_program {
            Some(program) => program.clone(),
            None => std::env::current_exe()?.display().to_string(),
        };
        let mut settings = KlusterSettings::of_this_program(KUBERNETES_VERSION, &program);
        if !self.kluster_images.is_empty() {
            settings.images = parse_images(&self.kluster_images).context("--kluster-images")?;
        }
        if let (Some(url), Some(hash)) = (&self.kluster_agent_url, &self.kluster_agent_sha512) {
            settings.agent = Some(ProgramDownload::new(url, hash).context("--kluster-agent-url")?);
        }
        settings.storage_class = self.kluster_storage_class.clone();
        settings.domain = self.kluster_domain.clone();
        settings.service_type = ServiceType::parse(&self.kluster_service_type).context("--kluster-service-type")?;
        let roles = self.kluster_user_roles.clone();
        settings.service_users = self.kluster_user_domain.clone().map(|domain| ServiceUserSettings { domain, roles });
        Ok(settings)
    }

    pub fn facade_settings(&self) -> FacadeSettings {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        FacadeSettings { namespace: self.kubernikus_namespace.clone(), version }
    }
}
