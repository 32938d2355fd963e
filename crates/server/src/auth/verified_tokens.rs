//! Tokens whose signature was verified before: verifying one again costs more than most requests.
//!
//! Only what never changes is remembered: that our key signed these claims, and whom they name. Whether they still hold (expiry, the account, the pod) is
//! asked for every request. A token is known by its SHA-256, so that none lies in memory because of this.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use ring::digest::{SHA256, digest};

use super::{
    User,
    jws::{JwsError, Key},
    secret_token::SecretClaims,
    service_account::{Claims, TokenClaims},
};

/// More tokens than this in use at once are verified again now and then.
const CAPACITY: usize = 20_000;

/// What a token says whose signature is ours.
#[derive(Debug, PartialEq, Eq)]
pub enum VerifiedToken {
    Bound { claims: Box<Claims>, user: Arc<User> },
    Secret(SecretClaims),
}

impl VerifiedToken {
    fn verify(key: &Key, token: &str) -> Result<Arc<Self>, JwsError> {
        Ok(Arc::new(match key.verify::<TokenClaims>(token)? {
            TokenClaims::Bound(claims) => Self::Bound { user: Arc::new(claims.user()), claims },
            TokenClaims::Secret(claims) => Self::Secret(claims),
        }))
    }
}

#[derive(Default)]
pub struct VerifiedTokens(Mutex<HashMap<[u8; 32], Arc<VerifiedToken>>>);

impl VerifiedTokens {
    /// The claims of a token that `key` signed.
    pub fn verify(&self, key: &Key, token: &str) -> Result<Arc<VerifiedToken>, JwsError> {
        let Ok(fingerprint) = <[u8; 32]>::try_from(digest(&SHA256, token.as_bytes()).as_ref()) else {
            return VerifiedToken::verify(key, token);
        };
        if let Some(known) = self.0.lock().get(&fingerprint) {
            return Ok(known.clone());
        }
        let token = VerifiedToken::verify(key, token)?;
        let mut verified = self.0.lock();
        if verified.len() >= CAPACITY {
            verified.clear();
        }
        verified.insert(fingerprint, token.clone());
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::{
        super::service_account::{BoundClaims, Reference},
        *,
    };

    fn claims() -> Claims {
        let serviceaccount = Reference { name: "bot".into(), uid: "u".into() };
        let bound = BoundClaims {
            namespace: "shop".into(),
            node: None,
            pod: None,
            secret: None,
            serviceaccount,
            warnafter: None,
        };
        Claims::new("https://issuer", Vec::new(), bound, Timestamp::UNIX_EPOCH, 600)
    }

    #[test]
    fn a_token_is_remembered_and_one_that_differs_in_a_letter_is_not_believed() {
        let key = Key::parse(&Key::generate().unwrap()).unwrap();
        let (verified, claims) = (VerifiedTokens::default(), claims());
        let token = key.sign(&claims).unwrap();
        let first = verified.verify(&key, &token).unwrap();
        let user = Arc::new(User { uid: "u".into(), ..claims.user() });
        assert_eq!(*first, VerifiedToken::Bound { claims: Box::new(claims), user });
        assert!(Arc::ptr_eq(&first, &verified.verify(&key, &token).unwrap()));
        let last = if token.ends_with('A') { 'B' } else { 'A' };
        let mut forged = token.clone();
        forged.replace_range(10..11, if &token[10..11] == "A" { "B" } else { "A" });
        assert!(verified.verify(&key, &forged).is_err());
        assert!(verified.verify(&key, &format!("{token}{last}")).is_err());
        assert_eq!(verified.0.lock().len(), 1);
    }
}
