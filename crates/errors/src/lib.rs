//! How an error is written down: with its whole cause, and each part of it once.
//!
//! One rule for errors of our own: what an error displays never contains its `source()`. Whoever makes a log line, an event, a
//! condition or an answer of it prints [`error_chain`]. Errors of other libraries keep to no such rule, so a part that was printed
//! already is left out.

use std::{error::Error, io, path::Path};

/// An error and every cause behind it in one line, with ": " between them.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| append_cause(text, &cause.to_string()))
}

/// `text: cause`, unless the text has it already.
pub fn append_cause(mut text: String, cause: &str) -> String {
    let cause = cause.trim();
    if cause.is_empty() || text.contains(cause) {
        return text;
    }
    // The cause may repeat the text it belongs to, and go on.
    if !text.is_empty() && cause.starts_with(&text) {
        return cause.to_owned();
    }
    text.push_str(": ");
    text.push_str(cause);
    text
}

/// An error of the operating system with what was being done to which path.
pub fn with_path(doing: &str, path: &Path, error: &io::Error) -> io::Error {
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
            let text = error_chain(&error);
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
    fn a_cause_that_goes_on_takes_the_place_of_what_it_repeats() {
        assert_eq!(
            append_cause("prepare rootfs".into(), "prepare rootfs: /a is not a directory"),
            "prepare rootfs: /a is not a directory"
        );
        assert_eq!(append_cause("a: b".into(), "b"), "a: b");
        assert_eq!(append_cause("a".into(), " "), "a");
    }

    #[test]
    fn a_path_is_named_with_what_was_done_to_it() {
        let error = with_path("make", Path::new("/x"), &missing());
        assert_eq!(error.to_string(), "make /x: No such file or directory (os error 2)");
        assert_eq!(error_chain(&error).matches("os error").count(), 1);
    }
}
