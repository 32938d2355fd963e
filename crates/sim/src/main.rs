//! `mainstay-sim`: the deterministic simulator.
//!
//! `mainstay-sim seeds 1000` runs a thousand seeds and names those that break an invariant; `mainstay-sim replay SEED` runs one and
//! shows what happens, step by step.

mod simulation;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use simulation::{Broken, Safeguard, run::Prepared};

#[derive(Parser)]
#[command(about = "Simulates a whole cluster under virtual time, with faults by a seed")]
struct Options {
    #[command(subcommand)]
    command: Command,
    /// Takes a safeguard away, to see that the simulator notices
    #[arg(long, global = true, value_enum)]
    without: Option<Safeguard>,
}

#[derive(Subcommand)]
enum Command {
    /// Runs many seeds
    Seeds {
        count: u64,
        /// The first of them
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Runs at a time; stock: one for each core
        #[arg(long)]
        jobs: Option<usize>,
        /// Stops after so many that break an invariant
        #[arg(long, default_value_t = 10)]
        most: usize,
    },
    /// Runs one seed and shows what happens
    Replay { seed: u64 },
    /// Runs one seed and prints the hash of what happened
    Hash { seed: u64 },
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    if let Ok(filter) = std::env::var("RUST_LOG") {
        tracing_subscriber::fmt().with_env_filter(filter).without_time().with_writer(std::io::stderr).init();
    }
    let prepared = Prepared::new(Broken::without(options.without))?;
    match options.command {
        Command::Seeds { count, from, jobs, most } => {
            let failed = prepared.run_all(from..from.saturating_add(count), jobs.unwrap_or(cores), most)?;
            for seed in &failed {
                println!("to see it: cargo run -p mainstay-sim -- replay {seed}");
            }
            println!("{count} seeds from {from}, {} broke an invariant", failed.len());
            Ok(ExitCode::from(u8::from(!failed.is_empty())))
        }
        Command::Replay { seed } => {
            let outcome = prepared.run(seed, true);
            println!("seed {seed}, trace {:016x}", outcome.hash);
            if let Some(violation) = &outcome.violation {
                println!("broken: {violation}");
            }
            Ok(ExitCode::from(u8::from(outcome.violation.is_some())))
        }
        Command::Hash { seed } => {
            println!("{:016x}", prepared.run(seed, false).hash);
            Ok(ExitCode::SUCCESS)
        }
    }
}
