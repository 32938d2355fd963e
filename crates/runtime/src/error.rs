//! Errors of container runtimes.

use std::{error::Error, time::Duration};

use mainstay_errors::error_chain;

#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error("{what} {id} does not exist")]
    NotFound { what: &'static str, id: String },
    #[error("image {image:?} is not present")]
    ImageMissing { image: String },
    /// What was asked for cannot be done, now or later, unless it is asked differently.
    #[error("{why}")]
    Invalid { why: String },
    /// The container was made but its process could not begin (no such program, not executable).
    #[error("{why}")]
    Start { why: String },
    #[error("{doing} did not end within {after:?}")]
    Timeout { doing: String, after: Duration },
    #[error("the container runtime cannot be reached: {why}")]
    Unavailable { why: String },
    #[error("{doing}: {why}")]
    Failed { doing: String, why: String },
}

impl RuntimeError {
    pub fn failed(doing: impl Into<String>, why: impl std::fmt::Display) -> Self {
        Self::Failed { doing: doing.into(), why: why.to_string() }
    }

    /// With every cause behind the error, each once.
    pub fn caused(doing: impl Into<String>, why: &(dyn Error + 'static)) -> Self {
        Self::Failed { doing: doing.into(), why: error_chain(why) }
    }

    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}
