//! mainstay.dev: ConfigTemplate, and Offer and ServiceTable, in which nodes state what they can take and where their packet rules are.

mod kinds;
pub mod rules;
pub mod table;

pub use kinds::kinds;
