//! Measures Services all the way through the API. Takes root.

mod cluster;
mod many;
mod propagation;
mod restarts;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
struct Options {
    /// The mainstay to measure
    #[arg(long, value_name = "FILE", default_value = "target/release/mainstay", global = true)]
    spawn: PathBuf,

    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// An agent that knows very many Services: its memory, and how soon a change is in force
    Many(many::Options),
    /// How soon a thousand machines know of a change
    Propagation(propagation::Options),
    /// Pods replaced again and again under load: how many requests fail
    Restarts(restarts::Options),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = Options::parse();
    match options.part {
        Part::Many(part) => many::run(&options.spawn, &part).await,
        Part::Propagation(part) => propagation::run(part).await,
        Part::Restarts(part) => restarts::run(&options.spawn, &part).await,
    }
}
