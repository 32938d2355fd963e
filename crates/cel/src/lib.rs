//! Kubernetes' Common Expression Language.
//!
//! [`Program::compile`] parses an expression with the grammar of the `cel` crate, resolves its names, expands macros and
//! checks types against an [`Environment`]; [`Program::evaluate`] runs it over [`Variables`] that borrow from JSON.
//!
//! Expressions come from users of the API. Whatever an expression is, compiling takes time linear in its bounded length
//! and nesting, and evaluating it ends within its [`Budget`]: every step, comparison and copy is charged to it in
//! upstream's units of cost. The evaluator is our own because that of the `cel` crate meters nothing and knows no types.

mod admission;
mod budget;
mod compile;
mod convert;
mod device;
mod environment;
mod error;
mod escape;
mod estimate;
mod evaluate;
mod expr;
mod library;
pub mod limits;
mod program;
mod schema;
#[cfg(test)]
mod tests;
mod types;
mod value;
mod variables;

pub use admission::{policy_environment, webhook_environment};
pub use budget::{Budget, PER_CALL_LIMIT, RUNTIME_BUDGET};
pub use device::{DeviceAttribute, DeviceFacts, device_environment};
pub use environment::Environment;
pub use error::{CompileError, EvalError, Issue};
pub use escape::escape_property;
pub use estimate::{CostEstimate, DEFINITION_COST_LIMIT, RULE_COST_LIMIT};
pub use library::authorizer::{
    AUTHORIZER, AuthorizationCheck, AuthorizationDecision, Authorizer, AuthorizerValue, RESOURCE_CHECK,
};
pub use program::Program;
pub use schema::type_from_schema;
pub use types::{Field, ListKind, ListType, MapType, ObjectType, Type};
pub use value::{Key, List, Map, Str, Struct, Value};
pub use variables::Variables;
