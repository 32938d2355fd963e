//! Flags of the simulator.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::LogFormat;

/// Starts a real server with its store, scheduler and controllers in this process, and hollow machines beside it:
/// they register, offer, take pods and say that they run, but nothing does. Pods are created through the API
/// over TLS. Prints what it measured, and leaves nothing behind.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mainstay sim                                     a quick look: 100 machines, 1,000 pods
  mainstay sim --nodes 1000 --pods 30000           the size of a large cluster
  mainstay sim --nodes 1000 --pods 0 --deployment 5000
  mainstay sim --nodes 50 --pods 2000 --silent 10 --refusing 5 --seed 7")]
pub struct SimOptions {
    /// Hollow machines
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = number(1..=16_000))]
    pub nodes: usize,

    /// Pods to create, in each round
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = number(0..=1_000_000))]
    pub pods: usize,

    /// Clients that create them, with one connection each
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = number(1..=1000))]
    pub clients: usize,

    /// Then scale a Deployment from nothing to so many replicas
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number(0..=1_000_000))]
    pub deployment: usize,

    /// Leave out the round in which all pods wait before any machine offers
    #[arg(long)]
    pub no_backlog: bool,

    /// One watch of pods for each machine, as real agents have, instead of one for all
    #[arg(long)]
    pub watch_each: bool,

    /// Thousandths of a cpu each machine has
    #[arg(long, value_name = "MILLI", default_value_t = 32_000, value_parser = clap::value_parser!(i64).range(1..))]
    pub cpu: i64,

    /// Memory each machine has, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 131_072, value_parser = clap::value_parser!(i64).range(1..=1 << 40))]
    pub memory: i64,

    /// Pods each machine takes
    #[arg(long, value_name = "N", default_value_t = 110, value_parser = clap::value_parser!(i64).range(1..))]
    pub max_pods: i64,

    /// Zones the machines are spread over; 0 for none
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub zones: usize,

    /// Labels of all machines
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = label)]
    pub labels: Vec<(String, String)>,

    /// How long a pod takes to be ready, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub start_delay: u64,

    /// Pods are bound, but no machine says that they run
    #[arg(long, conflicts_with = "start_delay")]
    pub no_reports: bool,

    /// What decides which machines misbehave
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Machines of a hundred that fall silent during the first ten seconds
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = percent())]
    pub silent: u8,

    /// Machines of a hundred that offer more than they have
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = percent())]
    pub lying: u8,

    /// Machines of a hundred that refuse every pod
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = percent())]
    pub refusing: u8,

    /// How long to look at the CPU once everything rests, in seconds; 0 not to
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub idle: u64,

    /// Where the store is kept meanwhile, in a directory that is removed at the end [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Print the figures as JSON
    #[arg(long)]
    pub json: bool,

    /// How log lines look
    #[arg(long, env = "MAINSTAY_LOG_FORMAT", value_enum, default_value_t = LogFormat::Human)]
    pub log_format: LogFormat,

    /// What is logged
    #[arg(long, env = "MAINSTAY_LOG", value_name = "FILTER", default_value = "error")]
    pub log: String,
}

impl SimOptions {
    pub fn start_delay(&self) -> Option<Duration> {
        (!self.no_reports).then(|| Duration::from_millis(self.start_delay))
    }
}

fn number(range: std::ops::RangeInclusive<u64>) -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser;
    clap::value_parser!(u64).range(range).map(|number| usize::try_from(number).unwrap_or(usize::MAX))
}

fn percent() -> impl clap::builder::TypedValueParser<Value = u8> {
    clap::value_parser!(u8).range(0..=100)
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    if key.is_empty() { Err("must be KEY=VALUE".to_owned()) } else { Ok((key.to_owned(), value.to_owned())) }
}
