//! What bytes lie in the store: encryption at rest, and objects that upstream's API server stored.
//!
//! [`EncodedStore`] sits between the API and a store. Above it all values are as the API writes them (objects as JSON);
//! below it the values of encrypted resources are sealed in upstream's envelope. On the way up, envelopes are opened and
//! upstream's protobuf storage form becomes JSON, once per stored version. Values that are neither pass as they are: one
//! comparison of their first bytes, no copy.
//!
//! * [`encryption_config`]: upstream's `EncryptionConfiguration` file
//! * [`provider`]: the envelopes `secretbox` and `aesgcm`; [`kms`]: that of KMS v2 plugins
//! * [`keyring`]: which key seals which resource
//! * [`codec`]: one value to and from its stored form
//! * [`upstream_object`]: protobuf and older API versions that upstream stores
//! * [`encoded_store`]: the store that applies all of this
//! * [`format`]: which format the keys and values have, for servers of other versions on the same store
//! * [`encryption`]: the key file of a running server, re-encryption, rotation
//!
//! A value that cannot be opened or decoded stays as it is; whoever needs the object fails with an error that names the key
//! in the store and, from [`unreadable_reason`], why.

mod codec;
mod encoded_store;
pub mod encryption;
pub mod encryption_config;
pub mod format;
mod keyring;
mod kms;
mod provider;
mod upstream_object;

pub use codec::unreadable_reason;
pub use encoded_store::{EncodedStore, Writers};
