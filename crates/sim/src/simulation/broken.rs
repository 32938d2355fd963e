//! Safeguards that can be taken away, to see that the simulator notices.

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, Default)]
pub struct Broken {
    /// Unique pods run on without contact.
    pub fencing: bool,
    /// Pods stop before others have ceased to send to them.
    pub drain: bool,
    /// Drains delete pods instead of asking for their eviction.
    pub budget: bool,
    /// Writes of a leader that was frozen are not refused.
    pub lease_term: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Safeguard {
    Fencing,
    Drain,
    Budget,
    LeaseTerm,
}

impl Broken {
    pub fn without(safeguard: Option<Safeguard>) -> Self {
        let is = |other| safeguard == Some(other);
        Self {
            fencing: is(Safeguard::Fencing),
            drain: is(Safeguard::Drain),
            budget: is(Safeguard::Budget),
            lease_term: is(Safeguard::LeaseTerm),
        }
    }
}
