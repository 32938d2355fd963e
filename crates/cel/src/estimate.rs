//! The largest cost that an expression can have, by the sizes that its variables' types allow.
//!
//! Upstream refuses a rule of a custom resource whose estimate is beyond [`RULE_COST_LIMIT`], and a definition whose
//! rules together are beyond [`DEFINITION_COST_LIMIT`]: a user learns of an expensive rule when it is written, not when
//! an object with a long list arrives. An estimate multiplies nested loops and saturates.

use std::collections::HashMap;

use crate::{
    expr::{Comprehension, Expr, Kind},
    program::Program,
    types::Type,
    value::Value,
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
    let mut estimator = Estimator { sizes: HashMap::new() };
    CostEstimate { max: estimator.node(&program.root).cost }
}

/// What is known of a node: its cost and the largest size of its value.
#[derive(Clone, Copy)]
struct Node {
    cost: u64,
    size: u64,
}

impl Node {
    fn new(cost: u64, ty: &Type) -> Self {
        Self { cost, size: type_size(ty) }
    }
}

/// Values without a size count as one.
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

struct Estimator {
    /// Computed sizes of variables that `cel.bind` and comprehensions declare.
    sizes: HashMap<usize, u64>,
}

impl Estimator {
    fn node(&mut self, expr: &Expr) -> Node {
        match &expr.kind {
            Kind::Literal(Value::String(text)) => Node { cost: 0, size: text.len() as u64 },
            Kind::Literal(_) => Node::new(0, &expr.ty),
            Kind::Variable(_) => Node::new(1, &expr.ty),
            Kind::Local(slot) => Node { cost: 1, size: self.sizes.get(slot).copied().unwrap_or(type_size(&expr.ty)) },
            Kind::Select { operand, .. } => Node::new(self.node(operand).cost.saturating_add(1), &expr.ty),
            Kind::Test { operand, .. } | Kind::NotStrictlyFalse(operand) => {
                Node::new(self.node(operand).cost, &expr.ty)
            }
            Kind::Index { operand, index, .. } => {
                let cost = self.sum([&**operand, &**index]).saturating_add(1);
                Node::new(cost, &expr.ty)
            }
            Kind::Call { function, args, .. } => self.call(expr, function.name, args),
            Kind::And(parts) | Kind::Or(parts) => Node { cost: self.sum(parts.iter()), size: 1 },
            Kind::Conditional(parts) => {
                let [condition, yes, no] = &**parts;
                let (condition, yes, no) = (self.node(condition), self.node(yes), self.node(no));
                Node { cost: condition.cost.saturating_add(yes.cost.max(no.cost)), size: yes.size.max(no.size) }
            }
            Kind::List(elements) => Node {
                cost: self.sum(elements.iter().map(|element| &element.value)).saturating_add(10),
                size: elements.len() as u64,
            },
            Kind::Map(entries) => Node {
                cost: self.sum(entries.iter().flat_map(|entry| [&entry.key, &entry.value])).saturating_add(30),
                size: entries.len() as u64,
            },
            Kind::Struct { fields, .. } => {
                Node { cost: self.sum(fields.iter().map(|field| &field.value)).saturating_add(40), size: 1 }
            }
            Kind::Bind { slot, init, body } => {
                let init = self.node(init);
                self.sizes.insert(*slot, init.size);
                let body = self.node(body);
                Node { cost: init.cost.saturating_add(body.cost), size: body.size }
            }
            Kind::Append { element, .. } => Node::new(self.node(element).cost.saturating_add(11), &expr.ty),
            Kind::Insert { key, value, .. } => Node::new(self.sum([&**key, &**value]).saturating_add(1), &expr.ty),
            Kind::InsertAll { entries, .. } => Node::new(self.node(entries).cost.saturating_add(1), &expr.ty),
            Kind::Comprehension(comprehension) => self.comprehension(expr, comprehension),
        }
    }

    fn sum<'e>(&mut self, parts: impl IntoIterator<Item = &'e Expr>) -> u64 {
        parts.into_iter().fold(0, |sum: u64, part| sum.saturating_add(self.node(part).cost))
    }

    fn comprehension(&mut self, expr: &Expr, comprehension: &Comprehension) -> Node {
        let range = self.node(&comprehension.range);
        let init = self.node(&comprehension.init);
        // The accumulator has at most one element for each of the range.
        let collects = matches!(comprehension.init.ty, Type::List(_) | Type::Map(_));
        let size = if collects { range.size } else { 1 };
        self.sizes.insert(comprehension.accumulator, size);
        let turn = self.sum([&comprehension.condition, &comprehension.step]);
        let result = self.node(&comprehension.result);
        let cost = range
            .cost
            .saturating_add(init.cost)
            .saturating_add(range.size.saturating_mul(turn))
            .saturating_add(result.cost);
        Node { cost, size: if collects { size } else { type_size(&expr.ty) } }
    }

    fn call(&mut self, expr: &Expr, name: &str, args: &[Expr]) -> Node {
        let nodes: Vec<Node> = args.iter().map(|arg| self.node(arg)).collect();
        let args_cost = nodes.iter().fold(0, |sum: u64, node| sum.saturating_add(node.cost));
        let size = |index: usize| nodes.get(index).map_or(1, |node| node.size);
        let (first, second) = (size(0), size(1));
        let mut result_size = type_size(&expr.ty);
        let cost = match name {
            "startsWith" | "endsWith" | "bytes" | "string" | "url" | "isURL" | "quantity" | "isQuantity" | "cidr"
            | "isCIDR" | "isIP" | "semver" | "isSemver" => traversal(first),
            "ip" if matches!(args[0].ty, Type::String(_) | Type::Dyn) => traversal(first),
            "ip.isCanonical" | "strings.quote" => traversal(first.saturating_mul(2)),
            "@in" if matches!(args[1].ty, Type::Map(_)) => 1,
            "@in" => second,
            "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" => traversal(first.min(second)),
            "_+_" => match args[0].ty {
                Type::String(_) | Type::Bytes(_) => {
                    result_size = first.saturating_add(second);
                    traversal(result_size)
                }
                Type::List(_) => {
                    result_size = first.saturating_add(second);
                    1
                }
                _ => 1,
            },
            "matches" | "find" | "findAll" => traversal(first.saturating_add(1)).saturating_mul(second.div_ceil(4)),
            "contains" => traversal(first).saturating_mul(traversal(second)),
            "lowerAscii" | "upperAscii" | "trim" | "substring" => {
                result_size = first;
                traversal(first)
            }
            "replace" => {
                result_size = first.saturating_add(first.saturating_add(1).saturating_mul(size(2)));
                traversal(first.saturating_mul(2))
            }
            "split" => {
                result_size = first;
                traversal(first.saturating_mul(2))
            }
            "join" => {
                let element = match &args[0].ty {
                    Type::List(list) => type_size(&list.element),
                    _ => u64::MAX,
                };
                result_size = first.saturating_mul(element.saturating_add(if nodes.len() > 1 { second } else { 0 }));
                traversal(result_size)
            }
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => match &args[0].ty {
                Type::List(list) => first.saturating_mul(traversal(type_size(&list.element)).saturating_add(1)),
                _ => traversal(first),
            },
            "sets.contains" | "sets.intersects" => first.saturating_mul(second),
            "sets.equivalent" => first.saturating_mul(second).saturating_mul(2),
            "check" => 350_000,
            _ => 1,
        };
        Node { cost: args_cost.saturating_add(cost.max(1)), size: result_size }
    }
}
