//! Collects the errors that libcontainer logs while it makes a container. The process that becomes the container returns an error without its
//! causes ("failed to prepare rootfs"); they are only in its log, so the log is reported with it.

use std::{fmt::Write, os::fd::OwnedFd, rc::Rc};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use super::launch::{Report, report};

/// Reports errors that are logged, from this process and all that it forks.
pub fn forward_errors(channel: &Rc<OwnedFd>) -> std::io::Result<()> {
    let forwarder = ErrorForwarder { channel: channel.try_clone()? };
    // One is set already only if this process made another container before, which it never does.
    let _ = tracing::subscriber::set_global_default(forwarder);
    Ok(())
}

struct ErrorForwarder {
    channel: OwnedFd,
}

impl Subscriber for ErrorForwarder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = LogLine::default();
        event.record(&mut text);
        report(&self.channel, &Report::Cause(text.into_line()));
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct LogLine {
    message: String,
    fields: String,
}

impl LogLine {
    fn into_line(self) -> String {
        mainstay_errors::append_cause(self.message, &self.fields)
    }
}

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            _ if self.fields.is_empty() => write!(self.fields, "{value:?}"),
            _ => write!(self.fields, ", {value:?}"),
        };
    }
}

/// An error with what was logged before it, from the first to the last; each part once.
pub fn with_causes(error: String, causes: &[String]) -> String {
    causes.iter().flat_map(|cause| cause.split(": ")).fold(error, mainstay_errors::append_cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_the_error_and_are_not_repeated() {
        let causes = ["failed to mount /a on /b: syscall".to_owned(), "failed to prepare rootfs: ENOTDIR".to_owned()];
        assert_eq!(
            with_causes("failed to prepare rootfs".into(), &causes),
            "failed to prepare rootfs: failed to mount /a on /b: syscall: ENOTDIR"
        );
        assert_eq!(with_causes("a: b".into(), &["b".to_owned()]), "a: b");
    }
}
