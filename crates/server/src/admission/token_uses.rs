//! TokenUses: how many machines may still join with a bootstrap token that is for some alone.
//!
//! The number is an annotation of the token's Secret ([`USES_LEFT`]). Each CertificateSigningRequest that somebody creates with the token takes one, in
//! the transaction that creates the request: so no more machines join than there were uses, however many try at once.

use async_trait::async_trait;
use mainstay_api::{descriptor::Descriptor, wellknown::mainstay::USES_LEFT};
use mainstay_store::{Compare, Expect, Op};
use serde_json::{Value, json};

use super::{Plugin, Request, TxnAdditions};
use crate::{
    auth::bootstrap_token::{self, NAMESPACE},
    http::status::{ApiError, ApiResult},
    objects::{keys, object},
};

pub struct TokenUses;

#[async_trait]
impl Plugin for TokenUses {
    fn name(&self) -> &'static str {
        "TokenUses"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.kind == "CertificateSigningRequest"
    }

    async fn create(&self, request: &Request<'_>, _object: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
        let Request { api, user, target, .. } = *request;
        let Some(id) = bootstrap_token::id_of(&user.name) else { return Ok(()) };
        let Some(d) = api.registry.find("", "v1", "secrets") else { return Ok(()) };
        let key = keys::key(d, Some(NAMESPACE), &format!("{}{id}", bootstrap_token::PREFIX));
        let Some(entry) = api.store.get(&key).await?.0 else { return Ok(()) };
        let mut secret = object::parse(d, &entry)?;
        let Some(left) = secret["metadata"]["annotations"].get(USES_LEFT) else { return Ok(()) };
        let left = take_use(left)
            .map_err(|why| ApiError::forbidden(&target.d, &target.name, &format!("bootstrap token {id:?} {why}")))?;
        secret["metadata"]["annotations"][USES_LEFT] = json!(left.to_string());
        txn.compares.push(Compare { key: entry.key.clone(), expect: Expect::ModifiedAt(entry.modified) });
        txn.ops.push(Op::Put { key: entry.key.clone(), value: object::to_stored(d, &secret)?.json().clone() });
        Ok(())
    }
}

/// What is left after one more use.
fn take_use(left: &Value) -> Result<u32, String> {
    match left.as_str().map(str::parse::<u32>) {
        Some(Ok(0)) => Err("is used up: make another one with `mainstay token create`".to_owned()),
        Some(Ok(left)) => Ok(left - 1),
        Some(Err(_)) | None => Err(format!("has the annotation {USES_LEFT}, which is not a number: {left}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_use_takes_one_until_there_is_none() {
        assert_eq!(take_use(&json!("2")), Ok(1));
        assert_eq!(take_use(&json!("1")), Ok(0));
        assert!(take_use(&json!("0")).unwrap_err().starts_with("is used up"));
        for wrong in [json!("-1"), json!("many"), json!(3)] {
            assert!(take_use(&wrong).unwrap_err().contains("is not a number"), "{wrong}");
        }
    }
}
