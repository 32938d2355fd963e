//! DNS as clients see it: `dig` and raw packets against a server on the loopback interface, and resolvers that
//! misbehave.

mod hostile;
mod others;
mod ours;
mod support;
mod upstream;
