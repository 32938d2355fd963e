//! `mainstay service`: services of programs that are not pods. Publishes and withdraws them, reports and shows how they fare.
//!
//! Everything is a file in the data directory, which the agent follows: definitions in `services.d`, reports beside its record. So the
//! commands need root and no server, and whether an agent runs does not matter.

mod publish;

use std::{fs, path::PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use mainstay_agent::host_services::{
    definition::{CheckStatus, ServiceDefinition},
    files::definitions_directory,
    health::{CheckReport, ttl},
    reports::{InstanceRecord, LONGEST_OUTPUT, ServicesRecord, record_path, write_report},
};
use serde_json::{Value, json};

pub use self::publish::write_definition;
use self::publish::{PublishOptions, id};
use crate::{cli::DataDir, exit::Exit, machine, terminal::printable};

#[derive(Debug, Args)]
pub struct ServiceOptions {
    #[command(subcommand)]
    command: ServiceCommand,

    /// Print JSON, for programs
    #[arg(long, global = true)]
    json: bool,

    /// Where everything is kept [default: /var/lib/mainstay as root, ~/.local/share/mainstay otherwise]
    #[arg(long, env = "MAINSTAY_DATA_DIR", value_name = "DIR", global = true)]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum ServiceCommand {
    /// Publish a service of this machine, as a file of services.d
    Publish(Box<PublishOptions>),
    /// Take back a service that was published by this command
    Withdraw {
        /// Which instance; its name if it was published without an id
        #[arg(value_parser = id)]
        id: String,
    },
    /// Say how an instance fares: ends with 0 if it is ready and 1 if not. With a status, report it to its TTL check
    Check {
        #[arg(value_parser = id)]
        id: String,

        /// What the program says of itself
        status: Option<ReportedStatus>,

        /// Which of its checks, if several are TTL checks
        #[arg(long, value_name = "ID", requires = "status")]
        check: Option<String>,

        /// What to show to people
        #[arg(long, value_name = "TEXT", requires = "status", default_value = "")]
        output: String,
    },
    /// Show all services of this machine, and what is wrong with their files; ends with 1 if one is not ready or a file is wrong
    List,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReportedStatus {
    #[value(alias = "passing")]
    Pass,
    #[value(alias = "warning")]
    Warn,
    #[value(alias = "critical")]
    Fail,
}

impl ReportedStatus {
    fn status(self) -> CheckStatus {
        match self {
            Self::Pass => CheckStatus::Passing,
            Self::Warn => CheckStatus::Warning,
            Self::Fail => CheckStatus::Critical,
        }
    }
}

pub fn run(options: &ServiceOptions) -> Result<(), Exit> {
    let data = DataDir { data_dir: options.data_dir.clone() };
    let agent_directory = machine::directory_settings(&data.path()).directory;
    let session = Session { agent_directory, json: options.json };
    match &options.command {
        ServiceCommand::Publish(options) => session.publish(options),
        ServiceCommand::Withdraw { id } => session.withdraw(id),
        ServiceCommand::Check { id, status: None, .. } => session.show(id),
        ServiceCommand::Check { id, status: Some(status), check, output } => {
            session.report(id, status.status(), check.as_deref(), output)
        }
        ServiceCommand::List => session.list(),
    }
}

struct Session {
    agent_directory: PathBuf,
    json: bool,
}

impl Session {
    fn publish(&self, options: &PublishOptions) -> Result<(), Exit> {
        let definition = options.definition()?;
        let path = write_definition(&self.agent_directory, &definition)?;
        let words = format!("{} is published by {}", definition["id"].as_str().unwrap_or_default(), path.display());
        self.print(&[words], &json!({"id": definition["id"], "file": path}));
        Ok(())
    }

    fn withdraw(&self, id: &str) -> Result<(), Exit> {
        let path = definitions_directory(&self.agent_directory).join(format!("{id}.json"));
        match fs::remove_file(&path) {
            Ok(()) => {
                self.print(&[format!("{id} is withdrawn")], &json!({"id": id, "file": path}));
                Ok(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(Exit::Refused(anyhow!("there is no {}", path.display())))
            }
            Err(error) => Err(Exit::Failed(anyhow!(error).context(format!("remove {}", path.display())))),
        }
    }

    /// What the agent last wrote down.
    fn record(&self) -> Result<ServicesRecord, Exit> {
        let path = record_path(&self.agent_directory);
        match fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(ServicesRecord::default()),
            Err(error) => return Err(Exit::Failed(anyhow!(error).context(format!("read {}", path.display())))),
            Ok(_) => {}
        }
        let record = ServicesRecord::read(&path);
        record.ok_or_else(|| Exit::Failed(anyhow!("cannot read {}", path.display())))
    }

    fn instance(&self, id: &str) -> Result<InstanceRecord, Exit> {
        let unknown = || Exit::Refused(anyhow!("the agent of this machine knows no service {id:?}"));
        self.record()?.services.remove(id).ok_or_else(unknown)
    }

    /// The definition, from the agent, or from the file of one that was published just now.
    fn definition(&self, id: &str) -> Result<ServiceDefinition, Exit> {
        match self.instance(id) {
            Ok(instance) => Ok(instance.definition),
            Err(unknown) => publish::read_definition(&self.agent_directory, id).ok_or(unknown),
        }
    }

    fn report(&self, id: &str, status: CheckStatus, check: Option<&str>, output: &str) -> Result<(), Exit> {
        let definition = self.definition(id)?;
        let own: Vec<&str> =
            definition.checks.iter().filter(|own| ttl(own).is_some()).map(|own| own.id.as_str()).collect();
        let check = match (check, &own[..]) {
            (Some(check), _) if own.contains(&check) => check,
            (Some(check), _) => return Err(Exit::Refused(anyhow!("service {id:?} has no TTL check {check:?}"))),
            (None, [only]) => only,
            (None, []) => return Err(Exit::Refused(anyhow!("service {id:?} has no TTL check"))),
            (None, several) => {
                let several = several.join(", ");
                return Err(Exit::Refused(anyhow!("service {id:?} has several TTL checks; name one: {several}")));
            }
        };
        let end = (0..=output.len().min(LONGEST_OUTPUT)).rev().find(|end| output.is_char_boundary(*end)).unwrap_or(0);
        let report = CheckReport { status, output: output[..end].to_owned(), time: Timestamp::now() };
        write_report(&self.agent_directory, id, check, &report)
            .with_context(|| format!("report to the check {check} of {id}; is this root?"))?;
        self.print(
            &[format!("{id}: {check} is {}", status.text())],
            &json!({"id": id, "check": check, "status": status.text()}),
        );
        Ok(())
    }

    fn show(&self, id: &str) -> Result<(), Exit> {
        let instance = self.instance(id)?;
        self.print(&instance_lines(id, &instance), &instance_json(id, &instance));
        if instance.health.is_ready() && instance.address.is_some() { Ok(()) } else { Err(Exit::Code(1)) }
    }

    fn list(&self) -> Result<(), Exit> {
        let ServicesRecord { services, problems } = self.record()?;
        let mut lines: Vec<String> = services.iter().flat_map(|(id, own)| instance_lines(id, own)).collect();
        let directory = definitions_directory(&self.agent_directory);
        lines.extend(problems.iter().map(|(file, problem)| format!("{}: {problem}", directory.join(file).display())));
        let all: Vec<Value> = services.iter().map(|(id, own)| instance_json(id, own)).collect();
        self.print(&lines, &json!({"services": all, "problems": problems}));
        let is_well = services.values().all(|own| own.health.is_ready() && own.address.is_some());
        if is_well && problems.is_empty() { Ok(()) } else { Err(Exit::Code(1)) }
    }

    fn print(&self, lines: &[String], json: &Value) {
        if self.json {
            println!("{json}");
        } else {
            lines.iter().for_each(|line| println!("{}", printable(line)));
        }
    }
}

fn instance_lines(id: &str, instance: &InstanceRecord) -> Vec<String> {
    let port = instance.definition.port.map(|port| format!(":{port}")).unwrap_or_default();
    let place = match instance.address {
        Some(address) => format!("{address}{port}"),
        None => "without an address".to_owned(),
    };
    let mut lines = vec![format!("{id}: {}, {place}", instance.health.worst().text())];
    for (check, health) in &instance.health.checks {
        let output = health.output.lines().last().unwrap_or_default();
        lines.push(format!("  {check}: {} since {}: {output}", health.status.text(), health.since));
    }
    lines
}

fn instance_json(id: &str, instance: &InstanceRecord) -> Value {
    json!({
        "id": id,
        "name": instance.definition.name,
        "file": instance.file,
        "address": instance.address,
        "port": instance.definition.port,
        "tags": instance.definition.tags,
        "status": instance.health.worst().text(),
        "ready": instance.health.is_ready() && instance.address.is_some(),
        "checks": instance.health.checks,
    })
}
