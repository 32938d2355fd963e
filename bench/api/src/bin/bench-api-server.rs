//! The API server alone: the embedded store and the whole path of a request, without scheduler, controllers and agent.
//!
//! `bench-api --spawn target/release/bench-api-server` then measures what requests cost by themselves, and a change of the
//! request path is measured without building the rest of the program. It takes the arguments with which `bench-api`
//! starts `mainstay`. With `BENCH_AUDIT=1` in its environment it writes an audit log as `mainstay` does, and with `BENCH_ENCRYPTION=1` it encrypts
//! Secrets, so that what each of them costs can be told.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use clap::Parser;
use mainstay_api::registry::Registry;
use mainstay_server::{
    api::Api,
    audit::{Audit, Policy, Rotation},
    bootstrap,
    handler::Handler,
    pki::{self, Pki},
    serve::{self, Listener},
    settings::Settings,
    storage::{Writers, encryption::Encryption},
    volatile_prefixes,
};
use mainstay_store::{Embedded, Store, embedded};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
enum Command {
    /// Serve until SIGTERM
    Server {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        data_dir: PathBuf,
        /// Accepted and not used: this program logs nothing
        #[arg(long)]
        log: Option<String>,
    },
}

fn main() -> anyhow::Result<()> {
    let Command::Server { listen, data_dir, log: _ } = Command::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(listen, data_dir))
}

async fn run(listen: SocketAddr, data_dir: PathBuf) -> anyhow::Result<()> {
    serve::raise_file_limit();
    let volatile = volatile_prefixes(&Registry::builtin());
    let store = Embedded::open(data_dir.join("store"), embedded::Options { volatile, ..Default::default() })?;
    let store = Arc::new(store);
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let served: Arc<dyn Store> = if is_set("BENCH_ENCRYPTION") {
        let file = data_dir.join("encryption.yaml");
        Encryption::open(store.clone(), file, Registry::builtin(), Writers::Ourselves).await?.store()
    } else {
        store.clone()
    };
    let names = serve::names(listen, &[], [10, 96, 0, 1].into());
    let pki = Pki::open(&data_dir.join("pki"), &names)?;
    let listener = Listener::bind(listen, &pki).await?;
    let address = listener.address()?;
    let stop = CancellationToken::new();
    let api = Api::new(Registry::builtin(), served, Settings::default());
    let rotation = Rotation { max_bytes: 100 << 20, max_backups: 2, max_age_days: 0 };
    let open = || Audit::open(Policy::built_in(), data_dir.join("audit/audit.log"), rotation);
    let audit = is_set("BENCH_AUDIT").then(open).transpose()?;
    let handler = Arc::new(Handler::new(api, stop.clone()).with_ca(&pki.ca).with_audit(audit.clone()));
    bootstrap::bootstrap(&handler, address).await?;
    pki::write_private(&data_dir.join("admin.kubeconfig"), &pki.kubeconfig(&format!("https://{address}")))?;
    let keeping = tokio::spawn(bootstrap::keep(handler.clone(), address, stop.clone()));
    let serving = tokio::spawn(listener.run(handler, stop.clone(), Duration::from_secs(5)));
    signal(SignalKind::terminate())?.recv().await;
    stop.cancel();
    serving.await?;
    keeping.await?;
    if let Some(audit) = audit {
        audit.close();
    }
    store.close().await?;
    Ok(())
}
