//! The tree that is checked and evaluated: names resolved, macros expanded, functions looked up.

use std::sync::Arc;

use regex::Regex;

use crate::{library::Function, types::Type, value::Value};

/// A node, with its place in the text and the type that the checker found.
#[derive(Debug)]
pub(crate) struct Expr {
    /// In bytes from the beginning of the text.
    pub offset: u32,
    pub ty: Type,
    pub kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Literal(Value<'static>),
    /// A variable of the environment, by its full name (`object`, `variables.replicas`).
    Variable(Arc<str>),
    /// A variable of a macro, by its slot.
    Local(usize),
    Select {
        operand: Box<Expr>,
        field: Box<str>,
        optional: bool,
    },
    /// `has(operand.field)`.
    Test {
        operand: Box<Expr>,
        field: Box<str>,
    },
    Index {
        operand: Box<Expr>,
        index: Box<Expr>,
        optional: bool,
    },
    Call {
        function: &'static Function,
        args: Vec<Expr>,
        pattern: Option<Arc<Regex>>,
    },
    And(Box<[Expr; 2]>),
    Or(Box<[Expr; 2]>),
    Conditional(Box<[Expr; 3]>),
    /// `@not_strictly_false(x)`: the condition by which `all` and `exists` go on.
    NotStrictlyFalse(Box<Expr>),
    List(Vec<Element>),
    Map(Vec<Entry>),
    Struct {
        name: Arc<str>,
        fields: Vec<StructField>,
    },
    Bind {
        slot: usize,
        init: Box<Expr>,
        body: Box<Expr>,
    },
    /// The accumulator of a comprehension with one element more: what `map` and `filter` do, without a copy.
    Append {
        slot: usize,
        element: Box<Expr>,
    },
    /// The same for a map: `transformMap`.
    Insert {
        slot: usize,
        key: Box<Expr>,
        value: Box<Expr>,
    },
    /// The entries of a map literal or expression added to the accumulator: `transformMapEntry`.
    InsertAll {
        slot: usize,
        entries: Box<Expr>,
    },
    Comprehension(Box<Comprehension>),
}

#[derive(Debug)]
pub(crate) struct Element {
    pub value: Expr,
    pub optional: bool,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub key: Expr,
    pub value: Expr,
    pub optional: bool,
}

#[derive(Debug)]
pub(crate) struct StructField {
    pub name: Arc<str>,
    pub value: Expr,
    pub optional: bool,
}

#[derive(Debug)]
pub(crate) struct Comprehension {
    pub range: Expr,
    /// The element of a list or the key of a map; with two variables, the index or the key.
    pub variable: usize,
    /// With two variables, the element or the value.
    pub second: Option<usize>,
    pub accumulator: usize,
    pub init: Expr,
    pub condition: Expr,
    pub step: Expr,
    pub result: Expr,
}
