//! LeaderTerms: the term of each election Lease, a key of its own whose revision fences the leader's writes.
//!
//! The key is written in the transaction that changes the Lease's holder, its acquisition time or its count of transitions, and
//! deleted with the Lease. A renewal leaves it alone. So its revision is the version that the Lease got when it was
//! acquired, and stays the same for exactly as long as that acquisition counts; see [`fence`](crate::fence).

use async_trait::async_trait;
use mainstay_api::{descriptor::Descriptor, wellknown::namespace::SYSTEM};
use mainstay_store::Op;
use serde_json::Value;

use super::{Plugin, Request, TxnAdditions};
use crate::{
    http::status::ApiResult,
    objects::{keys, metadata},
};

/// Election Leases are those of `kube-system` whose names begin with this.
const PREFIX: &str = "mainstay-";

pub struct LeaderTerms;

#[async_trait]
impl Plugin for LeaderTerms {
    fn name(&self) -> &'static str {
        "LeaderTerms"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.kind == "Lease" && d.group == "coordination.k8s.io"
    }

    async fn create(&self, _: &Request<'_>, object: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
        txn.ops.extend(begin_term(object));
        Ok(())
    }

    async fn update(&self, _: &Request<'_>, object: &mut Value, old: &Value, txn: &mut TxnAdditions) -> ApiResult<()> {
        if term_fields(object) != term_fields(old) {
            txn.ops.extend(begin_term(object));
        }
        Ok(())
    }

    fn release(&self, old: &Value) -> Vec<Op> {
        term_key(old).map(|key| Op::Delete { key }).into_iter().collect()
    }
}

/// What stays the same for a term, and is new with the next.
fn term_fields(lease: &Value) -> [&Value; 3] {
    ["holderIdentity", "acquireTime", "leaseTransitions"].map(|field| &lease["spec"][field])
}

fn begin_term(lease: &Value) -> Option<Op> {
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
    Some(Op::Put { key: term_key(lease)?, value: holder.to_owned().into() })
}

fn term_key(lease: &Value) -> Option<std::sync::Arc<str>> {
    let namespace = metadata::string_field(lease, "namespace").filter(|namespace| *namespace == SYSTEM)?;
    let name = metadata::string_field(lease, "name").filter(|name| name.starts_with(PREFIX))?;
    Some(keys::leader_term(namespace, name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_election_leases_have_terms() {
        let lease = |namespace: &str, name: &str| json!({"metadata": {"namespace": namespace, "name": name}});
        let key = |namespace, name| term_key(&lease(namespace, name));
        assert_eq!(
            key("kube-system", "mainstay-scheduler").as_deref(),
            Some("/mainstay/leaderterms/kube-system/mainstay-scheduler")
        );
        assert_eq!(key("kube-node-lease", "mainstay-1"), None, "the heartbeats of a machine");
        assert_eq!(key("kube-system", "heal-0-1"), None);
    }

    #[test]
    fn a_renewal_is_no_new_term_and_an_acquisition_is() {
        let acquired =
            json!({"spec": {"holderIdentity": "a", "acquireTime": "t", "renewTime": "t", "leaseTransitions": 1}});
        let with = |field: &str, value: Value| {
            let mut lease = acquired.clone();
            lease["spec"][field] = value;
            lease
        };
        assert_eq!(term_fields(&acquired), term_fields(&with("renewTime", json!("u"))));
        for (field, value) in
            [("holderIdentity", json!("b")), ("acquireTime", json!("u")), ("leaseTransitions", json!(2))]
        {
            assert_ne!(term_fields(&acquired), term_fields(&with(field, value)), "{field}");
        }
    }
}
