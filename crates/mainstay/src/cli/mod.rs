//! The command line. Every flag is also an environment variable and a key of the `--config` file.

mod cloud;
mod klusters;
mod machine;
mod node_loss;
mod scheduler;
mod server;
mod sim;

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use mainstay_agent::leftovers::Instance;

pub use self::{
    cloud::CloudOptions,
    machine::{MachineOptions, NetworkChoice, RouteCheckChoice, RuntimeChoice, label},
    server::{AuditOptions, ServerOptions},
    sim::SimOptions,
};
use crate::{
    cloud_command::CloudCommandOptions, config::ConfigOptions, config_file, convert::ConvertOptions,
    demo::web::WebOptions, drain::DrainOptions, exit::Exit, image::ImageOptions,
    machine_command::MachineCommandOptions, needs::NeedsOptions, release_command::ReleaseOptions,
    secrets::SecretsOptions, service_command::ServiceOptions, token::TokenOptions, upgrade::UpgradeOptions,
    why::WhyOptions,
};

/// Runs pods on your own machines and keeps them up, behind the Kubernetes API.
#[derive(Debug, Parser)]
#[command(name = "mainstay", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a cluster on this machine
    Up(Box<UpOptions>),
    /// Start a server that other machines can reach
    Server(Box<ServerOptions>),
    /// Run pods on this machine for a server elsewhere
    Agent(Box<AgentOptions>),
    /// Stop what runs on this machine; its containers run on
    Stop(StopOptions),
    /// Stop what runs on this machine, end its pods, and leave nothing behind but the data directory
    Down(DownOptions),
    /// Write a consistent copy of the store to FILE, while the server runs or not
    Backup(BackupOptions),
    /// Make the store what it was when the backup FILE was written
    Restore(RestoreOptions),
    /// Evict the pods of a node, honouring budgets, so that it can be stopped; --undo to have it take pods again
    Drain(DrainOptions),
    /// Replace the program with another version while pods run on, and go back if that does not become healthy
    Upgrade(UpgradeOptions),
    /// Pull, import, list, tag and remove images of this machine
    Image(ImageOptions),
    /// Change the key that encrypts Secrets in the store
    Secrets(SecretsOptions),
    /// Create, list and delete the tokens with which machines join
    Token(TokenOptions),
    /// Machines: which are expected, seen, failing, and at which version
    Machine(MachineCommandOptions),
    /// What this cluster has in a cloud, and what is left there
    Cloud(CloudCommandOptions),
    /// Bring machines to a version in waves: show, hold, approve, pause, undo and abort releases
    Release(ReleaseOptions),
    /// Services of this machine's own programs: publish, withdraw, report and show them
    Service(ServiceOptions),
    /// Say why a pod, workload, Service, claim, node or namespace is not as it should be, and what to do next
    Why(WhyOptions),
    /// Show what pods need of each other, and what they wait for
    Needs(NeedsOptions),
    /// Show the versions of a ConfigTemplate, return to one, pause and go on
    Config(ConfigOptions),
    /// Turn units of systemd and fleet into manifests
    Convert(ConvertOptions),
    /// Measure how large a cluster can be: a real server with hollow nodes, which run no containers
    Sim(Box<SimOptions>),
    /// Check that this program reads everything in a data directory
    #[command(hide = true)]
    CheckData(CheckDataOptions),
    /// The program of the demo's pods
    #[command(hide = true)]
    DemoWeb(WebOptions),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Human,
    Json,
}

/// A time of at least a second and at most a week.
fn seconds() -> impl clap::builder::TypedValueParser<Value = u64> {
    clap::value_parser!(u64).range(1..=7 * 24 * 3600)
}

/// The first addresses of the range are those of the API and of DNS.
fn service_range(text: &str) -> Result<mainstay_network::Range, String> {
    let range: mainstay_network::Range =
        text.parse().map_err(|error: mainstay_network::InvalidRange| error.to_string())?;
    if (12..=27).contains(&range.bits()) { Ok(range) } else { Err("must be of a size from /12 to /27".to_owned()) }
}

/// A duration such as `5s` or `1m30s`.
pub fn duration(text: &str) -> Result<std::time::Duration, String> {
    mainstay_api::duration::parse_duration(text).ok_or_else(|| format!("{text:?} {}", mainstay_api::duration::EXPECTED))
}

/// A duration that the API can express in seconds.
fn whole_seconds(text: &str) -> Result<std::time::Duration, String> {
    let time = duration(text)?;
    if time.subsec_nanos() == 0 { Ok(time) } else { Err("must be whole seconds, such as 30s or 2m".to_owned()) }
}

