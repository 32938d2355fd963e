//! Impersonation (`kubectl --as`): administrators may act as another user.

use std::{borrow::Cow, collections::BTreeMap};

use http::HeaderMap;
use percent_encoding::percent_decode_str;

use super::{AUTHENTICATED, SERVICE_ACCOUNTS, User, service_account};
use crate::http::status::{ApiError, ApiResult};

const EXTRA: &str = "impersonate-extra-";

impl User {
    /// Whom a request is to be judged as.
    pub fn with_impersonation(&self, headers: &HeaderMap) -> ApiResult<Cow<'_, Self>> {
        let texts = |name: &str| headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).map(str::to_owned);
        let Some(name) = texts("impersonate-user").next() else {
            let stray = headers.keys().any(|key| key.as_str().starts_with("impersonate-"));
            return if stray {
                Err(ApiError::bad_request("requested to impersonate without naming a user"))
            } else {
                Ok(Cow::Borrowed(self))
            };
        };
        if !self.is_master() {
            return Err(ApiError::forbidden_impersonation(&self.name, &name));
        }
        let mut groups: Vec<String> = texts("impersonate-group").collect();
        if let (true, Some((namespace, _))) = (groups.is_empty(), service_account::parse_user(&name)) {
            groups = vec![SERVICE_ACCOUNTS.to_owned(), format!("{SERVICE_ACCOUNTS}:{namespace}")];
        }
        if name == "system:anonymous" {
            let extra = BTreeMap::new();
            let groups = vec!["system:unauthenticated".to_owned()];
            return Ok(Cow::Owned(Self { name, groups, extra, uid: String::new() }));
        }
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        let mut extra = BTreeMap::<String, Vec<String>>::new();
        for (key, value) in headers {
            if let (Some(key), Ok(value)) = (key.as_str().strip_prefix(EXTRA), value.to_str()) {
                let key = percent_decode_str(key).decode_utf8_lossy().into_owned();
                extra.entry(key).or_default().push(value.to_owned());
            }
        }
        let uid = texts("impersonate-uid").next().unwrap_or_default();
        Ok(Cow::Owned(Self { name, uid, groups, extra }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::MASTERS;

    #[test]
    fn an_administrator_may_be_judged_as_somebody_else_and_nobody_gains_by_it() {
        let admin = User::internal("test");
        let plain = User { name: "ann".into(), ..User::default() };
        let mut headers = HeaderMap::new();
        assert!(admin.with_impersonation(&headers).unwrap().is_master());
        assert_eq!(*plain.with_impersonation(&headers).unwrap(), plain);
        headers.insert("impersonate-user", "bob".parse().unwrap());
        assert_eq!(admin.with_impersonation(&headers).unwrap().name, "bob");
        assert!(!admin.with_impersonation(&headers).unwrap().is_master());
        headers.insert("impersonate-group", MASTERS.parse().unwrap());
        assert!(admin.with_impersonation(&headers).unwrap().is_master());
        let refused = plain.with_impersonation(&headers).unwrap_err().status();
        assert_eq!(
            refused["message"],
            r#"users "bob" is forbidden: User "ann" cannot impersonate resource "users" in API group "" at the cluster scope"#
        );
    }

    #[test]
    fn a_service_account_brings_its_groups_along() {
        let mut headers = HeaderMap::new();
        headers.insert("impersonate-user", "system:serviceaccount:shop:bot".parse().unwrap());
        headers.insert("impersonate-uid", "u1".parse().unwrap());
        headers.insert("impersonate-extra-example.org%2fteam", "a".parse().unwrap());
        let admin = User::internal("test");
        let user = admin.with_impersonation(&headers).unwrap();
        assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"]);
        assert_eq!(user.uid, "u1");
        assert_eq!(user.extra["example.org/team"], ["a"]);
    }

    #[test]
    fn a_group_without_a_user_is_a_mistake() {
        let mut headers = HeaderMap::new();
        headers.insert("impersonate-group", MASTERS.parse().unwrap());
        assert!(User::internal("test").with_impersonation(&headers).is_err());
    }
}
