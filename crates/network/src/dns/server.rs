//! From a query packet to its response.
//!
//! Most queries are answered at once from memory, and the caller goes on with the next packet. The rest are forwarded
//! upstream, each by itself.

use std::sync::Arc;

use super::{
    forward::{Forwarder, Question},
    name::Name,
    query::{Query, parse_query},
    response::{Age, Record, Response, Transport, write_response},
    zones::{Resolution, ShuffleRng, Zones},
};
use crate::catalogue::Catalogue;

pub struct Server {
    pub zones: Zones,
    pub catalogue: Arc<Catalogue>,
    pub forwarder: Arc<Forwarder>,
}

/// What happens to a packet.
pub enum Reply {
    /// The packet gets no response.
    Ignore,
    Written,
    /// An upstream server has to be asked.
    Forward(Box<PendingQuery>),
}

/// A query that has to be forwarded.
pub struct PendingQuery {
    query: Query,
    cnames: Vec<Record>,
    question: Question,
}

impl PendingQuery {
    fn new(query: Query, cnames: Vec<Record>, name: Name) -> Self {
        let dnssec = query.edns.is_some_and(|edns| edns.dnssec);
        let question =
            Question { name, record_type: query.record_type, dnssec, checking_disabled: query.checking_disabled };
        Self { query, cnames, question }
    }

    fn write(self, answer: &Response, age: Age, transport: Transport, out: &mut Vec<u8>) {
        if self.cnames.is_empty() {
            return write_response(&self.query, answer, age, transport, out);
        }
        let aged = |record: &Record| Record { ttl: age.remaining(record.ttl), ..record.clone() };
        let mut answers = self.cnames;
        answers.extend(answer.answers.iter().map(aged));
        let authority = answer.authority.iter().map(aged).collect();
        let whole = Response { answers, authority, ..Response::with_rcode(answer.rcode) };
        write_response(&self.query, &whole, Age::NEW, transport, out);
    }
}

impl Server {
    /// Appends the response to `out` if there is one now.
    pub fn reply(&self, packet: &[u8], transport: Transport, rng: &mut ShuffleRng, out: &mut Vec<u8>) -> Reply {
        let query = match parse_query(packet) {
            None => return Reply::Ignore,
            Some(Ok(query)) => query,
            Some(Err((query, code))) => {
                write_response(&query, &Response::with_rcode(code), Age::NEW, transport, out);
                return Reply::Written;
            }
        };
        let resolution = self.zones.resolve(&self.catalogue.read(), &query, rng);
        match resolution {
            Resolution::Local(answer) => {
                write_response(&query, &answer, Age::NEW, transport, out);
                Reply::Written
            }
            Resolution::Forward { cnames, name } => {
                let pending = PendingQuery::new(query, cnames, name);
                match self.forwarder.cached(&pending.question) {
                    Some((answer, age)) => {
                        pending.write(&answer, age, transport, out);
                        Reply::Written
                    }
                    None => Reply::Forward(Box::new(pending)),
                }
            }
        }
    }

    pub async fn finish(&self, pending: Box<PendingQuery>, transport: Transport) -> Vec<u8> {
        let (answer, age) = self.forwarder.resolve(pending.question.clone()).await;
        let mut out = Vec::new();
        pending.write(&answer, age, transport, &mut out);
        out
    }
}
