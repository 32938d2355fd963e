//! Small clusters of hollow machines within the test's process: a real store in a directory, the real server,
//! scheduler and controllers.

mod cluster;
mod cut;
mod killed;
mod machines;
mod tables;
