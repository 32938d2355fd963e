//! From a packet to the packet that answers it.
//!
//! Most questions are answered on the spot, from memory, and whoever received them goes on with the next. The rest
//! wait for others, each by itself.

use std::sync::Arc;

use super::{
    answer::{self, Age, Answer, Record, Transport},
    name::Name,
    query::{self, Code, Query},
    zones::{Chance, Outcome, Zones},
};
use crate::catalogue::Catalogue;

pub struct Server {
    pub zones: Zones,
    pub catalogue: Arc<Catalogue>,
}

/// What becomes of a packet.
pub enum Reply {
    /// It gets none.
    None,
    /// It was written.
    Written,
    Later(Waiting),
}

/// A question that others have to be asked about.
pub struct Waiting {
    query: Query,
    so_far: Vec<Record>,
    name: Name,
}

impl Server {
    /// Writes the reply behind what is in `out`, if there is one now.
    pub fn reply(&self, packet: &[u8], transport: Transport, chance: &mut Chance, out: &mut Vec<u8>) -> Reply {
        let query = match query::read(packet) {
            None => return Reply::None,
            Some(Ok(query)) => query,
            Some(Err((query, code))) => {
                answer::write(&query, &Answer::only(code), Age::NEW, transport, out);
                return Reply::Written;
            }
        };
        let outcome = self.zones.answer(&self.catalogue.read(), &query, chance);
        match outcome {
            Outcome::Answer(answer) => {
                answer::write(&query, &answer, Age::NEW, transport, out);
                Reply::Written
            }
            Outcome::Elsewhere { so_far, name } => Reply::Later(Waiting { query, so_far, name }),
        }
    }

    pub async fn finish(&self, waiting: Waiting, transport: Transport) -> Vec<u8> {
        let Waiting { query, so_far, name: _ } = waiting;
        let mut out = Vec::new();
        let answer = Answer { answers: so_far, ..Answer::only(Code::Failed) };
        answer::write(&query, &answer, Age::NEW, transport, &mut out);
        out
    }
}
