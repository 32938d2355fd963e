//! Calls: operators, functions of the libraries, and the macros that the grammar leaves as calls.

use std::{collections::HashMap, sync::Arc};

use cel::common::ast::{CallExpr, Expr as Ast, IdedExpr, operators};

use super::{Compiler, aggregates::join_types, sizes::sized_result, spelled_name};
use crate::{
    expr::{Expr, Kind},
    library::{Declared, Overload, compile_regex, find_function, time},
    types::{ListType, Type},
    value::Value,
};

impl Compiler<'_> {
    pub(super) fn call(&mut self, id: u64, call: &CallExpr) -> Expr {
        match (call.func_name.as_str(), &call.target, &*call.args) {
            (operators::LOGICAL_AND, None, [left, right]) => {
                let parts = self.booleans(left, right);
                self.expr(id, Type::Bool, Kind::And(parts))
            }
            (operators::LOGICAL_OR, None, [left, right]) => {
                let parts = self.booleans(left, right);
                self.expr(id, Type::Bool, Kind::Or(parts))
            }
            (operators::CONDITIONAL, None, [condition, yes, no]) => self.conditional(id, condition, yes, no),
            (operators::NOT_STRICTLY_FALSE, None, [operand]) => {
                let operand = self.expression(operand);
                self.expr(id, Type::Bool, Kind::NotStrictlyFalse(Box::new(operand)))
            }
            (operators::INDEX, None, args) => self.index(id, args, false),
            (operators::OPT_INDEX, None, args) => self.index(id, args, true),
            (operators::OPT_SELECT, None, args) => self.optional_selection(id, args),
            (
                operators::ADD,
                None,
                [IdedExpr { expr: Ast::Ident(name), .. }, IdedExpr { expr: Ast::List(list), .. }],
            ) if name.starts_with('@') && list.elements.len() == 1 => self.append(id, name, &list.elements[0]),
            (name, Some(target), args) => {
                if let Some(expanded) = self.expand_macro(id, name, target, args) {
                    return expanded;
                }
                self.member_call(id, name, target, args)
            }
            (name, None, args) => {
                let args: Vec<Expr> = args.iter().map(|arg| self.expression(arg)).collect();
                self.function(id, name.trim_start_matches('.'), false, args)
            }
        }
    }

    fn booleans(&mut self, left: &IdedExpr, right: &IdedExpr) -> Box<[Expr; 2]> {
        let parts = [self.expression(left), self.expression(right)];
        for part in &parts {
            self.expect_bool(part);
        }
        Box::new(parts)
    }

    fn conditional(&mut self, id: u64, condition: &IdedExpr, yes: &IdedExpr, no: &IdedExpr) -> Expr {
        let parts = [self.expression(condition), self.expression(yes), self.expression(no)];
        let [condition, yes, no] = &parts;
        if !Type::Bool.accepts(&condition.ty) || !yes.ty.accepts(&no.ty) {
            let types = format!("({}, {}, {})", condition.ty, yes.ty, no.ty);
            self.report(id, format!("found no matching overload for '_?_:_' applied to '{types}'"));
            return self.invalid(id);
        }
        let ty = join_types(yes.ty.clone(), no.ty.clone());
        self.expr(id, ty, Kind::Conditional(Box::new(parts)))
    }

    /// What `map` and `filter` do with their accumulator.
    fn append(&mut self, id: u64, accumulator: &str, element: &IdedExpr) -> Expr {
        let element = self.expression(element);
        let Some(slot) = self.find_local(accumulator).map(|local| local.slot) else { return self.invalid(id) };
        let ty = Type::list(element.ty.clone());
        self.expr(id, ty, Kind::Append { slot, element: Box::new(element) })
    }

    /// `target.name(args)`, where the target may also be the first part of a function's name: `sets.contains(a, b)`.
    fn member_call(&mut self, id: u64, name: &str, target: &IdedExpr, args: &[IdedExpr]) -> Expr {
        if let Some(prefix) = spelled_name(target) {
            let root = prefix.split('.').next().unwrap_or(&prefix);
            let full = format!("{prefix}.{name}");
            if self.find_local(root).is_none()
                && !self.environment.variables.contains_key(root)
                && find_function(&full).is_some()
            {
                let args = args.iter().map(|arg| self.expression(arg)).collect();
                return self.function(id, &full, false, args);
            }
        }
        let outer = std::mem::replace(&mut self.mixed_literals, name == "format");
        let args: Vec<Expr> = std::iter::once(target).chain(args).map(|arg| self.expression(arg)).collect();
        self.mixed_literals = outer;
        self.function(id, name, true, args)
    }

    fn function(&mut self, id: u64, name: &str, member: bool, args: Vec<Expr>) -> Expr {
        let Some(declared) = find_function(name) else {
            self.report(id, format!("undeclared reference to '{name}' (in container '')"));
            return self.invalid(id);
        };
        let Some(ty) = find_result(declared, member, &args) else {
            let types: Vec<String> = args.iter().map(|arg| arg.ty.to_string()).collect();
            let types = match (member, &*types) {
                (true, [receiver, rest @ ..]) => format!("{receiver}.({})", rest.join(", ")),
                _ => format!("({})", types.join(", ")),
            };
            self.report(id, format!("found no matching overload for '{name}' applied to '{types}'"));
            return self.invalid(id);
        };
        let ty = sized_result(name, ty, &args);
        let pattern = self.check_literals(name, &args);
        self.expr(id, ty, Kind::Call { function: declared.function, args, pattern })
    }

    /// Refuses literals that no evaluation could use, and compiles a literal pattern once.
    fn check_literals(&mut self, name: &str, args: &[Expr]) -> Option<Arc<regex::Regex>> {
        let literal = |index: usize| match args.get(index) {
            Some(Expr { kind: Kind::Literal(Value::String(text)), offset, .. }) => Some((text.to_string(), *offset)),
            _ => None,
        };
        match name {
            "matches" | "find" | "findAll" => {
                let (text, offset) = literal(1)?;
                match compile_regex(&text) {
                    Ok(regex) => return Some(Arc::new(regex)),
                    Err(why) => self.report_at(offset, format!("invalid {name} argument: {why}")),
                }
            }
            "duration" => {
                if let Some((text, offset)) = literal(0)
                    && time::parse_duration(&text).is_err()
                {
                    self.report_at(offset, "invalid duration argument");
                }
            }
            "timestamp" => {
                if let Some((text, offset)) = literal(0)
                    && time::parse_timestamp(&text).is_err()
                {
                    self.report_at(offset, "invalid timestamp argument");
                }
            }
            _ => {}
        }
        None
    }
}

