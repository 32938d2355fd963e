//! What can go wrong with containers, and how an error is written down: the whole cause, and each part of it once.

use std::{error::Error, io, path::Path, time::Duration};

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
    pub fn caused(doing: impl Into<String>, why: &dyn Error) -> Self {
        Self::Failed { doing: doing.into(), why: chain(why) }
    }

    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}

/// An error and everything behind it in one line. What an error already says of its cause is not said again.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(each) = cause {
        text = join(text, &each.to_string());
        cause = each.source();
    }
    text
}

/// `text: cause`, unless the text says it already.
pub fn join(mut text: String, cause: &str) -> String {
    let cause = cause.trim();
    if cause.is_empty() || text.contains(cause) {
        return text;
    }
    // The cause may repeat the text it belongs to, and say more.
    if !text.is_empty() && cause.starts_with(&text) {
        return cause.to_owned();
    }
    text.push_str(": ");
    text.push_str(cause);
    text
}

/// An error of the operating system with what was being done to which path.
pub fn at_path(doing: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{doing} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Layered {
        #[error("failed to create container")]
        Quiet(#[source] io::Error),
        #[error("mount /a: {0}")]
        Repeats(#[source] io::Error),
        #[error(transparent)]
        Transparent(Box<Self>),
        #[error("start")]
        Outer(#[source] Box<Self>),
    }

    fn missing() -> io::Error {
        io::Error::from_raw_os_error(2)
    }

    #[test]
    fn every_cause_is_named_and_none_twice() {
        let once = |error: Layered| {
            let text = chain(&error);
            assert_eq!(text.matches("os error 2").count(), 1, "{text}");
            text
        };
        let end = "No such file or directory (os error 2)";
        assert_eq!(once(Layered::Quiet(missing())), format!("failed to create container: {end}"));
        assert_eq!(once(Layered::Repeats(missing())), format!("mount /a: {end}"));
        let wrapped = Layered::Transparent(Box::new(Layered::Repeats(missing())));
        assert_eq!(once(Layered::Outer(Box::new(wrapped))), format!("start: mount /a: {end}"));
    }

    #[test]
    fn a_cause_that_says_more_takes_the_place_of_what_it_repeats() {
        assert_eq!(
            join("prepare rootfs".into(), "prepare rootfs: /a is not a directory"),
            "prepare rootfs: /a is not a directory"
        );
        assert_eq!(join("a: b".into(), "b"), "a: b");
        assert_eq!(join("a".into(), " "), "a");
    }

    #[test]
    fn a_path_is_named_with_what_was_done_to_it() {
        let error = at_path("make", Path::new("/x"), &missing());
        assert_eq!(error.to_string(), "make /x: No such file or directory (os error 2)");
        assert_eq!(chain(&error).matches("os error").count(), 1);
    }
}
