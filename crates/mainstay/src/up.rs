//! `mainstay up` and `mainstay server`: build everything, say what was built, run, stop in order.

use std::time::{Duration, Instant};

use crate::{
    cli::{ServerOptions, UpOptions},
    exit::Exit,
    process::Claim,
    run::until_told,
    server::Server,
};

pub fn run(options: &UpOptions) -> Result<(), Exit> {
    run_server(&options.server)
}

pub fn run_server(options: &ServerOptions) -> Result<(), Exit> {
    let started = Instant::now();
    until_told(&options.common, async |stop| {
        let server = Server::build(options).await?;
        let _claim = Claim::take(&server.data_dir)?;
        announce(&server, started.elapsed());
        Ok(server.run(stop).await?)
    })
}

fn announce(server: &Server, took: Duration) {
    println!("Mainstay {} is up after {:.2} s.", env!("CARGO_PKG_VERSION"), took.as_secs_f64());
    println!("  API    {}", server.url);
    println!("  store  {}", server.store());
    println!();
    println!("Try, in another terminal:");
    println!("  export KUBECONFIG={}", server.kubeconfig.display());
    println!("  kubectl get namespaces");
    println!();
    println!("Ctrl-C stops it; the next start continues where it was.");
}
