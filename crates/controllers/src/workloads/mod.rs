//! What runs, how many of it, and for how long.

pub mod pod;