/// The result's type: of the overload that matches, `dyn` if several do and differ.
fn find_result(declared: &Declared, member: bool, args: &[Expr]) -> Option<Type> {
    let mut found: Option<Type> = None;
    for overload in declared.overloads.iter().filter(|overload| overload.member == member) {
        let Some(result) = match_overload(overload, args) else { continue };
        found = Some(match found {
            None => result,
            Some(found) => join_types(found, result),
        });
    }
    found
}

fn match_overload(overload: &Overload, args: &[Expr]) -> Option<Type> {
    if overload.parameters.len() != args.len() {
        return None;
    }
    let mut bound = HashMap::new();
    let fits = overload.parameters.iter().zip(args).all(|(parameter, arg)| unify(parameter, &arg.ty, &mut bound));
    fits.then(|| substitute(&overload.result, &bound))
}

fn unify(parameter: &Type, arg: &Type, bound: &mut HashMap<char, Type>) -> bool {
    match (parameter, arg) {
        (Type::Parameter(name), arg) => match bound.get(name) {
            None => {
                bound.insert(*name, arg.clone());
                true
            }
            Some(known) if known.accepts(arg) => {
                let joined = join_types(known.clone(), arg.clone());
                bound.insert(*name, joined);
                true
            }
            Some(_) => false,
        },
        (_, Type::Dyn) => true,
        (Type::List(parameter), Type::List(arg)) => unify(&parameter.element, &arg.element, bound),
        (Type::Map(parameter), Type::Map(arg)) => {
            unify(&parameter.key, &arg.key, bound) && unify(&parameter.value, &arg.value, bound)
        }
        // An object of a schema has no keys for `in`, but `dyn` ones for functions over any map.
        (Type::Optional(parameter), Type::Optional(arg)) => unify(parameter, arg, bound),
        (parameter, arg) => parameter.accepts(arg),
    }
}

fn substitute(ty: &Type, bound: &HashMap<char, Type>) -> Type {
    match ty {
        Type::Parameter(name) => bound.get(name).cloned().unwrap_or(Type::Dyn),
        Type::List(list) => {
            Type::List(ListType { element: substitute(&list.element, bound), ..(**list).clone() }.into())
        }
        Type::Map(map) => Type::map(substitute(&map.key, bound), substitute(&map.value, bound)),
        Type::Optional(inner) => Type::optional(substitute(inner, bound)),
        other => other.clone(),
    }
}