/// Offers say in whole seconds how long they are good for.
fn offer_ttl(text: &str) -> Result<std::time::Duration, String> {
    let bare = text.parse().ok().map(std::time::Duration::from_secs);
    let time = bare.map_or_else(|| duration(text), Ok)?;
    let whole = time.subsec_nanos() == 0 && (1..=3600).contains(&time.as_secs());
    if whole { Ok(time) } else { Err("must be whole seconds, at least 1s and at most 1h".to_owned()) }
}

#[derive(Debug, Args)]
pub struct DataDir {
    /// Where everything is kept [default: /var/lib/mainstay as root, ~/.local/share/mainstay otherwise]
    #[arg(long, env = "MAINSTAY_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Where the embedded store is, for commands that read or write it.
#[derive(Debug, Args)]
pub struct StoreDir {
    /// Directory of the file store, to put it on a file system of its own [default: `store` in the data directory]
    #[arg(long, env = "MAINSTAY_STORE_DIR", value_name = "DIR")]
    pub store_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct UpOptions {
    #[command(flatten)]
    pub server: ServerOptions,

    #[command(flatten)]
    pub machine: MachineOptions,

    /// Show three web servers, one of them killed and healed
    #[arg(long, env = "MAINSTAY_DEMO")]
    pub demo: bool,
}

#[derive(Debug, Args)]
pub struct AgentOptions {
    #[command(flatten)]
    pub data: DataDir,

    #[command(flatten)]
    pub common: CommonOptions,

    /// URLs of servers, one at least; others of the cluster are learnt. Without one, only the pods of --static-pods run
    #[arg(long, env = "MAINSTAY_SERVER", value_name = "URL", value_delimiter = ',')]
    pub server: Vec<String>,

    /// Token that lets this machine join, from `mainstay token create`; needed once
    #[arg(long, env = "MAINSTAY_TOKEN", value_name = "TOKEN", requires = "server")]
    pub token: Option<String>,

    #[command(flatten)]
    pub machine: MachineOptions,
}

/// What every command that keeps running understands.
#[derive(Debug, Args)]
pub struct CommonOptions {
    /// Addresses of all machines' pods; each machine gets a part of it. The same on all servers and machines
    #[arg(long, env = "MAINSTAY_POD_RANGE", value_name = "RANGE", default_value = "10.244.0.0/16")]
    pub pod_range: mainstay_network::Range,

    /// Addresses of all Services. The same on all servers and machines
    #[arg(long, env = "MAINSTAY_SERVICE_RANGE", value_name = "RANGE", default_value = "10.96.0.0/16", value_parser = service_range)]
    pub service_range: mainstay_network::Range,

    /// Domain of the cluster's names. The same on all servers and machines
    #[arg(long, env = "MAINSTAY_CLUSTER_DOMAIN", value_name = "DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,

    /// How long what a machine offers is good for unless it is renewed; without a good offer it gets no new pods [default: 5s]
    #[arg(long, env = "MAINSTAY_OFFER_TTL", value_name = "TIME", value_parser = offer_ttl)]
    pub offer_ttl: Option<std::time::Duration>,

    /// Read flags from this TOML file; the command line and the environment win
    #[arg(long, env = "MAINSTAY_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// How log lines look
    #[arg(long, env = "MAINSTAY_LOG_FORMAT", value_enum, default_value_t = LogFormat::Human)]
    pub log_format: LogFormat,

    /// What is logged: error, warn, info, debug, or per module as in `warn,mainstay_server=debug` [default: info; warn with --demo]
    #[arg(long, env = "MAINSTAY_LOG", value_name = "FILTER")]
    pub log: Option<String>,
}

#[derive(Debug, Args)]
pub struct StopOptions {
    #[command(flatten)]
    pub data: DataDir,

    /// How long to wait for it to end, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = seconds())]
    pub timeout: u64,
}

#[derive(Debug, Args)]
pub struct DownOptions {
    #[command(flatten)]
    pub stop: StopOptions,

    /// Longest time that containers get to stop [default: the grace of their pods]
    #[arg(long, env = "MAINSTAY_SHUTDOWN_GRACE", value_name = "TIME", value_parser = duration)]
    pub shutdown_grace: Option<std::time::Duration>,

    /// Find what any instance without a data directory and a process left on this machine, and remove it
    #[arg(long)]
    pub leftovers: bool,

    /// Only list what is left over; ends with 1 if there is something
    #[arg(long, requires = "leftovers")]
    pub dry_run: bool,

    /// Only this instance, as it is listed
    #[arg(long, requires = "leftovers", value_name = "ID")]
    pub instance: Option<Instance>,
}

#[derive(Debug, Args)]
pub struct BackupOptions {
    /// File to write; must not exist
    pub file: PathBuf,

    #[command(flatten)]
    pub data: DataDir,

    #[command(flatten)]
    pub place: StoreDir,
}

#[derive(Debug, Args)]
pub struct CheckDataOptions {
    #[command(flatten)]
    pub data: DataDir,
}

#[derive(Debug, Args)]
pub struct RestoreOptions {
    /// Backup to restore from
    pub file: PathBuf,

