//! From text to a checked expression: parse, resolve names, expand macros, find types.
//!
//! All of it runs on a thread of its own with a large stack: the grammar's parser recurses with the nesting of the text,
//! and a syntax tree of many thousand links is dropped recursively. A panic of the parser becomes a compile error.

mod aggregates;
mod calls;
mod literals;
mod macros;
mod parse;
mod selection;
mod sizes;

use std::{sync::Arc, thread};

use cel::common::ast::{Expr as Ast, IdedExpr, SourceInfo};

use crate::{
    environment::Environment,
    error::{CompileError, Issue},
    expr::{Expr, Kind},
    library::TYPE_NAMES,
    limits::{MAX_EXPRESSION_LENGTH, MAX_ISSUES, MAX_NESTING, PARSER_STACK},
    types::Type,
    value::Value,
};

pub(crate) struct Compiled {
    pub root: Expr,
    pub slots: usize,
    pub depth: usize,
}

pub(crate) fn compile(environment: &Environment, source: &str) -> Result<Compiled, CompileError> {
    if source.len() > MAX_EXPRESSION_LENGTH {
        return Err(CompileError::whole(
            source,
            format!("expression code point size exceeds limit: {MAX_EXPRESSION_LENGTH}"),
        ));
    }
    let compiled = thread::scope(|scope| {
        let work = thread::Builder::new().name("cel-compile".into()).stack_size(PARSER_STACK);
        let handle = work.spawn_scoped(scope, || compile_here(environment, source));
        match handle.map(thread::ScopedJoinHandle::join) {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(CompileError::whole(source, "Syntax error: the expression cannot be parsed")),
            Err(error) => Err(CompileError::whole(source, format!("no thread for compiling the expression: {error}"))),
        }
    })?;
    Ok(compiled)
}

fn compile_here(environment: &Environment, source: &str) -> Result<Compiled, CompileError> {
    let (ast, info) = parse::parse(source)?;
    let mut compiler = Compiler {
        environment,
        info: &info,
        source,
        issues: Vec::new(),
        locals: Vec::new(),
        slots: 0,
        depth: 0,
        deepest: 0,
        mixed_literals: false,
    };
    let root = compiler.expression(&ast);
    let (issues, slots, depth) = (compiler.issues, compiler.slots, compiler.deepest);
    if issues.is_empty() { Ok(Compiled { root, slots, depth }) } else { Err(CompileError::new(source, issues)) }
}

/// A variable of a macro while the macro's expressions are compiled.
struct Local {
    name: Arc<str>,
    slot: usize,
    ty: Type,
}

struct Compiler<'s> {
    environment: &'s Environment,
    info: &'s SourceInfo,
    source: &'s str,
    issues: Vec<Issue>,
    locals: Vec<Local>,
    slots: usize,
    depth: usize,
    deepest: usize,
    /// Whether a literal's elements may be of different types: in the arguments of `format`.
    mixed_literals: bool,
}

