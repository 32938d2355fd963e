//! CertificateLimit: how many CertificateSigningRequests one user may have at a time, and how large they may be.
//!
//! Whoever has a bootstrap token may create them, and the store keeps each until the signer forgets it: an hour after
//! an answer, a day without one, sooner when a requester has many. Administrators are not limited. The count is taken
//! from the store and not reserved, so that requests that come at the same moment may exceed it by their number.

use async_trait::async_trait;
use mainstay_api::descriptor::Descriptor;
use mainstay_store::List;
use serde_json::Value;

use super::{Plugin, Request, TxnAdditions};
use crate::{
    api::Api,
    auth::User,
    http::status::{ApiError, ApiResult},
    objects::{json_prune, keys},
};

/// Requests of one node: two certificates, each renewed once in months.
const MAX_OF_NODE: usize = 200;
/// Requests of one bootstrap token: as many machines as may join with it within two minutes.
const MAX_OF_OTHERS: usize = 1000;
/// The largest request, as JSON. One for an RSA key of 8192 bits takes 5 KiB.
const MAX_BYTES: usize = 32 << 10;

pub struct CertificateLimit;

#[async_trait]
impl Plugin for CertificateLimit {
    fn name(&self) -> &'static str {
        "CertificateLimit"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.kind == "CertificateSigningRequest"
    }

    async fn create(&self, request: &Request<'_>, object: &mut Value, _txn: &mut TxnAdditions) -> ApiResult<()> {
        check(request.api, request.user, &request.target.d, object).await
    }
}

/// Refuses a new request that is too large, or one too many of this user's.
async fn check(api: &Api, user: &User, d: &Descriptor, object: &Value) -> ApiResult<()> {
    if user.is_master() {
        return Ok(());
    }
    if object.to_string().len() > MAX_BYTES {
        return Err(ApiError::too_large(format!("a certificate signing request may have {MAX_BYTES} bytes")));
    }
    let most = if user.node_name().is_some() { MAX_OF_NODE } else { MAX_OF_OTHERS };
    let all = api.store.list(List { prefix: &keys::prefix(d, None), ..List::default() }).await?.entries;
    if all.len() < most {
        return Ok(());
    }
    let is_theirs = |json: &[u8]| json_prune::pruned(json, &[&["spec", "username"]])["spec"]["username"] == *user.name;
    if all.iter().filter(|entry| is_theirs(&entry.value)).count() < most {
        return Ok(());
    }
    Err(ApiError::too_many_certificate_requests(&user.name, most))
}
