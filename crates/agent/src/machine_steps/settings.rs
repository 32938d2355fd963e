//! The steps of a machine as its own configuration file has them. They never come from the API.

use std::{path::PathBuf, time::Duration};

use mainstay_machines::steps::StepSettings;

/// Section `[machine]` of the file of `--config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineCommands {
    /// Brings the machine to the version in `MAINSTAY_VERSION`.
    pub update: Option<CommandLine>,
    /// Has to pass the first time.
    pub static_: Option<CommandLine>,
    /// Cheap; repeated whenever what it depends on changes.
    pub dynamic: Option<CommandLine>,
    /// A directory of checks.
    pub validate: Option<PathBuf>,
    pub update_timeout: Duration,
    pub static_timeout: Duration,
    pub dynamic_timeout: Duration,
    /// Of each check.
    pub validate_timeout: Duration,
    pub drain_timeout: Duration,
    pub validate_interval: Duration,
    /// Whether the last lines of a failed step's output are part of what is reported to the API.
    pub report_output: bool,
    /// Files whose change runs `dynamic` again.
    pub watch: Vec<PathBuf>,
    /// Where the version that runs is kept.
    pub version_file: PathBuf,
}

/// A program by its absolute path, and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    pub program: PathBuf,
    pub arguments: Vec<String>,
}

pub const DEFAULT_VERSION_FILE: &str = "/etc/current_version";

impl Default for MachineCommands {
    fn default() -> Self {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        Self {
            update: None,
            static_: None,
            dynamic: None,
            validate: None,
            update_timeout: minutes(30),
            static_timeout: minutes(30),
            dynamic_timeout: minutes(5),
            validate_timeout: minutes(1),
            drain_timeout: minutes(60),
            validate_interval: minutes(5),
            report_output: true,
            watch: Vec::new(),
            version_file: DEFAULT_VERSION_FILE.into(),
        }
    }
}

impl MachineCommands {
    pub fn step_settings(&self) -> StepSettings {
        StepSettings {
            has_static: self.static_.is_some(),
            has_dynamic: self.dynamic.is_some(),
            validate_interval: self.validate_interval.try_into().unwrap_or(jiff::SignedDuration::MAX),
        }
    }
}
