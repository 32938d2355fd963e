//! Impersonation (`kubectl --as`): acting as another user, for those who have the verb `impersonate` on that user, on each
//! group, on the uid and on each extra value.

use std::collections::BTreeMap;

use http::HeaderMap;
use percent_encoding::percent_decode_str;

use super::{AUTHENTICATED, SERVICE_ACCOUNTS, UNAUTHENTICATED, User, service_account};
use crate::{
    api::Api,
    authorize::{self, Attributes, RequestTarget, ResourceAttributes},
    http::status::{ApiError, ApiResult},
};

const EXTRA: &str = "impersonate-extra-";
const ANONYMOUS: &str = "system:anonymous";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// Whom a request is to be judged as.
#[derive(Debug)]
pub struct Impersonation {
    user: User,
    /// What one has to be allowed to impersonate for that.
    parts: Vec<ResourceAttributes<'static>>,
}

impl Impersonation {
    /// The impersonated user, if `by` may act as that user.
    pub async fn authorized(self, api: &Api, by: &User) -> ApiResult<User> {
        for part in self.parts {
            let asked = Attributes { verb: "impersonate", target: RequestTarget::Resource(part.clone()) };
            if let Err(why) = authorize::decide(api, by, &asked).await? {
                let words = authorize::refusal(by, asked.verb, &part, &why);
                let group = if part.group.is_empty() { String::new() } else { format!(".{}", part.group) };
                return Err(ApiError::forbidden_impersonation(
                    &format!("{}{group}", part.resource),
                    part.name(),
                    &words,
                ));
            }
        }
        Ok(self.user)
    }
}

/// The impersonation that the headers of a request ask for.
pub fn requested(headers: &HeaderMap) -> ApiResult<Option<Impersonation>> {
    let texts = |name: &str| headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).map(str::to_owned);
    let Some(name) = texts("impersonate-user").next().filter(|name| !name.is_empty()) else {
        let stray = headers.keys().any(|key| key.as_str().starts_with("impersonate-"));
        return if stray {
            Err(ApiError::bad_request("requested to impersonate without naming a user"))
        } else {
            Ok(None)
        };
    };
    let account = service_account::parse_user(&name);
    let mut parts = vec![match account {
        Some((namespace, account)) => {
            ResourceAttributes { namespace: Some(namespace.to_owned().into()), ..part("", "serviceaccounts", account) }
        }
        None => part("", "users", &name),
    }];
    let mut groups: Vec<String> = texts("impersonate-group").collect();
    parts.extend(groups.iter().map(|group| part("", "groups", group)));
    let mut extra = BTreeMap::<String, Vec<String>>::new();
    for (key, value) in headers {
        if let (Some(key), Ok(value)) = (key.as_str().strip_prefix(EXTRA), value.to_str()) {
            let key = percent_decode_str(key).decode_utf8_lossy().into_owned();
            let subresource = Some(key.clone().into());
            parts.push(ResourceAttributes { subresource, ..part(AUTHENTICATION, "userextras", value) });
            extra.entry(key).or_default().push(value.to_owned());
        }
    }
    let uid = texts("impersonate-uid").next().unwrap_or_default();
    if !uid.is_empty() {
        parts.push(part(AUTHENTICATION, "uids", &uid));
    }
    if let (true, Some((namespace, _))) = (groups.is_empty(), account) {
        groups = vec![SERVICE_ACCOUNTS.to_owned(), format!("{SERVICE_ACCOUNTS}:{namespace}")];
    }
    let everybody = if name == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
    if !groups.iter().any(|group| group == everybody) {
        groups.push(everybody.to_owned());
    }
    Ok(Some(Impersonation { user: User { name, uid, groups, extra }, parts }))
}

fn part(group: &'static str, resource: &'static str, name: &str) -> ResourceAttributes<'static> {
    let name = Some(name.to_owned().into());
    ResourceAttributes { group: group.into(), resource: resource.into(), name, ..ResourceAttributes::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::MASTERS;

    fn headers(entries: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in entries {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn parts(impersonation: &Impersonation) -> Vec<String> {
        let show =
            |part: &ResourceAttributes<'_>| format!("{}:{}:{}", part.namespace(), part.full_resource(), part.name());
        impersonation.parts.iter().map(show).collect()
    }

    #[test]
    fn every_part_of_another_user_has_to_be_allowed() {
        assert!(requested(&HeaderMap::new()).unwrap().is_none());
        let bob = headers(&[
            ("impersonate-user", "bob"),
            ("impersonate-group", MASTERS),
            ("impersonate-group", "devs"),
            ("impersonate-uid", "u1"),
            ("impersonate-extra-example.org%2fteam", "a"),
        ]);
        let bob = requested(&bob).unwrap().unwrap();
        assert_eq!(
            parts(&bob),
            [":users:bob", ":groups:system:masters", ":groups:devs", ":userextras/example.org/team:a", ":uids:u1"]
        );
        assert_eq!(bob.user.groups, [MASTERS, "devs", "system:authenticated"]);
        assert_eq!(bob.user.extra["example.org/team"], ["a"]);
    }

    #[test]
    fn a_service_account_brings_its_groups_along() {
        let bot = headers(&[("impersonate-user", "system:serviceaccount:shop:bot")]);
        let bot = requested(&bot).unwrap().unwrap();
        assert_eq!(parts(&bot), ["shop:serviceaccounts:bot"]);
        assert_eq!(bot.user.groups, ["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"]);
    }

    #[test]
    fn nobody_in_particular_is_not_authenticated() {
        let nobody = requested(&headers(&[("impersonate-user", ANONYMOUS)])).unwrap().unwrap();
        assert_eq!(nobody.user.groups, [UNAUTHENTICATED]);
    }

    #[test]
    fn a_group_without_a_user_is_a_mistake() {
        assert!(requested(&headers(&[("impersonate-group", MASTERS)])).is_err());
    }
}
