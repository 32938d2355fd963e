//! One template over its inputs.
//!
//! What a template names has to exist: an undefined value is an error with its line, not an empty text. Blocks (`{% … %}`) leave no
//! blank lines behind, nothing is escaped, and a trailing newline stays.
//!
//! Steps ([`MAX_STEPS`]), depth and the size of the result are bounded. Memory is not: `a ~ a` in a loop doubles a text with every
//! step, and the engine has no limit for that.

use std::{collections::BTreeMap, fmt, io};

use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, machinery::parse, syntax::SyntaxConfig, value::Serde,
};
use serde_json::Value;

use crate::nesting::{TooDeep, check_nesting};

/// How long a template may be.
pub const MAX_SOURCE: usize = 256 * 1024;
/// How much it may write; what a ConfigMap or Secret takes, less some room for the rest of the object.
pub const MAX_OUTPUT: usize = 1000 * 1024;
/// How many instructions it may execute. A loop over 10,000 endpoints takes about 200,000.
pub const MAX_STEPS: u64 = 5_000_000;
/// How deep macros may call each other.
const MAX_DEPTH: usize = 64;
/// How much of the engine's words an error repeats.
const MAX_DETAIL: usize = 400;
/// How much of a line of the template it repeats.
const MAX_LINE: usize = 120;

/// Why a template cannot be rendered, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct TemplateError {
    /// Counted from one; unknown for errors that are not of one line.
    pub line: Option<usize>,
    /// The sort of error, which never contains a value.
    pub problem: String,
    /// More about it, which may contain values of inputs.
    pub detail: Option<String>,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.problem)?;
        match &self.detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

impl TemplateError {
    fn new(problem: impl Into<String>) -> Self {
        Self { line: None, problem: problem.into(), detail: None }
    }

    /// The same without what might repeat a value of an input.
    pub fn without_detail(self) -> Self {
        Self { detail: None, ..self }
    }
}

impl TemplateError {
    fn from_engine(error: &Error, source: &str) -> Self {
        let line = error.line();
        let text = line.and_then(|line| source.lines().nth(line.checked_sub(1)?));
        let problem = match (error.kind(), text) {
            (ErrorKind::OutOfFuel, _) => format!("takes more than {MAX_STEPS} steps: does a loop never end?"),
            // The engine does not say which.
            (kind @ ErrorKind::UndefinedError, Some(text)) => format!("{kind} in {:?}", shorten(text.trim(), MAX_LINE)),
            (kind, _) => kind.to_string(),
        };
        Self { line, problem, detail: error.detail().map(|detail| shorten(detail, MAX_DETAIL)) }
    }
}

fn shorten(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

fn syntax() -> SyntaxConfig {
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).trim_blocks(true).lstrip_blocks(true).build();
    syntax.expect("the stock delimiters differ")
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_syntax(syntax());
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_fuel(Some(MAX_STEPS));
    environment.remove_global("debug");
    environment
}

/// The name under which errors would show the template.
const NAME: &str = "template";

/// Of the thread that parses: within the bounds of [`check_nesting`] the engine needs a fraction of it, also without optimization.
const PARSER_STACK: usize = 32 << 20;

/// Whether a text is a template. Within a process that must not end, whatever the text is: it is parsed and no more, since the engine's compiler evaluates
/// constant expressions, and `"x" * 100000000` is one.
pub fn check_syntax(source: &str) -> Result<(), TemplateError> {
    check_bounds(source)?;
    let parse = || {
        let parsed = parse(source, NAME, syntax()).map(drop);
        parsed.map_err(|error| TemplateError::from_engine(&error, source))
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("parse-template".to_owned()).stack_size(PARSER_STACK);
        let thread = thread.spawn_scoped(scope, parse);
        let thread = thread.map_err(|error| TemplateError::new(format!("cannot be checked now: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(TemplateError::new("cannot be parsed")))
    })
}

fn check_bounds(source: &str) -> Result<(), TemplateError> {
    if source.len() > MAX_SOURCE {
        return Err(TemplateError::new(format!("is longer than {MAX_SOURCE} bytes")));
    }
    check_nesting(source, syntax()).map_err(|TooDeep { line, problem }| TemplateError {
        line: Some(line),
        problem,
        detail: None,
    })
}

/// Something that templates read, as the engine has it: many templates can be rendered over it without converting it again.
#[derive(Clone, Debug)]
pub struct Input(minijinja::Value);

impl Input {
    /// What a JSON text says.
    pub fn from_json(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text).map(Self)
    }

    pub fn list(items: Vec<Self>) -> Self {
        Self(items.into_iter().map(|Self(item)| item).collect())
    }
}

impl From<&Value> for Input {
    fn from(value: &Value) -> Self {
        Self(Serde(value).into())
    }
}

/// What a template makes of its inputs.
pub fn render(source: &str, inputs: &BTreeMap<String, Value>) -> Result<String, TemplateError> {
    render_inputs(source, inputs.iter().map(|(name, value)| (name.as_str(), Input::from(value))))
}

/// The same of inputs that are converted already.
pub fn render_inputs<'n>(
    source: &str,
    inputs: impl Iterator<Item = (&'n str, Input)>,
) -> Result<String, TemplateError> {
    check_bounds(source)?;
    let environment = environment();
    let failed = |error: Error| TemplateError::from_engine(&error, source);
    let template = environment.template_from_named_str(NAME, source).map_err(failed)?;
    let mut output = BoundedOutput::default();
    let inputs = minijinja::Value::from_pairs(inputs.map(|(name, Input(value))| (name, value)));
    let result = template.render_captured_to(inputs, &mut output).map(drop);
    if output.exceeded {
        return Err(TemplateError::new(format!("renders more than {MAX_OUTPUT} bytes")));
    }
    result.map_err(failed)?;
    String::from_utf8(output.bytes).map_err(|_| TemplateError::new("renders bytes that are not UTF-8"))
}

#[derive(Default)]
struct BoundedOutput {
    bytes: Vec<u8>,
    exceeded: bool,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT {
            self.exceeded = true;
            return Err(io::Error::other("the output is too large"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
