//! How soon every node knows that a pod is ready, and that one is to be let go.
//!
//! A whole API with its controllers runs in this process, with a store on disk, and so do the hollow nodes: what is
//! measured is the server's work and theirs, without a network in between.

use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::{Duration, Instant},
};

use anyhow::Context;
use mainstay_api::registry::Registry;
use mainstay_server::{api::Api, client, handler::Handler, settings::Settings, volatile_prefixes};
use mainstay_sim::{
    fleet::{Access, Fleet, Settings as FleetSettings},
    load,
    pod_times::PodTimes,
    propagation::{self, Plan, percentile},
};
use mainstay_store::{Embedded, embedded};
use tokio_util::sync::CancellationToken;

const GOAL: Duration = Duration::from_millis(250);

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Hollow nodes that follow every Service
    #[arg(long, default_value_t = 1000)]
    nodes: usize,
    /// Pods behind the Service besides the one that comes and goes
    #[arg(long, default_value_t = 50)]
    pods: usize,
    /// How often a pod comes and goes
    #[arg(long, default_value_t = 100)]
    rounds: usize,
}

pub async fn run(options: Options) -> anyhow::Result<()> {
    let dir = tempfile::tempdir().context("make a directory")?;
    let store = embedded::Options { volatile: volatile_prefixes(&Registry::builtin()), ..Default::default() };
    let store = Arc::new(Embedded::open(dir.path(), store).context("open the store")?);
    let settings = Settings { pod_range: ([10, 128, 0, 0].into(), 10), ..Settings::default() };
    let stop = CancellationToken::new();
    let api = Api::new(Registry::builtin(), store.clone(), settings);
    let handler = Arc::new(Handler::new(api, stop.clone()));
    let admin = client::internal(handler.clone(), "bench");
    let controllers = client::internal(handler.clone(), "controllers");
    let settings = mainstay_controllers::Settings { root_ca: String::new(), ..Default::default() };
    let controllers = tokio::spawn(mainstay_controllers::run(controllers, settings, stop.clone()));
    for namespace in ["default", "kube-node-lease"] {
        load::create_namespace(&admin, namespace).await?;
    }
    let node_client = Arc::new(move |name: &str| client::node(handler.clone(), name));
    let access = Access { admin: admin.clone(), node_client };
    let (minute, never) = (Duration::from_secs(60), None);
    let settings = FleetSettings {
        service_tables: true,
        start_delay: never,
        stop_delay: minute,
        ..FleetSettings::new(options.nodes)
    };
    let fleet = Fleet::register(access, settings, Arc::new(PodTimes::default()), &AtomicUsize::new(0)).await?;
    let running = tokio::spawn(fleet.clone().run(stop.clone()));
    let begun = Instant::now();
    while fleet.service_tables.oldest_version() == 0 {
        anyhow::ensure!(begun.elapsed() < minute, "the nodes do not come to know of Services");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("{} nodes, {} pods, {} rounds:", options.nodes, options.pods, options.rounds);
    let plan = Plan { others: options.pods, rounds: options.rounds };
    let times = propagation::measure(&admin, &fleet, plan).await?;
    for (what, times) in [
        ("written in a slice", &times.written),
        ("known to a node", &times.each_node),
        ("known to the last node", &times.last_node),
        ("drained", &times.drained),
    ] {
        let [half, most, last] = [50, 99, 100].map(|percent| percentile(times, percent).as_secs_f64() * 1000.0);
        println!("  {what:<26} p50 {half:>7.1} ms   p99 {most:>7.1} ms   max {last:>7.1} ms");
    }
    let within = percentile(&times.last_node, 99) < GOAL;
    println!("  goal: known to the last node p99 < {} ms: {}", GOAL.as_millis(), if within { "yes" } else { "no" });
    stop.cancel();
    running.await.context("the nodes")?;
    controllers.await.context("the controllers")?;
    store.close().await.context("close the store")
}
