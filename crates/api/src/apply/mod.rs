//! Server-side apply: which manager owns which field, and what an apply makes of an object.
//!
//! * [`typed`]: what is asked of schemas: [`typed::TypeRef`]; [`builtin`]: the built-in kinds' answers

pub mod builtin;
pub mod typed;
