//! Small clusters of hollow nodes within the test's process: a real store in a directory, the real server,
//! scheduler and controllers.

mod cluster;
mod killed_store;
mod nodes;
mod server_killed;
mod service_tables;
mod simulator;
