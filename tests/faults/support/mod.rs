//! A server to mistreat, and a client that does.

mod certificates;
mod client;
pub mod objects;
mod response;
mod server;

pub use certificates::{Authority, Identity};
pub use client::{Client, Wire};
pub use response::HttpResponse;
pub use server::{Server, data_dir, mainstay};
