//! From a packet to the packet that answers it.
//!
//! Most questions are answered on the spot, from memory, and whoever received them goes on with the next. The rest
//! wait for others, each by itself.

use std::sync::Arc;

use super::{
    answer::{self, Age, Answer, Record, Transport},
    forward::{Forwarder, Question},
    name::Name,
    query::{self, Query},
    zones::{Chance, Outcome, Zones},
};
use crate::catalogue::Catalogue;

pub struct Server {
    pub zones: Zones,
    pub catalogue: Arc<Catalogue>,
    pub forwarder: Arc<Forwarder>,
}

/// What becomes of a packet.
pub enum Reply {
    /// It gets none.
    None,
    /// It was written.
    Written,
    Later(Box<Waiting>),
}

/// A question that others have to be asked about.
pub struct Waiting {
    query: Query,
    so_far: Vec<Record>,
    question: Question,
}

impl Waiting {
    fn new(query: Query, so_far: Vec<Record>, name: Name) -> Self {
        let dnssec = query.edns.is_some_and(|edns| edns.dnssec);
        let question = Question { name, kind: query.kind, dnssec, checking_disabled: query.checking_disabled };
        Self { query, so_far, question }
    }

    fn write(self, answer: &Answer, age: Age, transport: Transport, out: &mut Vec<u8>) {
        if self.so_far.is_empty() {
            return answer::write(&self.query, answer, age, transport, out);
        }
        let aged = |record: &Record| Record { ttl: age.of(record.ttl), ..record.clone() };
        let mut answers = self.so_far;
        answers.extend(answer.answers.iter().map(aged));
        let authorities = answer.authorities.iter().map(aged).collect();
        let whole = Answer { answers, authorities, ..Answer::only(answer.code) };
        answer::write(&self.query, &whole, Age::NEW, transport, out);
    }
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
            Outcome::Elsewhere { so_far, name } => {
                let waiting = Waiting::new(query, so_far, name);
                match self.forwarder.known(&waiting.question) {
                    Some((answer, age)) => {
                        waiting.write(&answer, age, transport, out);
                        Reply::Written
                    }
                    None => Reply::Later(Box::new(waiting)),
                }
            }
        }
    }

    pub async fn finish(&self, waiting: Box<Waiting>, transport: Transport) -> Vec<u8> {
        let (answer, age) = self.forwarder.resolve(waiting.question.clone()).await;
        let mut out = Vec::new();
        waiting.write(&answer, age, transport, &mut out);
        out
    }
}
