//! How fast pods get machines.
//!
//! * `core`: the decision alone.
//! * `cluster`: all the way through the API.

mod cluster;
mod core;
mod server;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The decision alone, from pods and machines already parsed
    Core(core::Options),
    /// All the way: pods created through the API, bound and durable, reported by hollow machines
    Cluster(cluster::Options),
}

fn main() -> anyhow::Result<()> {
    match Options::parse().what {
        What::Core(options) => core::run(&options),
        What::Cluster(options) => cluster::run(&options),
    }
}
