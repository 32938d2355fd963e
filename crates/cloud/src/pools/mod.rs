//! Pools: the machines of Klusters.
//!
//! * [`members`]: which servers belong to a pool, and what they do; [`plan`]: which are created and deleted
//! * [`terminate`]: how all of them go when the Kluster does
//! * [`new_server`]: what Nova is asked for; [`user_data`], [`bootstrap_token`]: how a machine joins; [`server_driver`]: how the ledger sees it
//! * [`problems`]: why a pool cannot have machines; [`conditions`]: where that is written
//! * [`controller`]: reconciles the pools of a Kluster; [`launcher`]: its calls; [`observatory`]: Nodes of Klusters; [`metrics`]

pub mod bootstrap_token;
pub mod conditions;
pub mod controller;
pub mod launcher;
pub mod members;
pub mod metrics;
pub mod new_server;
pub mod observatory;
pub mod plan;
pub mod problems;
pub mod server_driver;
pub mod terminate;
pub mod user_data;

pub use controller::controller;
