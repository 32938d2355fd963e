//! How fast pods get machines.

fn main() {}
