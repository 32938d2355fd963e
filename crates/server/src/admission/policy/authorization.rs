//! The variable `authorizer`: decisions of this server's authorizers, asked for when an expression first needs them.
//!
//! An evaluation cannot wait. It ends where it needs a decision, the decision is looked up, and the evaluation begins
//! anew; its cost allows two checks for each expression.

use std::{borrow::Cow, collections::HashMap};

use mainstay_cel::{AuthorizationCheck, AuthorizationDecision, Authorizer};
use parking_lot::Mutex;

use crate::{
    admission::Request,
    auth::{SERVICE_ACCOUNTS, User},
    authorize::{self, Attributes, RequestTarget, ResourceAttributes},
};

/// What was decided for one request.
#[derive(Default)]
pub struct DecisionCache {
    known: Mutex<HashMap<AuthorizationCheck, AuthorizationDecision>>,
}

impl Authorizer for DecisionCache {
    fn decide(&self, check: &AuthorizationCheck) -> Option<AuthorizationDecision> {
        self.known.lock().get(check).cloned()
    }
}

impl DecisionCache {
    pub async fn look_up(&self, request: &Request<'_>, check: &AuthorizationCheck) {
        let service_account = check.service_account.as_ref().map(|(namespace, name)| {
            let groups = vec![SERVICE_ACCOUNTS.to_owned(), format!("{SERVICE_ACCOUNTS}:{namespace}")];
            User::authenticated(format!("system:serviceaccount:{namespace}:{name}"), groups)
        });
        let user = service_account.as_ref().unwrap_or(request.user);
        let some = |text: &'_ str| (!text.is_empty()).then(|| Cow::Owned(text.to_owned()));
        let target = match &check.path {
            Some(path) => RequestTarget::Path(path),
            None => RequestTarget::Resource(ResourceAttributes {
                group: Cow::Borrowed(&*check.group),
                resource: Cow::Borrowed(&*check.resource),
                subresource: some(&check.subresource),
                namespace: some(&check.namespace),
                name: some(&check.name),
                fields: Vec::new(),
                labels: Vec::new(),
            }),
        };
        let asked = Attributes { verb: &check.verb, target };
        let decision = match authorize::decide(request.api, user, &asked).await {
            Ok(Ok(reason)) => AuthorizationDecision { allowed: true, reason, error: None },
            Ok(Err(reason)) => AuthorizationDecision { allowed: false, reason, error: None },
            Err(error) => AuthorizationDecision { error: Some(error.message().to_owned()), ..Default::default() },
        };
        self.known.lock().insert(check.clone(), decision);
    }
}
