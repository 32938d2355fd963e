//! API Priority and Fairness: which requests go first when there is more to do than the server does at once.
//!
//! * [`config`]: the stored objects, parsed; [`classify`]: the flow of a request
//! * [`seats`]: seats, queues and shuffle sharding; a pure state
//! * [`work_estimate`]: how many seats a request takes
//! * [`controller`]: lets requests in, makes them wait, or refuses them with 429; [`metrics`]: what it counts
//! * [`conditions`]: says of each FlowSchema whether its priority level is there
//!
//! All requests but watches and other streams share `--max-reads` + `--max-writes` seats. As upstream, each priority level has its nominal part of
//! them, lends what its configuration allows, and queues what exceeds its part in queues that flows are dealt to by a hash, so that few other
//! flows meet the one that floods. What differs: borrowing is decided request by request, where upstream moves limits every ten seconds;
//! the queue to serve next is the one that was served least (start-time fair queueing over seats, where upstream also weighs time); and one
//! flow never has more than a quarter of all seats, because here a seat is held until the client has taken its answer, nor waits for more than
//! four times as many, so that who floods is told so soon.

mod classify;
pub mod conditions;
mod config;
mod controller;
mod metrics;
mod seats;
mod work_estimate;

pub use classify::RequestDigest;
pub use controller::{FlowControl, FlowSeat, RequestFlow};
pub use work_estimate::{ListSize, ListSizes};

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
