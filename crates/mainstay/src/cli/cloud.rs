//! Flags about the cloud that a server's cluster is in.

use std::path::PathBuf;

use clap::Args;

use super::klusters::KlusterOptions;

#[derive(Debug, Args)]
pub struct CloudOptions {
    /// A clouds.yaml: volumes and load balancers of this cluster are made in the cloud that it describes
    #[arg(long, env = "MAINSTAY_CLOUD_CONFIG", value_name = "FILE")]
    pub cloud_config: Option<PathBuf>,

    /// Which cloud of --cloud-config, if it has several
    #[arg(long, env = "MAINSTAY_CLOUD", value_name = "NAME", requires = "cloud_config")]
    pub cloud: Option<String>,

    /// Run these controllers of the cloud alone [default: all]
    #[arg(
        long,
        env = "MAINSTAY_CLOUD_CONTROLLERS",
        value_name = "NAME",
        value_delimiter = ',',
        requires = "cloud_config"
    )]
    pub cloud_controllers: Vec<String>,

    /// Id of the subnet that load balancers are in [default: the subnet of the nodes]
    #[arg(long, env = "MAINSTAY_CLOUD_LB_SUBNET", value_name = "ID", requires = "cloud_config")]
    pub cloud_lb_subnet: Option<String>,

    /// Id of the network that floating IPs of load balancers are of [default: the external network of that subnet's router]
    #[arg(long, env = "MAINSTAY_CLOUD_FLOATING_NETWORK", value_name = "ID", requires = "cloud_config")]
    pub cloud_floating_network: Option<String>,

    /// Make StorageClass cinder-default the default one, for claims that name none
    #[arg(long, env = "MAINSTAY_CLOUD_DEFAULT_STORAGE", requires = "cloud_config")]
    pub cloud_default_storage: bool,

    #[command(flatten)]
    pub klusters: KlusterOptions,

    /// Id of the router that gets a route to the pods of every node [default: nodes get no routes]
    #[arg(long, env = "MAINSTAY_CLOUD_ROUTER", value_name = "ID", requires = "cloud_config")]
    pub cloud_router: Option<String>,
}
