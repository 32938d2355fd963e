//! How fast pods get machines.
//!
//! * `core`: the decision alone.

mod core;

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
}

fn main() -> anyhow::Result<()> {
    match Options::parse().what {
        What::Core(options) => core::run(&options),
    }
}
