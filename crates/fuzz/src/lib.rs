//! Fuzz targets: one for every parser that reads bytes of strangers.
//!
//! * [`targets`]: what is fed with bytes, and what must hold whatever they are
//! * [`mutate`]: makes new inputs of known ones, by a seed
//! * [`session`]: runs a target over its corpus and mutations of it, within bounds of time and memory
//!
//! Two ways lead in. `cargo nextest run` replays the corpora and a fixed number of mutations, the same every time: what was found once
//! stays found. `tools/fuzz` builds the same targets with coverage counters and lets libFuzzer look for new inputs.
//!
//! A target returns nothing: it panics if a property does not hold. [`session`] adds what is asked of all of them: no input takes more
//! stack than a worker of the server has, more memory than [`session::MAX_MEMORY`] or more time than [`session::MAX_CPU_TIME`].

pub mod mutate;
pub mod session;
pub mod targets;

pub use targets::{TARGETS, Target};
