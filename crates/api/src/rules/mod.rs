//! Defaulting and validation of the kinds people write by hand.
