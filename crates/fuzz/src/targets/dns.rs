//! DNS: queries of pods, and what upstream servers answer.

use mainstay_network::fuzzing;

/// Every reply can be parsed, repeats the query's id, and fits the transport.
pub fn query(input: &[u8]) {
    fuzzing::reply_to_query(input);
}

/// Whatever an upstream server answers, what is passed on is a well-formed response.
pub fn upstream_answer(input: &[u8]) {
    fuzzing::take_upstream_answer(input);
}
