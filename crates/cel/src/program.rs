//! A compiled expression.

use std::sync::Arc;

use crate::{
    budget::Budget,
    compile,
    environment::Environment,
    error::{CompileError, EvalError},
    estimate::{self, CostEstimate},
    evaluate::Context,
    expr::Expr,
    types::Type,
    value::Value,
    variables::Variables,
};

#[derive(Debug)]
pub struct Program {
    pub(crate) root: Expr,
    /// How many variables its macros have.
    pub(crate) slots: usize,
    /// How deep its tree is.
    pub(crate) depth: usize,
    source: Arc<str>,
}

impl Program {
    /// Parses and checks an expression over the variables of an environment.
    pub fn compile(environment: &Environment, source: &str) -> Result<Self, CompileError> {
        let compiled = compile::compile(environment, source)?;
        Ok(Self { root: compiled.root, slots: compiled.slots, depth: compiled.depth, source: source.into() })
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    /// The type that the checker found; `dyn` where only an evaluation can tell.
    pub fn result_type(&self) -> &Type {
        &self.root.ty
    }

    /// Whether the expression uses a variable of the environment.
    pub fn uses_variable(&self, name: &str) -> bool {
        compile::uses_variable(&self.root, name)
    }

    /// What an evaluation can cost at most, by the sizes that the schema allows.
    pub fn estimate_cost(&self) -> CostEstimate {
        estimate::estimate(self)
    }

    /// Evaluates; the cost is taken from the budget whether or not there is a value.
    pub fn evaluate<'a>(&'a self, variables: &Variables<'a>, budget: &mut Budget) -> Result<Value<'a>, EvalError> {
        let mut context = Context::new(budget.start_call(), variables, self);
        let result = context.evaluate(&self.root);
        budget.end_call(&context.meter);
        result
    }
}
