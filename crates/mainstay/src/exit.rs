//! How a command ends: 0 done, 1 the answer is no, 2 could not find out, 64 wrong usage.

use std::process::ExitCode;

use mainstay_errors::error_chain;

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
                eprintln!("mainstay: {}", error_chain(error.as_ref()));
                ExitCode::from(1)
            }
            Self::Failed(error) => {
                eprintln!("mainstay: {}", error_chain(error.as_ref()));
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

impl From<anyhow::Error> for Exit {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}
