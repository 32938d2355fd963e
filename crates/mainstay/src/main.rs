//! Mainstay: pods on your own machines, kept up, behind the Kubernetes API.

mod backup;
mod cli;
mod config_file;
mod exit;
mod image;
mod log;
mod process;
mod restore;
mod run;
mod server;
mod stores;
mod token;
mod up;

use cli::Command;
use exit::Exit;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    let command = match cli::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(exit) => return exit.report(),
    };
    let done = match command {
        Command::Up(options) => up::run(&options),
        Command::Server(options) => up::run_server(&options),
        Command::Backup(options) => backup::run(options),
        Command::Restore(options) => restore::run(&options),
        Command::Image(options) => image::run(options),
        Command::Token(options) => token::run(&options),
    };
    done.map_or_else(Exit::report, |()| std::process::ExitCode::SUCCESS)
}
