//! `mainstay secrets rotate-key`: asks the running server to encrypt everything by a new key.

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use kube::{Client, Config, config::Kubeconfig};
use serde_json::Value;

use crate::{cli::DataDir, exit::Exit};

#[derive(Debug, Args)]
pub struct SecretsOptions {
    #[command(subcommand)]
    command: SecretsCommand,
}

#[derive(Debug, Subcommand)]
enum SecretsCommand {
    /// Make a new key, encrypt all Secrets by it while the server runs, and remove the old key from the key file
    ///
    /// Backups that were made before need the old key file: keep a copy beside them.
    RotateKey {
        #[command(flatten)]
        data: DataDir,
    },
}

pub fn run(options: &SecretsOptions) -> Result<(), Exit> {
    let SecretsCommand::RotateKey { data } = &options.command;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    let rotated = runtime.block_on(rotate(data))?;
    println!("Encrypted {} values by the new key {}.", rotated["reencrypted"], rotated["key"].as_str().unwrap_or("?"));
    Ok(())
}

async fn rotate(data: &DataDir) -> Result<Value, Exit> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let path = data.path().join("admin.kubeconfig");
    let kubeconfig = Kubeconfig::read_from(&path)
        .with_context(|| format!("read {}; keys are rotated on a server, with its --data-dir", path.display()))?;
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.context("read the kubeconfig")?;
    config.read_timeout = None; // every Secret is written anew
    let client = Client::try_from(config).context("make a client")?;
    let request = Request::post("/secrets/rotate-key").body(kube::client::Body::empty()).context("make the request")?;
    let response = client.send(request).await.context("ask the running server to rotate the key")?;
    let code = response.status();
    let body = response.into_body().collect().await.context("read the answer")?.to_bytes();
    let answer: Value = serde_json::from_slice(&body).context("read the answer")?;
    match code {
        StatusCode::OK => Ok(answer),
        _ => Err(Exit::Refused(anyhow!("{}", answer["message"].as_str().unwrap_or("the server does not say why")))),
    }
}
