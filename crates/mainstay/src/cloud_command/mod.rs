//! `mainstay cloud`: what this cluster has in a cloud, and what is left there.

mod debris;
mod deorbit;
mod resource_list;

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use mainstay_cloud::openstack::{CloudsFile, ConfigError, Session};

use self::resource_list::{ApplyOptions, DeleteOptions, ListOptions, SshConfigOptions};
use crate::{cli::DataDir, exit::Exit};

#[derive(Debug, Args)]
pub struct CloudCommandOptions {
    #[command(subcommand)]
    command: CloudCommand,

    /// The clouds.yaml with the login [default: clouds.yaml in this directory, ~/.config/openstack or /etc/openstack]
    #[arg(long, env = "MAINSTAY_CLOUD_CONFIG", value_name = "FILE", global = true)]
    cloud_config: Option<PathBuf>,

    /// Which cloud of it, if it has several
    #[arg(long, env = "MAINSTAY_CLOUD", value_name = "NAME", global = true)]
    cloud: Option<String>,

    /// Print JSON, for programs
    #[arg(long, global = true)]
    json: bool,

    /// How to reach the API [default: admin.kubeconfig in the data directory]
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,

    /// Where everything is kept [default: /var/lib/mainstay as root, ~/.local/share/mainstay otherwise]
    #[arg(long, env = "MAINSTAY_DATA_DIR", value_name = "DIR", global = true)]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum CloudCommand {
    /// List what exists in the cloud with this cluster's tags and belongs to nothing here; ends with 1 if there is anything
    Debris {
        /// Delete it after showing it; ends with 0 if nothing remains
        #[arg(long)]
        delete: bool,
    },
    /// Create the servers of a list of roles that are missing; a second run changes nothing
    Apply(ApplyOptions),
    /// Delete the servers of a project tag, and their floating IPs
    Delete(DeleteOptions),
    /// List servers
    List(ListOptions),
    /// Print an ssh configuration that reaches servers through the first one with a floating IP
    SshConfig(SshConfigOptions),
    /// Remove what any Kubernetes cluster has in the cloud, and print a receipt; ends with 1 if something remains
    Deorbit(deorbit::DeorbitOptions),
}

pub fn run(options: &CloudCommandOptions) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    runtime.block_on(async {
        match &options.command {
            CloudCommand::Debris { delete } => debris::run(options, *delete).await,
            CloudCommand::Apply(apply) => resource_list::apply(&options.session()?, apply, options.json).await,
            CloudCommand::Delete(delete) => resource_list::delete(&options.session()?, delete, options.json).await,
            CloudCommand::List(list) => resource_list::list(&options.session()?, list, options.json).await,
            CloudCommand::SshConfig(config) => resource_list::print_ssh_config(&options.session()?, config).await,
            CloudCommand::Deorbit(deorbit) => deorbit::run(options, deorbit).await,
        }
    })
}

impl CloudCommandOptions {
    /// A session with the cloud that is named.
    fn session(&self) -> Result<Session, Exit> {
        let refused = |error: ConfigError| Exit::Refused(anyhow!(error).context("--cloud-config"));
        let config = CloudsFile::read(self.cloud_config.as_deref()).and_then(|file| file.cloud(self.cloud.as_deref()));
        Session::new(config.map_err(refused)?).map_err(refused)
    }

    async fn connect(&self) -> anyhow::Result<kube::Client> {
        let data = DataDir { data_dir: self.data_dir.clone() };
        crate::why::connect(self.kubeconfig.as_deref(), &data).await
    }
}
