//! Benchmarks of Services and DNS. Each part prints its figures beside those of its peer, taken in the same run.

mod dns;
mod kernel;
mod proxy;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// The kernel data path beside a direct connection, and very many Services
    Kernel(kernel::Options),
    /// DNS beside a bare UDP echo and Unbound
    Dns(dns::Options),
    /// The user-space proxy beside HAProxy
    Proxy(proxy::Options),
}

fn main() -> anyhow::Result<()> {
    match Options::parse().part {
        Some(Part::Dns(options)) => dns::run(&options),
        Some(Part::Kernel(options)) => kernel::run(options),
        Some(Part::Proxy(options)) => proxy::run(options),
        None => anyhow::bail!("name a part to measure"),
    }
}
