//! How a command ends: 0 done, 1 the answer is no, 2 could not find out, 64 wrong usage.

use std::process::ExitCode;

use mainstay_errors::error_chain;

use crate::terminal::printable;

pub enum Exit {
    /// Told to do something that cannot be done.
    Refused(anyhow::Error),
    /// Something outside failed.
    Failed(anyhow::Error),
    /// The answer is in the exit code, and has been printed.
    Code(u8),
    /// The command line makes no sense, or asked for help.
    Usage(clap::Error),
}

impl Exit {
    pub fn report(self) -> ExitCode {
        match self {
            Self::Refused(error) => {
                eprintln!("mainstay: {}", printable_error(&error));
                ExitCode::from(1)
            }
            Self::Failed(error) => {
                eprintln!("mainstay: {}", printable_error(&error));
                ExitCode::from(2)
            }
            Self::Code(code) => ExitCode::from(code),
            Self::Usage(error) => {
                let _ = error.print();
                ExitCode::from(if error.use_stderr() { 64 } else { 0 })
            }
        }
    }
}

/// The whole chain, line by line: parts of it are what servers, webhooks and registries answered.
fn printable_error(error: &anyhow::Error) -> String {
    let chain = error_chain(error.as_ref());
    chain.lines().map(printable).collect::<Vec<_>>().join("\n")
}

impl From<anyhow::Error> for Exit {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn an_error_keeps_its_lines_and_loses_control_characters() {
        let error = anyhow!("denied by a webhook: \u{1b}[2Jall is well\nsecond line").context("create");
        assert_eq!(printable_error(&error), "create: denied by a webhook: \u{fffd}[2Jall is well\nsecond line");
    }
}
