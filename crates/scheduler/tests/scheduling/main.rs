//! The real API and the real scheduler within the test's process, with nodes that only offer.

mod cluster;
mod devices;
mod faults;
mod least_rights;
mod pods;
