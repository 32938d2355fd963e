//! Hammertime: stops the controllers of a Kluster while none of its machines is heard of.
//!
//! When all machines fall silent at once, it is the way to them that is broken, and not the machines. Controllers that evict pods and delete Nodes then
//! would do harm; they go on as soon as one machine is heard again.

pub mod controller;
pub mod plan;

pub use controller::controller;
