//! Admission policies: CEL expressions of users that judge writes in this process.
//!
//! A policy is compiled once for each change of it ([`PolicyCache`]) and evaluated ([`evaluate`]) for every binding and
//! every parameter of the binding. Rules are matched first: a write that no policy names costs a look at each policy's
//! rules, and nothing where there are none.

mod authorization;
mod cache;
mod compiled;
mod evaluate;
mod match_conditions;
mod mutation;
mod params;
mod request;
mod write;

pub use authorization::DecisionCache;
pub use cache::PolicyCache;
pub use compiled::{CompiledPolicy, Mutation};
pub use evaluate::{Evaluation, PolicyInputs, evaluate_policy};
pub use match_conditions::{MatchConditions, MatchConditionsCache};
pub use mutation::{evaluate_mutation, matches};
pub use params::{FoundParams, find_params};
pub use request::describe_request;
pub use write::{Write, convert};

/// What a variable without an object is.
static NULL: serde_json::Value = serde_json::Value::Null;
