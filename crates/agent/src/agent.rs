//! All parts of an agent, built and run together.
