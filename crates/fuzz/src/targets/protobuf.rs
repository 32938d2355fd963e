//! Protobuf: request bodies of Go clients, and objects as upstream's server stored them.

use mainstay_api::protobuf;
use mainstay_server::storage;

pub fn body(input: &[u8]) {
    let _ = protobuf::decode(input);
    let framed = [protobuf::MAGIC, input].concat();
    let _ = protobuf::decode(&framed);
}

/// What cannot be read has a reason.
pub fn stored(input: &[u8]) {
    let decoded = protobuf::decode_stored(input);
    let reason = storage::unreadable_reason(input);
    if input.starts_with(protobuf::MAGIC) {
        assert_eq!(decoded.is_err(), reason.is_some(), "{reason:?}");
    }
}
