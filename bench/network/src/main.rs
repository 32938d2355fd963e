//! Measures Services and names. Each part prints its figures beside those of its peer, taken in the same run.

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {}

fn main() -> anyhow::Result<()> {
    match Options::parse().part {
        Some(part) => match part {},
        None => anyhow::bail!("name a part to measure"),
    }
}
