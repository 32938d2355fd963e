//! `mainstay machine`: which machines are expected, seen, failing, and at which version. The questions are JioCloud's, with its exit
//! codes; [`mainstay_machines::questions`] answers them from the Machines that they are about, which [`query`] reads.
//!
//! On a machine that only runs an agent, the API is asked as its node, which may read and report its own Machine alone.

mod answers;
mod expect;
mod own;
pub mod query;
mod services;

use std::{
    io::{self, BufRead, IsTerminal, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use jiff::{SignedDuration, Timestamp};
use kube::{Api, Client};
use mainstay_agent::machine_steps::DEFAULT_VERSION_FILE;
use mainstay_api::machine::{MachineAxis, version_violation};

use self::query::MachineQuery;
use crate::{api_contact::ApiContact, cli::DataDir, exit::Exit, machine, terminal::printable, why};

/// Of names on standard input: more than all machines of the largest cluster have together.
const MOST_BYTES_OF_NAMES: u64 = 16 << 20;

#[derive(Debug, Args)]
pub struct MachineCommandOptions {
    #[command(subcommand)]
    command: MachineCommand,

    /// Print JSON, for programs
    #[arg(long, global = true)]
    json: bool,

    /// How to reach the API [default: admin.kubeconfig in the data directory, or as the node of this machine's agent]
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,

    /// Where everything is kept [default: /var/lib/mainstay as root, ~/.local/share/mainstay otherwise]
    #[arg(long, env = "MAINSTAY_DATA_DIR", value_name = "DIR", global = true)]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum MachineCommand {
    /// Say that these machines should be there
    Expect {
        /// Their names [default: those on standard input, one per line]
        #[arg(value_name = "NAME")]
        names: Vec<String>,

        /// Labels of the machines
        #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = crate::cli::label)]
        label: Vec<(String, String)>,

        /// Expect them no longer
        #[arg(long, conflicts_with = "label")]
        undo: bool,
    },
    /// Show machines and their states
    List {
        /// Only those that were never seen, are silent, or are not expected; ends with 1 if there are any
        #[arg(long)]
        unaccounted: bool,
    },
    /// Have all machines of a Release brought to a version
    TriggerUpdate {
        #[arg(value_parser = version)]
        version: String,

        /// Which Release, if there are several
        #[arg(long, value_name = "NAME")]
        release: Option<String>,
    },
    /// Print the version that machines are to run
    CurrentVersion {
        /// Of which Release, if there are several
        #[arg(long, value_name = "NAME")]
        release: Option<String>,
    },
    /// Say whether this machine is to change its version: ends with 0 if it is, 1 if not, 2 if nobody answers, 3 if that leaves no clue
    PendingUpdate(OwnMachine),
    /// Print the version that this machine runs, or set it
    LocalVersion {
        #[arg(value_parser = version)]
        version: Option<String>,

        #[command(flatten)]
        file: VersionFile,
    },
    /// Report the version that this machine runs
    UpdateOwnInfo {
        #[arg(long, value_name = "NAME")]
        hostname: Option<String>,

        #[arg(long, value_parser = version)]
        version: Option<String>,
    },
    /// Print the versions that machines run
    RunningVersions(Expiry),
    /// Print the machines that run a version
    HostsAtVersion {
        #[arg(value_parser = version)]
        version: String,

        #[command(flatten)]
        expiry: Expiry,
    },
    /// Ends with 0 if all these machines run a version, with 1 if not
    VerifyHosts {
        #[arg(value_parser = version)]
        version: String,

        /// Names of machines [default: those on standard input, one per line]
        #[arg(value_name = "NAME")]
        names: Vec<String>,

        #[command(flatten)]
        expiry: Expiry,
    },
    /// Ends with 0 if machines run this version and no other, with 1 if not
    CheckSingleVersion {
        #[arg(value_parser = version)]
        version: String,

        /// Print the other versions
        #[arg(short, long)]
        verbose: bool,

        #[command(flatten)]
        expiry: Expiry,
    },
    /// Report how configuration or validation of this machine ended
    UpdateOwnStatus {
        #[arg(long, value_name = "NAME")]
        hostname: Option<String>,

        kind: ResultKind,

        /// Exit code; of configuration 1, 4 and 6 are failures and -1 waits for others, of validation all but 0 are failures
        #[arg(allow_negative_numbers = true)]
        result: i32,
    },
    /// List what fails; ends with 1 if something does
    GetFailures {
        /// Print names of machines alone
        #[arg(long)]
        hosts: bool,

        /// Also what is pending
        #[arg(long, alias = "show_warnings")]
        show_warnings: bool,
    },
    /// Say what fails on this machine; ends with the number of failures
    LocalHealth {
        #[arg(long, value_name = "NAME")]
        hostname: Option<String>,

        /// Print what fails and why
        #[arg(short, long)]
        verbose: bool,
    },
    /// Ends with 0 if the API answers, with 1 if not
    Ping,
    /// Publish that this machine has these roles, with the addresses of its interfaces
    PublishService {
        /// Names of services [default: those on standard input, one per line]
        #[arg(value_name = "ROLE")]
        roles: Vec<String>,
    },
    /// Print the addresses of all services of machines, as lines of services::<role>::<interface>
    CacheServices {
        /// Write them to this file, if they changed
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct OwnMachine {
    /// Name of the machine [default: its host name]
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,

    #[command(flatten)]
    file: VersionFile,
}

#[derive(Debug, Args)]
struct Expiry {
    /// A machine that was silent for longer no longer counts as running its version
    #[arg(long, env = "MAINSTAY_VERSION_EXPIRY", value_name = "TIME", default_value = "130s", value_parser = crate::cli::duration)]
    expiry: Duration,
}

impl Expiry {
    /// Who is silent since before then does not count.
    fn heard_since(&self) -> Timestamp {
        let expiry = SignedDuration::try_from(self.expiry).unwrap_or(SignedDuration::MAX);
        Timestamp::now().saturating_sub(expiry).unwrap_or(Timestamp::MIN)
    }
}

#[derive(Debug, Args)]
struct VersionFile {
    /// File with the version that this machine runs
    #[arg(long, value_name = "FILE", default_value = DEFAULT_VERSION_FILE)]
    version_file: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ResultKind {
    #[value(alias = "puppet")]
    Configuration,
    Validation,
}

impl ResultKind {
    fn axis(self) -> MachineAxis {
        match self {
            Self::Configuration => MachineAxis::Configured,
            Self::Validation => MachineAxis::Validated,
        }
    }
}

fn version(text: &str) -> Result<String, String> {
    match version_violation(text) {
        Some(why) => Err(why.to_owned()),
        None => Ok(text.to_owned()),
    }
}

/// How the API is reached, and how answers are printed.
struct Session<'a> {
    kubeconfig: Option<&'a Path>,
    data: DataDir,
    json: bool,
}

pub fn run(options: &MachineCommandOptions) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    let session = Session {
        kubeconfig: options.kubeconfig.as_deref(),
        data: DataDir { data_dir: options.data_dir.clone() },
        json: options.json,
    };
    runtime.block_on(session.run(&options.command))
}

impl Session<'_> {
    async fn run(&self, command: &MachineCommand) -> Result<(), Exit> {
        match command {
            MachineCommand::Expect { names, label, undo } => self.expect(&given_names(names)?, label, !undo).await,
            MachineCommand::List { unaccounted } => self.list(*unaccounted).await,
            MachineCommand::TriggerUpdate { version, release } => {
                self.trigger_update(version, release.as_deref()).await
            }
            MachineCommand::CurrentVersion { release } => self.current_version(release.as_deref()).await,
            MachineCommand::PendingUpdate(own) => {
                self.pending_update(&own_name(own.hostname.as_deref())?, &own.file.version_file).await
            }
            MachineCommand::LocalVersion { version, file } => {
                self.local_version(version.as_deref(), &file.version_file)
            }
            MachineCommand::UpdateOwnInfo { hostname, version } => {
                self.update_own_info(&own_name(hostname.as_deref())?, version.as_deref()).await
            }
            MachineCommand::RunningVersions(expiry) => self.running_versions(expiry.heard_since()).await,
            MachineCommand::HostsAtVersion { version, expiry } => {
                self.hosts_at_version(version, expiry.heard_since()).await
            }
            MachineCommand::VerifyHosts { version, names, expiry } => {
                self.verify_hosts(version, &given_names(names)?, expiry.heard_since()).await
            }
            MachineCommand::CheckSingleVersion { version, verbose, expiry } => {
                self.check_single_version(version, *verbose, expiry.heard_since()).await
            }
            MachineCommand::UpdateOwnStatus { hostname, kind, result } => {
                self.update_own_status(&own_name(hostname.as_deref())?, kind.axis(), *result).await
            }
            MachineCommand::GetFailures { hosts, show_warnings } => self.get_failures(*hosts, *show_warnings).await,
            MachineCommand::LocalHealth { hostname, verbose } => {
                self.local_health(&own_name(hostname.as_deref())?, *verbose).await
            }
            MachineCommand::Ping => self.ping().await,
            MachineCommand::PublishService { roles } => self.publish_service(&given_names(roles)?),
            MachineCommand::CacheServices { file } => self.cache_services(file.as_deref()).await,
        }
    }

    /// As the administrator if that is possible here, else as the node of this machine.
    async fn connect(&self) -> anyhow::Result<Client> {
        let is_administrator = self.kubeconfig.is_some() || self.data.path().join("admin.kubeconfig").exists();
        let directory = machine::directory_settings(&self.data.path()).directory;
        match ApiContact::read(&directory)?.filter(|_| !is_administrator) {
            Some(contact) => contact.connect(&directory).await,
            None => why::connect(self.kubeconfig, &self.data).await,
        }
    }

    async fn machines(&self) -> anyhow::Result<MachineQuery> {
        Ok(MachineQuery(Api::all(self.connect().await?)))
    }

    /// Prints one line each, or all as JSON.
    fn print(&self, lines: impl IntoIterator<Item = String>, json: &serde_json::Value) {
        if self.json {
            println!("{json}");
        } else {
            let lines: String = lines.into_iter().map(|line| printable(&line) + "\n").collect();
            print!("{lines}");
        }
    }
}

/// The answer is no, which was said.
fn answer(holds: bool) -> Result<(), Exit> {
    if holds { Ok(()) } else { Err(Exit::Code(1)) }
}

/// Names from the command line, or else from standard input.
fn given_names(arguments: &[String]) -> anyhow::Result<Vec<String>> {
    if !arguments.is_empty() || io::stdin().is_terminal() {
        return Ok(arguments.to_vec());
    }
    read_names(io::stdin().lock(), MOST_BYTES_OF_NAMES)
}

/// One in each line; an input that does not end is refused instead of filling the memory.
fn read_names(input: impl BufRead, most: u64) -> anyhow::Result<Vec<String>> {
    let mut text = String::new();
    let read = input.take(most + 1).read_to_string(&mut text).context("read names from standard input")?;
    anyhow::ensure!(read as u64 <= most, "read names from standard input: they are more than {most} bytes");
    let names = text.lines().map(str::trim).filter(|name| !name.is_empty());
    Ok(names.map(str::to_owned).collect())
}

fn own_name(given: Option<&str>) -> anyhow::Result<String> {
    if let Some(name) = given {
        return Ok(name.to_owned());
    }
    let host = nix::unistd::gethostname().context("ask for the host name; or name the machine with --hostname")?;
    let name = host.into_string().map_err(|_| anyhow!("the host name is no text; name the machine with --hostname"))?;
    Ok(name.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lines_and_an_input_without_an_end_is_refused() {
        let names = read_names(&b" a \n\nb.example\r\nc"[..], 100).unwrap();
        assert_eq!(names, ["a", "b.example", "c"]);
        assert_eq!(read_names(&b""[..], 100).unwrap(), Vec::<String>::new());
        let endless = io::BufReader::new(io::repeat(b'x'));
        assert!(read_names(endless, 1000).unwrap_err().to_string().contains("more than 1000 bytes"));
    }
}
