//! How a machine becomes a member: a token once, then a certificate of its own.