impl Compiler<'_> {
    fn expression(&mut self, ast: &IdedExpr) -> Expr {
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        let expr = if self.depth > MAX_NESTING {
            let message = format!("expression recursion limit exceeded: {MAX_NESTING}");
            if !self.issues.iter().any(|issue| issue.message == message) {
                self.report(ast.id, message);
            }
            self.invalid(ast.id)
        } else {
            self.expression_within_limits(ast)
        };
        self.depth -= 1;
        expr
    }

    fn expression_within_limits(&mut self, ast: &IdedExpr) -> Expr {
        match &ast.expr {
            Ast::Unspecified => {
                self.report(ast.id, "Syntax error: missing expression");
                self.invalid(ast.id)
            }
            Ast::Literal(literal) => self.literal(ast.id, literal),
            Ast::Ident(name) => self.identifier(ast.id, name),
            Ast::Select(select) => self.selection(ast.id, select),
            Ast::Call(call) => self.call(ast.id, call),
            Ast::List(list) => self.list(ast.id, list),
            Ast::Map(map) => self.map(ast.id, map),
            Ast::Struct(structure) => self.structure(ast.id, structure),
            Ast::Comprehension(comprehension) => self.comprehension(ast.id, comprehension),
        }
    }

    fn identifier(&mut self, id: u64, name: &str) -> Expr {
        if let Some(local) = self.find_local(name) {
            let (slot, ty) = (local.slot, local.ty.clone());
            return self.expr(id, ty, Kind::Local(slot));
        }
        let name = name.trim_start_matches('.');
        match self.qualified(id, name) {
            Some(expr) => expr,
            None => {
                self.report(id, format!("undeclared reference to '{name}' (in container '')"));
                self.invalid(id)
            }
        }
    }

    /// A variable of the environment or the name of a type.
    fn qualified(&mut self, id: u64, name: &str) -> Option<Expr> {
        if let Some((name, ty)) = self.environment.variables.get_key_value(name) {
            return Some(self.expr(id, ty.clone(), Kind::Variable(name.clone())));
        }
        if TYPE_NAMES.contains(&name) {
            return Some(self.expr(id, Type::Type, Kind::Literal(Value::Type(name.into()))));
        }
        None
    }

    fn find_local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rev().find(|local| &*local.name == name)
    }

    fn declare(&mut self, name: &str, ty: Type) -> usize {
        let slot = self.slots;
        self.slots += 1;
        self.locals.push(Local { name: name.into(), slot, ty });
        slot
    }

    fn expr(&self, id: u64, ty: Type, kind: Kind) -> Expr {
        Expr { offset: self.offset(id), ty, kind }
    }

    /// Stands where an error was reported; of type `dyn`, so that it causes no others.
    fn invalid(&self, id: u64) -> Expr {
        self.expr(id, Type::Dyn, Kind::Literal(Value::Null))
    }

    fn offset(&self, id: u64) -> u32 {
        self.info.offset_for(id).map_or(0, |(start, _)| start)
    }

    fn report(&mut self, id: u64, message: impl Into<String>) {
        self.report_at(self.offset(id), message);
    }

    fn report_at(&mut self, offset: u32, message: impl Into<String>) {
        if self.issues.len() > MAX_ISSUES {
            return; // to find the place takes as long as the text is
        }
        let before = self.source.get(..offset as usize).unwrap_or(self.source);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let column = before[line_start..].chars().count();
        self.issues.push(Issue { line, column, message: message.into() });
    }

    /// Checks that an operand is a boolean.
    fn expect_bool(&mut self, expr: &Expr) {
        if !Type::Bool.accepts(&expr.ty) {
            self.report_at(expr.offset, format!("expected type 'bool' but found '{}'", expr.ty));
        }
    }
}

/// The name that an identifier, or selections from one, spell.
fn spelled_name(ast: &IdedExpr) -> Option<String> {
    let mut parts = Vec::new();
    let mut ast = ast;
    loop {
        match &ast.expr {
            Ast::Ident(name) => {
                parts.push(name.trim_start_matches('.'));
                parts.reverse();
                return Some(parts.join("."));
            }
            Ast::Select(select) if !select.test => {
                parts.push(&select.field);
                ast = &select.operand;
            }
            _ => return None,
        }
    }
}

pub(crate) fn uses_variable(expr: &Expr, wanted: &str) -> bool {
    let uses = |expr: &Expr| uses_variable(expr, wanted);
    match &expr.kind {
        Kind::Literal(_) | Kind::Local(_) => false,
        Kind::Variable(name) => &**name == wanted,
        Kind::Select { operand, .. } | Kind::Test { operand, .. } | Kind::NotStrictlyFalse(operand) => uses(operand),
        Kind::Index { operand, index, .. } => uses(operand) || uses(index),
        Kind::Call { args, .. } => args.iter().any(uses),
        Kind::And(parts) | Kind::Or(parts) => parts.iter().any(uses),
        Kind::Conditional(parts) => parts.iter().any(uses),
        Kind::List(elements) => elements.iter().any(|element| uses(&element.value)),
        Kind::Map(entries) => entries.iter().any(|entry| uses(&entry.key) || uses(&entry.value)),
        Kind::Struct { fields, .. } => fields.iter().any(|field| uses(&field.value)),
        Kind::Bind { init, body, .. } => uses(init) || uses(body),
        Kind::Append { element, .. } => uses(element),
        Kind::Insert { key, value, .. } => uses(key) || uses(value),
        Kind::InsertAll { entries, .. } => uses(entries),
        Kind::Comprehension(comprehension) => [
            &comprehension.range,
            &comprehension.init,
            &comprehension.condition,
            &comprehension.step,
            &comprehension.result,
        ]
        .into_iter()
        .any(uses),
    }
}
