//! Runs the parser of the `cel` crate, whose grammar and messages are upstream's.

use cel::{
    common::ast::{IdedExpr, SourceInfo},
    parser::Parser,
};

use crate::{
    error::{CompileError, Issue},
    limits::{MAX_NESTING, MAX_PARSER_RECURSION},
};

pub(super) fn parse(source: &str) -> Result<(IdedExpr, SourceInfo), CompileError> {
    let parser = Parser::new()
        .max_recursion_depth(MAX_PARSER_RECURSION)
        .enable_optional_syntax(true)
        .enable_ident_escape_syntax(true);
    parser.parse_with_source_info(source).map_err(|errors| {
        let issues = errors.errors.into_iter().map(|error| Issue {
            line: usize::try_from(error.pos.0).unwrap_or(1).max(1),
            column: usize::try_from(error.pos.1).unwrap_or(1).saturating_sub(1),
            message: if error.msg.contains("Recursion limit") {
                format!("expression recursion limit exceeded: {MAX_NESTING}")
            } else {
                error.msg
            },
        });
        CompileError::new(source, issues.collect())
    })
}
