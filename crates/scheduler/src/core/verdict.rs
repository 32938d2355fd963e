//! What was decided.

use std::sync::Arc;

use super::{
    reason::Unplaced,
    view::{GivenPort, PodKey, PodView},
};

/// A pod that wants a machine.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub pod: Arc<PodView>,
    /// Machines that refused it a moment ago.
    pub refused: Vec<String>,
}

impl Wanted {
    pub fn new(pod: Arc<PodView>) -> Self {
        Self { pod, refused: vec![] }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is to run there, with these host ports for the container ports that wanted any.
    Place {
        machine: Arc<str>,
        ports: Vec<GivenPort>,
    },
    /// Room is to be made for it there. Without victims there is only waiting to be done: enough pods are leaving.
    Preempt {
        machine: Arc<str>,
        victims: Vec<Victim>,
        why: Arc<Unplaced>,
    },
    Unplaced(Arc<Unplaced>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    pub key: PodKey,
    pub uid: String,
    /// Its going breaks a disruption budget; there was no choice without.
    pub breaks_budget: bool,
}

/// Which machine is best among those that fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// The emptiest.
    #[default]
    Spread,
    /// The fullest.
    Binpack,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub strategy: Strategy,
}
