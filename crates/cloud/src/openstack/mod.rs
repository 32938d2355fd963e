//! A client of OpenStack's APIs: sessions, deadlines, retries, and typed calls.
//!
//! * [`clouds_yaml`]: the configuration of clouds, from `clouds.yaml` or a Secret; [`secret_text`]: passwords and tokens, which are never shown
//! * [`session`]: one login to one cloud: tokens, the catalog of endpoints ([`catalog`]) and how a call is made
//! * [`retry`]: which failures are worth another attempt, and when; [`error`]: calls that failed; [`recorder`]: who counts calls
//! * [`compute`], [`network`], [`block_storage`], [`image`], [`identity`], [`load_balancer`]: the calls, by service
//!
//! Guarantees: every call ends by its deadline. A call is repeated only where that is harmless: reads, deletes (404 is success) and
//! writes of a whole; a create is repeated only if it certainly did not reach the service, and what became of one without an answer is
//! [unknown](error::CloudError::is_outcome_unknown), never assumed. Bodies are bounded. Passwords and tokens appear in no log and no `Debug`.
//!
//! `openstack_sdk` was refused: a second library of cryptography, a browser launcher and dialogues come with it, and it does not know which
//! repeats are harmless.

pub mod block_storage;
pub mod catalog;
pub mod clouds_yaml;
pub mod compute;
pub mod error;
pub mod identity;
pub mod image;
pub mod load_balancer;
pub mod network;
pub mod recorder;
pub mod retry;
pub mod secret_text;
pub mod session;

pub use catalog::Service;
pub use clouds_yaml::{CloudConfig, CloudsFile, ConfigError};
pub use error::CloudError;
pub use recorder::{CallCounter, CallRecord, CallRecorder};
pub use secret_text::SecretText;
pub use session::Session;
