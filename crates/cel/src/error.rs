//! Errors of compiling and of evaluating, in upstream's words.
//!
//! Whatever the expression and the object are, an error is short: texts of either are clipped while they are written, so
//! that an error costs neither memory nor time that the budget does not know of.

use std::{
    fmt::{self, Write},
    sync::Arc,
};

use crate::{
    library::authorizer::AuthorizationCheck,
    limits::{MAX_ISSUES, MAX_MESSAGE_LENGTH, MAX_SHOWN_LINE},
};

/// One fault of an expression, at a place in its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Counted from 1.
    pub line: usize,
    /// Counted in characters from 0.
    pub column: usize,
    pub message: String,
}

/// Why an expression was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError {
    pub issues: Vec<Issue>,
    /// The line of each issue, or the part of it around the issue, and the issue's column in that.
    excerpts: Vec<Option<(String, usize)>>,
    /// How many more issues there were.
    omitted: usize,
}

impl CompileError {
    pub(crate) fn new(source: &str, mut issues: Vec<Issue>) -> Self {
        issues.sort_by_key(|issue| (issue.line, issue.column));
        let omitted = issues.len().saturating_sub(MAX_ISSUES);
        issues.truncate(MAX_ISSUES);
        for issue in &mut issues {
            issue.message = clip_text(&issue.message);
        }
        let excerpts = issues.iter().map(|issue| excerpt(source, issue)).collect();
        Self { issues, excerpts, omitted }
    }

    pub(crate) fn whole(source: &str, message: impl Into<String>) -> Self {
        Self::new(source, vec![Issue { line: 1, column: 0, message: message.into() }])
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (issue, excerpt)) in self.issues.iter().zip(&self.excerpts).enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "ERROR: <input>:{}:{}: {}", issue.line, issue.column + 1, issue.message)?;
            if let Some((line, column)) = excerpt {
                write!(f, "\n | {line}\n | {}^", ".".repeat(*column))?;
            }
        }
        if self.omitted > 0 {
            write!(f, "\nand {} more", self.omitted)?;
        }
        Ok(())
    }
}

/// The line of an issue; of a long one, the part around the issue.
fn excerpt(source: &str, issue: &Issue) -> Option<(String, usize)> {
    let line = source.lines().nth(issue.line.checked_sub(1)?)?;
    let is_long = line.len() > MAX_SHOWN_LINE;
    let start = if is_long { issue.column.saturating_sub(MAX_SHOWN_LINE / 2) } else { 0 };
    let shown: String = line.chars().skip(start).take(MAX_SHOWN_LINE).collect();
    Some((shown.replace('\t', " "), issue.column.min(line.len()) - start.min(line.len())))
}

/// Text that keeps the first [`MAX_MESSAGE_LENGTH`] bytes of what is written to it, and then refuses more, so that a
/// formatter stops.
#[derive(Default)]
struct ClippedText(String);

impl Write for ClippedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MAX_MESSAGE_LENGTH - self.0.len();
        let fits = text.floor_char_boundary(room);
        self.0.push_str(&text[..fits]);
        if fits < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// What a value is written as, or its beginning and three dots.
fn clip_text(value: impl fmt::Display) -> String {
    let mut clipped = ClippedText::default();
    let is_whole = write!(clipped, "{value}").is_ok();
    if !is_whole {
        clipped.0.push_str("...");
    }
    clipped.0
}

impl std::error::Error for CompileError {}

/// Why an evaluation has no value. [`EvalError::is_fatal`] tells those that no `||` absorbs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    #[error("operation cancelled: actual cost limit exceeded")]
    CallCostExceeded,
    #[error("validation failed due to running out of cost budget, no further validation rules will be run")]
    BudgetExceeded,
    /// The host has to ask for this decision and to evaluate anew.
    #[error("authorization check has no answer yet")]
    AuthorizationNeeded(Arc<AuthorizationCheck>),
    #[error("no such key: {0}")]
    NoSuchKey(Arc<str>),
    #[error("no such overload")]
    NoSuchOverload,
    #[error("{0}")]
    Message(Arc<str>),
}

impl EvalError {
    /// Clips what is too long: give `format_args!` of texts from outside.
    pub(crate) fn message(text: impl fmt::Display) -> Self {
        Self::Message(clip_text(text).into())
    }

    pub(crate) fn no_such_key(key: impl fmt::Display) -> Self {
        Self::NoSuchKey(clip_text(key).into())
    }

    /// Whether the evaluation was cut off, whatever else the expression would have said.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::CallCostExceeded | Self::BudgetExceeded | Self::AuthorizationNeeded(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compile_error_points_at_its_place() {
        let issue = Issue { line: 2, column: 3, message: "undefined field 'x'".into() };
        assert_eq!(
            CompileError::new("a &&\nself.x", vec![issue]).to_string(),
            "ERROR: <input>:2:4: undefined field 'x'\n | self.x\n | ...^"
        );
    }

    #[test]
    fn of_a_long_line_the_part_around_the_issue_is_shown() {
        let source = format!("{}!{}", "é".repeat(5_000), "b".repeat(5_000));
        let issue = Issue { line: 1, column: 5_000, message: "m".repeat(1 << 20) };
        let text = CompileError::new(&source, vec![issue]).to_string();
        let shown: Vec<&str> = text.lines().collect();
        assert!(text.len() < 4_096 && shown[0].ends_with("m..."), "{text}");
        assert_eq!(shown[1].chars().nth(shown[2].chars().count() - 1), Some('!'), "{text}");
    }
}
