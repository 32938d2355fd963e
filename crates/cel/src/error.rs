//! Errors of compiling and of evaluating, in upstream's words.

use std::{fmt, sync::Arc};

use crate::library::authorizer::AuthorizationCheck;

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
    source: Arc<str>,
}

impl CompileError {
    pub(crate) fn new(source: &str, mut issues: Vec<Issue>) -> Self {
        issues.sort_by_key(|issue| (issue.line, issue.column));
        Self { issues, source: source.into() }
    }

    pub(crate) fn whole(source: &str, message: impl Into<String>) -> Self {
        Self::new(source, vec![Issue { line: 1, column: 0, message: message.into() }])
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, issue) in self.issues.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "ERROR: <input>:{}:{}: {}", issue.line, issue.column + 1, issue.message)?;
            if let Some(line) = self.source.lines().nth(issue.line - 1) {
                write!(f, "\n | {}\n | {}^", line.replace('\t', " "), ".".repeat(issue.column))?;
            }
        }
        Ok(())
    }
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
    pub(crate) fn message(text: impl Into<Arc<str>>) -> Self {
        Self::Message(text.into())
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
}
