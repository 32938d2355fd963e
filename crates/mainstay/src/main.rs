//! Mainstay: pods on your own machines, kept up, behind the Kubernetes API.

mod agent;
mod api_contact;
mod authentication;
mod authorities;
mod backup;
mod cli;
mod cloud_command;
mod cloud_manager;
mod cluster_settings;
mod config;
mod config_file;
mod config_reload;
mod controller_ports;
mod convert;
mod data_dir;
mod demo;
mod down;
mod drain;
mod exit;
mod formats;
mod hide_token;
mod image;
mod leader_gated;
mod leftovers;
mod log;
mod machine;
mod machine_command;
mod needs;
mod process;
mod program_pages;
mod readiness;
mod release_command;
mod restore;
mod run;
mod scheduler;
mod secrets;
mod server;
mod service_command;
mod sim;
mod state_dump;
mod store_dir;
mod stores;
mod template_renderer;
mod terminal;
mod token;
mod up;
mod upgrade;
mod why;

use cli::Command;
use exit::Exit;
use nix::sys::stat::{Mode, umask};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What containers may read is made with it, in us, in shims and in containers; whoever starts us may have another.
const UMASK: Mode = Mode::S_IWGRP.union(Mode::S_IWOTH);

fn main() -> std::process::ExitCode {
    umask(UMASK);
    // One small process per pod, started by the agent: before anything that allocates or starts a thread.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == "shim") {
        return mainstay_runtime::builtin::shim::main(std::env::args_os().skip(2));
    }
    // A few that render templates, with limits of their own.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == template_renderer::ARGUMENT) {
        return template_renderer::main();
    }
    hide_token::hide_token_argument();
    let command = match cli::parse(std::env::args_os()) {
        Ok(command) => command,
        Err(exit) => return exit.report(),
    };
    let done = match command {
        Command::Up(options) => up::run(&options),
        Command::Server(options) => up::run_server(&options),
        Command::Agent(options) => agent::run(&options),
        Command::Stop(options) => down::stop(&options),
        Command::Down(options) => down::down(&options),
        Command::Backup(options) => backup::run(options),
        Command::Restore(options) => restore::run(&options),
        Command::Image(options) => image::run(options),
        Command::Secrets(options) => secrets::run(&options),
        Command::Token(options) => token::run(&options),
        Command::Machine(options) => machine_command::run(&options),
        Command::Cloud(options) => cloud_command::run(&options),
        Command::Release(options) => release_command::run(&options),
        Command::Service(options) => service_command::run(&options),
        Command::Why(options) => why::run(&options),
        Command::Needs(options) => needs::run(&options),
        Command::Config(options) => config::run(&options),
        Command::Convert(options) => convert::run(&options),
        Command::Sim(options) => sim::run(&options),
        Command::Drain(options) => drain::run(&options),
        Command::Upgrade(options) => upgrade::run(&options),
        Command::CheckData(options) => formats::run(&options),
        Command::DemoWeb(options) => demo::web::run(&options),
    };
    done.map_or_else(Exit::report, |()| std::process::ExitCode::SUCCESS)
}
