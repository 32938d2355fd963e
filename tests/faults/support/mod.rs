//! A server to mistreat, and a client that does.

mod answer;
mod certificates;
mod client;
pub mod objects;
mod server;

pub use answer::Answer;
pub use certificates::{Authority, Identity};
pub use client::{Client, Wire};
pub use server::{Server, data_dir, mainstay};