    #[command(flatten)]
    pub data: DataDir,

    #[command(flatten)]
    pub place: StoreDir,

    /// Replace a store that holds data; the old one is set aside
    #[arg(long)]
    pub force: bool,
}

impl DataDir {
    pub fn path(&self) -> PathBuf {
        if let Some(dir) = &self.data_dir {
            return dir.clone();
        }
        let home = std::env::var_os("HOME").map(PathBuf::from);
        match (is_root(), home) {
            (false, Some(home)) => home.join(".local/share/mainstay"),
            _ => "/var/lib/mainstay".into(),
        }
    }
}

pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, Exit> {
    let args: Vec<OsString> = args.into_iter().collect();
    let mut command = Cli::command();
    if let Some(file) = config_file::named_in(&args) {
        command = config_file::apply(command, &file)?;
    }
    let matches = command.try_get_matches_from(args).map_err(Exit::Usage)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(Exit::Usage)?;
    match &mut cli.command {
        Command::Up(options) => {
            options.server.listen_by_default([127, 0, 0, 1]);
            if options.demo {
                options.server.allow_pods_of_demo();
            }
        }
        Command::Server(options) => options.listen_by_default([0, 0, 0, 0]),
        Command::Agent(_)
        | Command::Stop(_)
        | Command::Down(_)
        | Command::Backup(_)
        | Command::Restore(_)
        | Command::Image(_)
        | Command::Secrets(_)
        | Command::Token(_)
        | Command::Machine(_)
        | Command::Cloud(_)
        | Command::Release(_)
        | Command::Service(_)
        | Command::Why(_)
        | Command::Needs(_)
        | Command::Config(_)
        | Command::Convert(_)
        | Command::Sim(_)
        | Command::Drain(_)
        | Command::Upgrade(_)
        | Command::CheckData(_)
        | Command::DemoWeb(_) => {}
    }
    Ok(cli.command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Command, Exit> {
        parse(args.iter().map(OsString::from))
    }

    fn up(args: &[&str]) -> ServerOptions {
        match parsed(args) {
            Ok(Command::Up(options)) => options.server,
            Ok(Command::Server(options)) => *options,
            Ok(other) => panic!("{other:?}"),
            Err(Exit::Usage(error)) => panic!("{error}"),
            Err(Exit::Refused(error) | Exit::Failed(error)) => panic!("{error:#}"),
            Err(Exit::Code(code)) => panic!("{code}"),
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn up_listens_locally_and_server_everywhere() {
        assert_eq!(up(&["mainstay", "up"]).listen.unwrap().to_string(), "127.0.0.1:6443");
        assert_eq!(up(&["mainstay", "server"]).listen.unwrap().to_string(), "0.0.0.0:6443");
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let file = std::env::temp_dir().join(format!("mainstay-cli-{}.toml", std::process::id()));
        std::fs::write(&file, "listen = \"127.0.0.1:7000\"\nmax-reads = 7\ntls-san = [\"a\", \"b\"]\n").unwrap();
        let path = file.to_str().unwrap();
        let options = up(&["mainstay", "up", "--config", path]);
        assert_eq!((options.listen.unwrap().port(), options.max_reads), (7000, 7));
        assert_eq!(options.tls_san, ["a", "b"]);
        let options = up(&["mainstay", "up", &format!("--config={path}"), "--max-reads", "9"]);
        assert_eq!(options.max_reads, 9);
        std::fs::write(&file, "lisen = \"127.0.0.1:7000\"\n").unwrap();
        match parsed(&["mainstay", "up", "--config", path]) {
            Err(Exit::Refused(error)) => assert!(format!("{error:#}").contains("lisen"), "{error:#}"),
            _ => panic!("an unknown key was accepted"),
        }
        std::fs::remove_file(file).unwrap();
    }

    #[test]
    fn the_directory_of_the_store_is_a_flag_of_all_that_use_it() {
        assert_eq!(up(&["mainstay", "up"]).place.store_dir, None);
        assert_eq!(up(&["mainstay", "server", "--store-dir", "/s"]).place.store_dir, Some("/s".into()));
        let Ok(Command::Backup(backup)) = parsed(&["mainstay", "backup", "f", "--store-dir", "/s"]) else { panic!() };
        assert_eq!(backup.place.store_dir, Some("/s".into()));
        let Ok(Command::Restore(restore)) = parsed(&["mainstay", "restore", "f", "--store-dir", "/s"]) else {
            panic!()
        };
        assert_eq!(restore.place.store_dir, Some("/s".into()));
    }

    #[test]
    fn halves_of_a_pair_are_refused() {
        let Err(Exit::Usage(error)) = parsed(&["mainstay", "up", "--etcd-cert", "x"]) else { panic!("accepted") };
        assert!(error.to_string().contains("--etcd-key"), "{error}");
    }
}
