//! Expressions of admission policies and match conditions: they are compiled as they will be where they run.

use mainstay_cel::{Environment, Program, Type, policy_environment, webhook_environment};

use crate::field::{Errors, FieldError, Path};

/// The expressions of one policy, in the order in which its variables become known.
pub struct PolicyExpressions {
    environment: Environment,
}

impl PolicyExpressions {
    pub fn new(has_params: bool) -> Self {
        Self { environment: policy_environment(has_params) }
    }

    pub fn for_webhook() -> Self {
        Self { environment: webhook_environment() }
    }

    /// Checks a variable and makes it known to the expressions after it.
    pub fn add_variable(&mut self, name: &str, expression: &str, path: &Path, errors: &mut Errors) {
        let ty = self.compile(expression, path, errors).map_or(Type::Dyn, |program| program.result_type().clone());
        self.environment = std::mem::take(&mut self.environment).variable(&format!("variables.{name}"), ty);
    }

    pub fn check_bool(&self, expression: &str, path: &Path, errors: &mut Errors) {
        self.check(expression, path, &[Type::Bool], "must evaluate to bool", errors);
    }

    pub fn check_string(&self, expression: &str, path: &Path, errors: &mut Errors) {
        self.check(expression, path, &[Type::STRING], "must evaluate to string", errors);
    }

    /// A value of an audit annotation; null leaves it out.
    pub fn check_annotation(&self, expression: &str, path: &Path, errors: &mut Errors) {
        let words = "must evaluate to one of: [string null_type]";
        self.check(expression, path, &[Type::STRING, Type::Null], words, errors);
    }

    /// A mutation that builds a configuration.
    pub fn check_configuration(&self, expression: &str, path: &Path, errors: &mut Errors) {
        self.building().check(expression, path, &[Type::named("Object")], "must evaluate to Object", errors);
    }

    /// A mutation that builds a list of operations.
    pub fn check_json_patch(&self, expression: &str, path: &Path, errors: &mut Errors) {
        let operations = Type::list(Type::named("JSONPatch"));
        self.building().check(expression, path, &[operations], "must evaluate to list(JSONPatch)", errors);
    }

    fn building(&self) -> Self {
        Self { environment: self.environment.clone().with_objects() }
    }

    fn check(&self, expression: &str, path: &Path, types: &[Type], words: &str, errors: &mut Errors) {
        let Some(program) = self.compile(expression, path, errors) else { return };
        if !types.iter().any(|ty| ty.accepts(program.result_type())) {
            errors.push(FieldError::invalid(path, expression, words));
        }
    }

    /// Missing expressions are reported where the field is.
    fn compile(&self, expression: &str, path: &Path, errors: &mut Errors) -> Option<Program> {
        if expression.trim().is_empty() {
            return None;
        }
        match Program::compile(&self.environment, expression) {
            Ok(program) => Some(program),
            Err(error) => {
                errors.push(FieldError::invalid(path, expression, format!("compilation failed: {error}")));
                None
            }
        }
    }
}
