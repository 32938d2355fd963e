//! Comprehensions: those that the grammar's parser expands (`all`, `exists`, `exists_one`, `map`, `filter`), and the
//! macros that it leaves as calls: `cel.bind`, `optMap`, `optFlatMap` and those with two variables.

use cel::common::ast::{ComprehensionExpr, Expr as Ast, IdedExpr};

use super::Compiler;
use crate::{
    expr::{Comprehension, Expr, Kind},
    library::find_function,
    types::Type,
    value::Value,
};

const ACCUMULATOR: &str = "@result";

impl Compiler<'_> {
    pub(super) fn comprehension(&mut self, id: u64, comprehension: &ComprehensionExpr) -> Expr {
        let range = self.expression(&comprehension.iter_range);
        let element = self.range_types(&range, false).0;
        let init = self.expression(&comprehension.accu_init);
        let scope = self.locals.len();
        let accumulator = self.declare(&comprehension.accu_var, init.ty.clone());
        let variable = self.declare(&comprehension.iter_var, element);
        let condition = self.expression(&comprehension.loop_cond);
        let step = self.expression(&comprehension.loop_step);
        self.locals.truncate(scope + 1);
        // Of an empty list that elements are appended to, the step tells the type.
        let collected = match &step.kind {
            Kind::Conditional(parts) => &parts[1].ty,
            _ => &step.ty,
        };
        if let (Type::List(_), Type::List(_)) = (&init.ty, collected) {
            self.locals[scope].ty = with_range_size(collected, &range.ty);
        }
        let result = self.expression(&comprehension.result);
        self.locals.truncate(scope);
        if let Kind::And(parts) | Kind::Or(parts) = &step.kind {
            self.expect_bool(&parts[1]);
        }
        let ty = result.ty.clone();
        let comprehension = Comprehension { range, variable, second: None, accumulator, init, condition, step, result };
        self.expr(id, ty, Kind::Comprehension(Box::new(comprehension)))
    }

    /// The types of a range's variables: of a list, index and element; of a map, key and value. With one variable, the
    /// first is the element or the key.
    fn range_types(&mut self, range: &Expr, two: bool) -> (Type, Type) {
        match &range.ty {
            Type::List(list) if two => (Type::Int, list.element.clone()),
            Type::List(list) => (list.element.clone(), Type::Dyn),
            Type::Map(map) => (map.key.clone(), map.value.clone()),
            Type::Dyn => (Type::Dyn, Type::Dyn),
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.report_at(range.offset, message);
                (Type::Dyn, Type::Dyn)
            }
        }
    }

    /// The expansion of a macro that the grammar knows nothing of; nothing for a call that is no macro.
    pub(super) fn expand_macro(&mut self, id: u64, name: &str, target: &IdedExpr, args: &[IdedExpr]) -> Option<Expr> {
        let issues = self.issues.len();
        let expanded = self.try_expand(id, name, target, args);
        // A macro that is not used as it must be is reported as such, not as an unknown function.
        if expanded.is_none() && self.issues.len() > issues { Some(self.invalid(id)) } else { expanded }
    }

    fn try_expand(&mut self, id: u64, name: &str, target: &IdedExpr, args: &[IdedExpr]) -> Option<Expr> {
        match (name, args) {
            ("bind", [variable, init, body]) if matches!(&target.expr, Ast::Ident(name) if name == "cel") => {
                let variable = self.simple_name(variable)?;
                let init = self.expression(init);
                let scope = self.locals.len();
                let slot = self.declare(&variable, init.ty.clone());
                let body = self.expression(body);
                self.locals.truncate(scope);
                let ty = body.ty.clone();
                Some(self.expr(id, ty, Kind::Bind { slot, init: Box::new(init), body: Box::new(body) }))
            }
            ("optMap", [variable, body]) => self.optional_map(id, target, variable, body, true),
            ("optFlatMap", [variable, body]) => self.optional_map(id, target, variable, body, false),
            ("all" | "exists", [first, second, predicate]) => {
                let all = name == "all";
                self.two_variables(id, target, first, second, |compiler, accumulator| {
                    let predicate = compiler.expression(predicate);
                    compiler.expect_bool(&predicate);
                    let local = |compiler: &Self| compiler.expr(id, Type::Bool, Kind::Local(accumulator));
                    let parts = Box::new([local(compiler), predicate]);
                    let going = if all { local(compiler) } else { compiler.not(id, accumulator) };
                    TwoVariables {
                        init: compiler.constant(id, Type::Bool, Value::Bool(all)),
                        condition: compiler.expr(id, Type::Bool, Kind::NotStrictlyFalse(Box::new(going))),
                        step: compiler.expr(id, Type::Bool, if all { Kind::And(parts) } else { Kind::Or(parts) }),
                        result: local(compiler),
                    }
                })
            }
            ("existsOne" | "exists_one", [first, second, predicate]) => {
                self.two_variables(id, target, first, second, |compiler, accumulator| {
                    let predicate = compiler.expression(predicate);
                    compiler.expect_bool(&predicate);
                    let local = |compiler: &Self| compiler.expr(id, Type::Int, Kind::Local(accumulator));
                    let one = |compiler: &Self| compiler.constant(id, Type::Int, Value::Int(1));
                    let more = compiler.operator(id, "_+_", Type::Int, vec![local(compiler), one(compiler)]);
                    let step = Kind::Conditional(Box::new([predicate, more, local(compiler)]));
                    TwoVariables {
                        init: compiler.constant(id, Type::Int, Value::Int(0)),
                        condition: compiler.constant(id, Type::Bool, Value::Bool(true)),
                        step: compiler.expr(id, Type::Int, step),
                        result: compiler.operator(id, "_==_", Type::Bool, vec![local(compiler), one(compiler)]),
                    }
                })
            }
            ("transformList" | "transformMap" | "transformMapEntry", [first, second, rest @ ..])
                if matches!(rest.len(), 1 | 2) =>
            {
                self.transform(id, name, target, first, second, rest)
            }
            _ => None,
        }
    }

    /// `transformList(i, v, filter?, element)`, `transformMap(k, v, filter?, value)`,
    /// `transformMapEntry(k, v, filter?, {key: value})`.
    fn transform(
        &mut self,
        id: u64,
        name: &str,
        target: &IdedExpr,
        first: &IdedExpr,
        second: &IdedExpr,
        rest: &[IdedExpr],
    ) -> Option<Expr> {
        let first_name = self.simple_name(first)?;
        self.two_variables(id, target, first, second, |compiler, accumulator| {
            let (filter, body) = match rest {
                [filter, body] => (Some(compiler.expression(filter)), body),
                _ => (None, &rest[0]),
            };
            let body = compiler.expression(body);
            let (ty, init, step) = match name {
                "transformList" => {
                    let ty = Type::list(body.ty.clone());
                    let step = Kind::Append { slot: accumulator, element: Box::new(body) };
                    (ty, Kind::List(Vec::new()), step)
                }
                "transformMap" => {
                    let key = compiler.identifier(id, &first_name);
                    let ty = Type::map(key.ty.clone(), body.ty.clone());
                    let step = Kind::Insert { slot: accumulator, key: Box::new(key), value: Box::new(body) };
                    (ty, Kind::Map(Vec::new()), step)
                }
                _ => {
                    let ty = body.ty.clone();
                    (ty, Kind::Map(Vec::new()), Kind::InsertAll { slot: accumulator, entries: Box::new(body) })
                }
            };
            let local = |compiler: &Self| compiler.expr(id, ty.clone(), Kind::Local(accumulator));
            let step = compiler.expr(id, ty.clone(), step);
            let step = match filter {
                None => step,
                Some(filter) => {
                    compiler.expect_bool(&filter);
                    let parts = Box::new([filter, step, local(compiler)]);
                    compiler.expr(id, ty.clone(), Kind::Conditional(parts))
                }
            };
            TwoVariables {
                init: compiler.expr(id, ty.clone(), init),
                condition: compiler.constant(id, Type::Bool, Value::Bool(true)),
                step,
                result: local(compiler),
            }
        })
    }

    fn two_variables(
        &mut self,
        id: u64,
        target: &IdedExpr,
        first: &IdedExpr,
        second: &IdedExpr,
        parts: impl FnOnce(&mut Self, usize) -> TwoVariables,
    ) -> Option<Expr> {
        let (first, second) = (self.simple_name(first)?, self.simple_name(second)?);
        let range = self.expression(target);
        let (first_type, second_type) = self.range_types(&range, true);
        let scope = self.locals.len();
        let accumulator = self.declare(ACCUMULATOR, Type::Dyn);
        let variable = self.declare(&first, first_type);
        let second = self.declare(&second, second_type);
        let parts = parts(self, accumulator);
        self.locals.truncate(scope);
        let ty = parts.result.ty.clone();
        let comprehension = Comprehension {
            range,
            variable,
            second: Some(second),
            accumulator,
            init: parts.init,
            condition: parts.condition,
            step: parts.step,
            result: parts.result,
        };
        Some(self.expr(id, ty, Kind::Comprehension(Box::new(comprehension))))
    }

    /// `o.optMap(v, e)`: `o.hasValue() ? optional.of(e) : optional.none()`, with `v` bound to the value.
    fn optional_map(
        &mut self,
        id: u64,
        target: &IdedExpr,
        variable: &IdedExpr,
        body: &IdedExpr,
        wrap: bool,
    ) -> Option<Expr> {
        let variable = self.simple_name(variable)?;
        let target = self.expression(target);
        let inner = match &target.ty {
            Type::Optional(inner) => (**inner).clone(),
            Type::Dyn => Type::Dyn,
            other => {
                let message = format!("found no matching overload for 'optMap' applied to '{other}.()'");
                self.report(id, message);
                return Some(self.invalid(id));
            }
        };
        let scope = self.locals.len();
        let optional = self.declare("@target", target.ty.clone());
        let slot = self.declare(&variable, inner.clone());
        let body = self.expression(body);
        self.locals.truncate(scope);
        let local = |compiler: &Self| compiler.expr(id, target.ty.clone(), Kind::Local(optional));
        let (ty, body) = if wrap {
            let ty = Type::optional(body.ty.clone());
            (ty.clone(), self.operator(id, "optional.of", ty, vec![body]))
        } else {
            (body.ty.clone(), body)
        };
        let value = self.operator(id, "value", inner, vec![local(self)]);
        let bound = self.expr(id, ty.clone(), Kind::Bind { slot, init: Box::new(value), body: Box::new(body) });
        let has_value = self.operator(id, "hasValue", Type::Bool, vec![local(self)]);
        let none = self.operator(id, "optional.none", ty.clone(), Vec::new());
        let choice = self.expr(id, ty.clone(), Kind::Conditional(Box::new([has_value, bound, none])));
        let kind = Kind::Bind { slot: optional, init: Box::new(target), body: Box::new(choice) };
        Some(self.expr(id, ty, kind))
    }

    fn simple_name(&mut self, ast: &IdedExpr) -> Option<String> {
        match &ast.expr {
            Ast::Ident(name) => Some(name.clone()),
            _ => {
                self.report(ast.id, "argument must be a simple name");
                None
            }
        }
    }

    fn constant(&self, id: u64, ty: Type, value: Value<'static>) -> Expr {
        self.expr(id, ty, Kind::Literal(value))
    }

    fn not(&self, id: u64, slot: usize) -> Expr {
        let local = self.expr(id, Type::Bool, Kind::Local(slot));
        self.operator(id, "!_", Type::Bool, vec![local])
    }

    /// A call of a function that is known to exist.
    fn operator(&self, id: u64, name: &str, ty: Type, args: Vec<Expr>) -> Expr {
        match find_function(name) {
            Some(declared) => {
                let function = declared.function;
                self.expr(id, ty, Kind::Call { function, args, pattern: None })
            }
            None => self.invalid(id),
        }
    }
}

struct TwoVariables {
    init: Expr,
    condition: Expr,
    step: Expr,
    result: Expr,
}

/// A list of a comprehension has at most as many elements as its range.
fn with_range_size(list: &Type, range: &Type) -> Type {
    match list {
        Type::List(list) => {
            let mut list = (**list).clone();
            list.max_items = range.max_size();
            Type::List(list.into())
        }
        other => other.clone(),
    }
}
