//! Measures ConfigTemplates: a change of one Service until the last of its consumers is told, the CPU time of that, and memory.
//!
//! The server is a process of its own, with the processes in which it renders. This program is what there is of nodes: it reports that the files of
//! pods have changed once they were given another version, as agents do.

mod hollow_node;
mod objects;
mod process;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Parser;

use crate::{hollow_node::HollowNode, objects::Scene, process::Server};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const LATENCY_GOAL: Duration = Duration::from_secs(2);
const CPU_GOAL: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Clone, Debug, Parser)]
pub struct Options {
    /// The mainstay to measure
    #[arg(long, value_name = "FILE", default_value = "target/release/mainstay")]
    spawn: PathBuf,
    /// ConfigTemplates, each with one consumer
    #[arg(long, default_value_t = 1000)]
    templates: usize,
    /// Services that the templates read, in turn
    #[arg(long, default_value_t = 100)]
    services: usize,
    /// Endpoints of all Services together
    #[arg(long, default_value_t = 10_000)]
    endpoints: usize,
    /// How often one Service changes
    #[arg(long, default_value_t = 10)]
    rounds: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = Options::parse();
    anyhow::ensure!(options.services > 0 && options.templates >= options.services, "a Service needs a template");
    let server = Server::start(&options.spawn).await?;
    let scene = Scene { client: server.client.clone(), options: options.clone() };
    let begun = Instant::now();
    scene.create_services().await?;
    let nodes = HollowNode::start(server.client.clone());
    scene.create_templates().await?;
    scene.until_current(PATIENCE).await?;
    println!(
        "{} templates over {} Services with {} endpoints, ready after {:.1} s; memory {} MB",
        options.templates,
        options.services,
        options.endpoints,
        begun.elapsed().as_secs_f64(),
        server.memory()? >> 20
    );
    let readers = options.templates.div_ceil(options.services);
    let own = measure(&server, &scene, &nodes, options.rounds, readers, 0).await?;
    print_result(&format!("one Service, {readers} readers"), &own);
    scene.have_all_read_the_first().await?;
    scene.until_current(PATIENCE).await?;
    let all = measure(&server, &scene, &nodes, options.rounds, options.templates, options.rounds).await?;
    print_result(&format!("one Service, {} readers", options.templates), &all);
    println!("memory {} MB", server.memory()? >> 20);
    server.end()
}

struct Sample {
    latency: Duration,
    cpu: Duration,
}

/// Changes the first Service so often, and waits each time until all of its consumers are told.
async fn measure(
    server: &Server,
    scene: &Scene,
    nodes: &HollowNode,
    rounds: usize,
    readers: usize,
    offset: usize,
) -> anyhow::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for round in 1..=rounds {
        let (cpu, told, begun) = (server.cpu_time()?, nodes.count_told(), Instant::now());
        scene.change_first_service(offset + round).await?;
        nodes.until_told(told + readers, PATIENCE).await?;
        let latency = begun.elapsed();
        scene.until_current(PATIENCE).await?;
        samples.push(Sample { latency, cpu: server.cpu_time()?.saturating_sub(cpu) });
    }
    Ok(samples)
}

fn print_result(what: &str, samples: &[Sample]) {
    let sorted = |value: fn(&Sample) -> Duration| {
        let mut all: Vec<Duration> = samples.iter().map(value).collect();
        all.sort();
        let at = |index: usize| all.get(index).copied().unwrap_or_default();
        (at(all.len() / 2), at(all.len().saturating_sub(1)))
    };
    let ((half, last), (cpu, most)) = (sorted(|sample| sample.latency), sorted(|sample| sample.cpu));
    println!("{what}:");
    println!("  change to last consumer told   p50 {:.2} s   max {:.2} s", half.as_secs_f64(), last.as_secs_f64());
    println!("  CPU time per change            p50 {:.2} s   max {:.2} s", cpu.as_secs_f64(), most.as_secs_f64());
    let yes = |held: bool| if held { "yes" } else { "no" };
    println!("  goals: {LATENCY_GOAL:?} {}, {CPU_GOAL:?} of CPU {}", yes(last <= LATENCY_GOAL), yes(most <= CPU_GOAL));
}
