//! `mainstay backup FILE`: from the running server, or from the files if none runs.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow, bail};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use kube::{Client, Config, config::Kubeconfig};
use mainstay_files::create_private;
use mainstay_store::embedded::{self, BackupError, OpenError, Summary};

use crate::{cli::BackupOptions, exit::Exit, store_dir};

pub fn run(options: BackupOptions) -> Result<(), Exit> {
    let data_dir = options.data.path();
    let file = &options.file;
    if file.exists() {
        return Err(Exit::Refused(anyhow!("{} exists already; name a file that does not", file.display())));
    }
    let store = store_dir::locate(&data_dir, options.place.store_dir.as_deref());
    let summary = match embedded::backup_closed(&store, file) {
        Ok(summary) => summary,
        // A running server holds the directory, and is asked instead.
        Err(BackupError::Source(OpenError::Locked { .. })) => online(&data_dir, file)?,
        Err(error) => return Err(Exit::Refused(anyhow!(error))),
    };
    println!("Backed up {} objects at revision {} to {}.", summary.keys, summary.revision, file.display());
    Ok(())
}

fn online(data_dir: &Path, file: &Path) -> anyhow::Result<Summary> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let partial = PathBuf::from(format!("{}.partial", file.display()));
    let fetched = runtime.block_on(fetch(data_dir, &partial));
    let verified =
        fetched.and_then(|()| embedded::verify_file(&partial).context("what the server sent does not verify"));
    match verified {
        Ok(summary) => {
            fs::rename(&partial, file).with_context(|| format!("write {}", file.display()))?;
            Ok(summary)
        }
        Err(error) => {
            let _ = fs::remove_file(&partial);
            Err(error)
        }
    }
}

async fn fetch(data_dir: &Path, into: &Path) -> anyhow::Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let path = data_dir.join("admin.kubeconfig");
    let kubeconfig = Kubeconfig::read_from(&path).with_context(|| format!("read {}", path.display()))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
    let client = Client::try_from(config)?;
    let request = Request::get("/backup").body(kube::client::Body::empty())?;
    let response = client.send(request).await.context("ask the running server for a backup")?;
    let code = response.status();
    let mut body = response.into_body();
    if code != StatusCode::OK {
        let text = body.collect().await?.to_bytes();
        bail!("the server answered {code}: {}", String::from_utf8_lossy(&text));
    }
    let _ = fs::remove_file(into); // left by a backup that was killed
    let mut file = create_private(into).with_context(|| format!("create {}", into.display()))?;
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame.context("read the backup")?.data_ref() {
            file.write_all(data).with_context(|| format!("write {}", into.display()))?;
        }
    }
    file.sync_all().with_context(|| format!("write {}", into.display()))
}
