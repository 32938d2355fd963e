//! `mainstay cloud apply`, `delete`, `list` and `ssh-config`: servers from a list of roles.

use std::{fs, path::PathBuf};

use anyhow::{Context, anyhow};
use base64::Engine;
use clap::Args;
use mainstay_cloud::{
    openstack::Session,
    resource_list::{
        apply::{ApplyError, ApplySettings, POLL, apply_list, delete_by_tag, list_servers},
        list::{ListError, Mappings, ResourceList, check_tag},
        plan::{ListedServer, servers_with_tag},
        ssh_config::ssh_config,
    },
};
use serde_json::json;

use crate::{exit::Exit, terminal::printable};

/// Nova takes no more, in base64.
const MOST_USER_DATA: usize = 65535;

#[derive(Debug, Args)]
pub struct ApplyOptions {
    /// The list: `resources` with a number, flavor, image and networks for each role
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// User data of the servers
    #[arg(value_name = "USERDATA")]
    user_data: Option<PathBuf>,

    /// Names of the list that the cloud has other names for: `flavor`, `image`, `network`
    #[arg(long, value_name = "FILE")]
    mappings: Option<PathBuf>,

    /// Added to the names of all servers, by which they are deleted
    #[arg(long, value_name = "TAG")]
    project_tag: Option<String>,

    /// The key pair of the servers
    #[arg(long, value_name = "NAME")]
    key_name: Option<String>,

    /// Other numbers than the list has: cp=5:ct=2
    #[arg(long, value_name = "ROLE=N[:ROLE=N…]")]
    override_instance_number: Option<String>,

    /// The id of the external network of floating IPs [default: the only one there is]
    #[arg(long, value_name = "ID")]
    floating_network: Option<String>,
}

#[derive(Debug, Args)]
pub struct DeleteOptions {
    /// Servers whose names end with `_TAG`, and their floating IPs
    #[arg(value_name = "TAG")]
    tag: String,
}

#[derive(Debug, Args)]
pub struct ListOptions {
    /// Only servers whose names end with `_TAG`
    #[arg(long, value_name = "TAG")]
    project_tag: Option<String>,
}

#[derive(Debug, Args)]
pub struct SshConfigOptions {
    /// Only servers whose names end with `_TAG`
    #[arg(long, value_name = "TAG")]
    project_tag: Option<String>,

    /// The user to log in as
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

/// What the cloud refuses for what is written is a refusal; what it does not answer is a failure.
fn judge(error: ApplyError) -> Exit {
    let is_outside = matches!(&error, ApplyError::Cloud { source, .. } if source.is_transient());
    if is_outside { Exit::Failed(anyhow!(error)) } else { Exit::Refused(anyhow!(error)) }
}

fn refused(error: ListError) -> Exit {
    Exit::Refused(anyhow!(error))
}

pub async fn apply(session: &Session, options: &ApplyOptions, as_json: bool) -> Result<(), Exit> {
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()));
        text.map_err(Exit::Refused)
    };
    let mut list = ResourceList::parse(&options.file.display().to_string(), &read(&options.file)?).map_err(refused)?;
    if let Some(numbers) = &options.override_instance_number {
        list.override_numbers(numbers).map_err(refused)?;
    }
    let mappings = match &options.mappings {
        Some(path) => Mappings::parse(&path.display().to_string(), &read(path)?).map_err(refused)?,
        None => Mappings::default(),
    };
    options.project_tag.as_deref().map(check_tag).transpose().map_err(refused)?;
    let user_data = options.user_data.as_ref().map(read_user_data).transpose()?;
    let settings = ApplySettings {
        tag: options.project_tag.clone(),
        key_name: options.key_name.clone(),
        user_data,
        floating_network: options.floating_network.clone(),
        poll: None,
    };
    let report = apply_list(session, &list, &mappings, &settings).await.map_err(judge)?;
    if as_json {
        let assigned: Vec<_> =
            report.assigned.iter().map(|(server, address)| json!({"server": server, "address": address})).collect();
        println!("{}", json!({"created": report.created, "assigned": assigned}));
    } else if report.is_unchanged() {
        println!("Nothing to do.");
    } else {
        report.created.iter().for_each(|name| println!("created server {name}"));
        report.assigned.iter().for_each(|(name, address)| println!("gave {address} to server {name}"));
    }
    Ok(())
}

/// As Nova takes it.
fn read_user_data(path: &PathBuf) -> Result<String, Exit> {
    let bytes = fs::read(path).with_context(|| format!("read {}", path.display())).map_err(Exit::Refused)?;
    let encoded = base64::engine::general_purpose::STANDARD.encode(bytes);
    if encoded.len() > MOST_USER_DATA {
        let path = path.display();
        let (length, most) = (encoded.len(), MOST_USER_DATA);
        return Err(Exit::Refused(anyhow!(
            "{path}: user data has {length} bytes in base64, and at most {most} are taken"
        )));
    }
    Ok(encoded)
}

pub async fn delete(session: &Session, options: &DeleteOptions, as_json: bool) -> Result<(), Exit> {
    check_tag(&options.tag).map_err(refused)?;
    let report = delete_by_tag(session, &options.tag, POLL).await.map_err(judge)?;
    if as_json {
        println!("{}", json!({"servers": report.servers, "floatingIPs": report.floating_ips}));
    } else if report.servers.is_empty() && report.floating_ips.is_empty() {
        println!("Nothing to do.");
    } else {
        report.floating_ips.iter().for_each(|address| println!("deleted floating IP {address}"));
        report.servers.iter().for_each(|name| println!("deleted server {name}"));
    }
    Ok(())
}

async fn select(session: &Session, tag: Option<&str>) -> Result<Vec<ListedServer>, Exit> {
    let mut all = list_servers(session).await.map_err(judge)?;
    if let Some(tag) = tag {
        check_tag(tag).map_err(refused)?;
        all = servers_with_tag(&all, tag).into_iter().cloned().collect();
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

pub async fn list(session: &Session, options: &ListOptions, as_json: bool) -> Result<(), Exit> {
    let servers = select(session, options.project_tag.as_deref()).await?;
    if as_json {
        let view = |server: &ListedServer| json!({"name": server.name, "id": server.id, "status": server.status, "fixed": server.fixed, "floating": server.floating});
        println!("{}", json!(servers.iter().map(view).collect::<Vec<_>>()));
        return Ok(());
    }
    let width = servers.iter().map(|server| server.name.len()).max().unwrap_or(0).max(4);
    println!("{:width$}  {:8}  ADDRESSES", "NAME", "STATUS");
    for server in servers {
        let addresses: Vec<&str> = server.floating.iter().chain(&server.fixed).map(String::as_str).collect();
        let (name, addresses) = (printable(&server.name), printable(&addresses.join(", ")));
        println!("{name:width$}  {:8}  {addresses}", printable(&server.status));
    }
    Ok(())
}

pub async fn print_ssh_config(session: &Session, options: &SshConfigOptions) -> Result<(), Exit> {
    let servers = select(session, options.project_tag.as_deref()).await?;
    print!("{}", ssh_config(&servers, options.user.as_deref()));
    Ok(())
}
