//! ServiceAccounts.

use k8s_openapi::api::core::v1::{ObjectReference, ServiceAccount};

use crate::{field::Errors, strategy::Rules};

/// The kind `ServiceAccount`.
pub struct ServiceAccountRules;

impl Rules for ServiceAccountRules {
    type Object = ServiceAccount;

    fn default(_: &mut ServiceAccount) {}

    fn prepare_create(account: &mut ServiceAccount) {
        keep_names(account);
    }

    fn prepare_update(account: &mut ServiceAccount, _: &ServiceAccount) {
        keep_names(account);
    }

    fn validate(_: &ServiceAccount, _: &mut Errors) {}
}

/// Secrets are referred to by name, in the account's own namespace.
fn keep_names(account: &mut ServiceAccount) {
    for secret in account.secrets.iter_mut().flatten() {
        *secret = ObjectReference { name: secret.name.take(), ..ObjectReference::default() };
    }
}
