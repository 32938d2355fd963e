//! Limits that keep an expression from taking the server's memory, stack or time, whatever its text is.

/// The longest expression, in bytes. Compiling is linear in it.
pub const MAX_EXPRESSION_LENGTH: usize = 32 << 10;
/// How deeply an expression may be nested, as upstream's parser limits it.
pub const MAX_NESTING: usize = 250;
/// How deep evaluation may go when variables are expressions over other variables.
pub(crate) const MAX_EVALUATION_DEPTH: usize = 2 * MAX_NESTING;
/// The nesting of parentheses, lists and calls that the grammar's parser follows.
pub(crate) const MAX_PARSER_RECURSION: u16 = 100;
/// How many faults of an expression are described, and how much of a line with one is shown, in characters.
pub(crate) const MAX_ISSUES: usize = 20;
pub(crate) const MAX_SHOWN_LINE: usize = 200;
/// The longest message of an error, in bytes.
pub(crate) const MAX_MESSAGE_LENGTH: usize = 1 << 10;
/// The stack of the thread that parses: the grammar's parser takes up to 150 KiB for each level in unoptimized builds.
/// Only what it touches becomes memory.
pub(crate) const PARSER_STACK: usize = 64 << 20;
