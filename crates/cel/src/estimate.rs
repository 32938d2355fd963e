//! The largest cost that an expression can have, by the sizes that its variables' types allow.
//!
//! Upstream refuses a rule of a custom resource whose estimate is beyond [`RULE_COST_LIMIT`], and a definition whose
//! rules together are beyond [`DEFINITION_COST_LIMIT`]: a user learns of an expensive rule when it is written, not when
//! an object with a long list arrives. An estimate multiplies nested loops and saturates.

use crate::{
    expr::{Comprehension, Expr, Kind},
    program::Program,
    types::Type,
};

/// Upstream's `StaticEstimatedCostLimit`, for one rule with all the times that it can be evaluated for an object.
pub const RULE_COST_LIMIT: u64 = 10_000_000;
/// Upstream's `StaticEstimatedCRDCostLimit`, for all rules of a definition.
pub const DEFINITION_COST_LIMIT: u64 = 100_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostEstimate {
    pub max: u64,
}

impl CostEstimate {
    /// For a rule that is evaluated for up to so many elements of an object.
    pub fn times(self, count: u64) -> Self {
        Self { max: self.max.saturating_mul(count) }
    }
}

pub(crate) fn estimate(program: &Program) -> CostEstimate {
    CostEstimate { max: cost(&program.root) }
}

/// The largest size of a value; those without a size count as one.
fn size(expr: &Expr) -> u64 {
    type_size(&expr.ty)
}

fn type_size(ty: &Type) -> u64 {
    match ty {
        Type::String(_) | Type::Bytes(_) | Type::List(_) | Type::Map(_) | Type::Dyn => {
            ty.max_size().unwrap_or(u64::MAX)
        }
        _ => 1,
    }
}

/// A tenth for each byte or element looked at.
fn traversal(size: u64) -> u64 {
    size.div_ceil(10)
}

fn sum<'e>(parts: impl IntoIterator<Item = &'e Expr>) -> u64 {
    parts.into_iter().fold(0, |sum: u64, part| sum.saturating_add(cost(part)))
}

fn cost(expr: &Expr) -> u64 {
    let (own, parts) = match &expr.kind {
        Kind::Literal(_) => (0, 0),
        Kind::Variable(_) | Kind::Local(_) => (1, 0),
        Kind::Select { operand, .. } => (1, cost(operand)),
        Kind::Test { operand, .. } | Kind::NotStrictlyFalse(operand) => (0, cost(operand)),
        Kind::Index { operand, index, .. } => (1, sum([&**operand, &**index])),
        Kind::Call { function, args, .. } => (call_cost(function.name, args).max(1), sum(args)),
        Kind::And(parts) | Kind::Or(parts) => (0, sum(parts.iter())),
        Kind::Conditional(parts) => (cost(&parts[1]).max(cost(&parts[2])), cost(&parts[0])),
        Kind::List(elements) => (10, sum(elements.iter().map(|element| &element.value))),
        Kind::Map(entries) => (30, sum(entries.iter().flat_map(|entry| [&entry.key, &entry.value]))),
        Kind::Struct { fields, .. } => (40, sum(fields.iter().map(|field| &field.value))),
        Kind::Bind { init, body, .. } => (0, sum([&**init, &**body])),
        // As upstream counts `accumulator + [element]`.
        Kind::Append { element, .. } => (12, cost(element)),
        Kind::Insert { key, value, .. } => (1, sum([&**key, &**value])),
        Kind::InsertAll { entries, .. } => (1, cost(entries)),
        Kind::Comprehension(comprehension) => (0, comprehension_cost(comprehension)),
    };
    parts.saturating_add(own)
}

fn comprehension_cost(comprehension: &Comprehension) -> u64 {
    let turn = sum([&comprehension.condition, &comprehension.step]);
    let turns = size(&comprehension.range).saturating_mul(turn);
    sum([&comprehension.range, &comprehension.init, &comprehension.result]).saturating_add(turns)
}

fn call_cost(name: &str, args: &[Expr]) -> u64 {
    let first = args.first().map_or(1, size);
    let second = args.get(1).map_or(1, size);
    match name {
        "startsWith" | "endsWith" | "bytes" | "string" | "url" | "isURL" | "quantity" | "isQuantity" | "cidr"
        | "isCIDR" | "isIP" | "ip" | "semver" | "isSemver" | "lowerAscii" | "upperAscii" | "trim" | "substring" => {
            traversal(first)
        }
        "ip.isCanonical" | "strings.quote" | "replace" | "split" => traversal(first.saturating_mul(2)),
        "@in" if matches!(args[1].ty, Type::Map(_)) => 1,
        "@in" => second,
        "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" => traversal(first.min(second)),
        "_+_" if matches!(args[0].ty, Type::String(_) | Type::Bytes(_)) => traversal(first.saturating_add(second)),
        "matches" | "find" | "findAll" => traversal(first.saturating_add(1)).saturating_mul(second.div_ceil(4)),
        "contains" => traversal(first).saturating_mul(traversal(second)),
        "join" => match &args[0].ty {
            Type::List(list) => {
                let separator = if args.len() > 1 { second } else { 0 };
                traversal(first.saturating_mul(type_size(&list.element).saturating_add(separator)))
            }
            _ => u64::MAX,
        },
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => match &args[0].ty {
            Type::List(list) => first.saturating_mul(traversal(type_size(&list.element)).saturating_add(1)),
            _ => traversal(first),
        },
        "sets.contains" | "sets.intersects" => first.saturating_mul(second),
        "sets.equivalent" => first.saturating_mul(second).saturating_mul(2),
        "check" => 350_000,
        _ => 1,
    }
}
