//! The values of an environment's variables for one evaluation or several.

use std::{cell::RefCell, collections::HashMap};

use serde_json::Value as Json;

use crate::{convert::from_json, error::EvalError, evaluate::Context, program::Program, types::Type, value::Value};

enum Binding<'a> {
    Json(&'a Json),
    Value(Value<'a>),
    /// Evaluated when it is first used, then remembered.
    Lazy(&'a Program),
}

/// Variables by name. JSON is borrowed and converted, by the type that the environment declares, where it is looked at.
#[derive(Default)]
pub struct Variables<'a> {
    bindings: HashMap<Box<str>, Binding<'a>>,
    evaluated: RefCell<HashMap<Box<str>, Result<Value<'a>, EvalError>>>,
}

impl<'a> Variables<'a> {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn json(mut self, name: &str, json: &'a Json) -> Self {
        self.bindings.insert(name.into(), Binding::Json(json));
        self
    }

    pub fn value(mut self, name: &str, value: Value<'a>) -> Self {
        self.bindings.insert(name.into(), Binding::Value(value));
        self
    }

    /// A variable that is itself an expression over these variables: `variables.replicas`.
    pub fn lazy(mut self, name: &str, program: &'a Program) -> Self {
        self.bindings.insert(name.into(), Binding::Lazy(program));
        self
    }

    pub(crate) fn get(&self, context: &mut Context<'_, 'a>, name: &str, ty: &'a Type) -> Result<Value<'a>, EvalError> {
        match self.bindings.get(name) {
            Some(Binding::Json(json)) => from_json(json, ty),
            Some(Binding::Value(value)) => Ok(value.clone()),
            Some(Binding::Lazy(program)) => {
                if let Some(known) = self.evaluated.borrow().get(name) {
                    return known.clone();
                }
                let result = context.evaluate_nested(program);
                // What was cut off may succeed with the next budget, or with the answer it lacked.
                if !result.as_ref().is_err_and(EvalError::is_fatal) {
                    self.evaluated.borrow_mut().insert(name.into(), result.clone());
                }
                result
            }
            None => Err(EvalError::message(format!("no such attribute: {name}"))),
        }
    }
}
