//! Bearer tokens: of a service account, of a node about to join, from a file, or from an OpenID Connect provider.

use http::{HeaderMap, header};
use jiff::Timestamp;

use super::{User, bootstrap_token, jws, service_account};
use crate::{api::Api, http::status::ApiResult};

/// Someone, and whom the token was made for.
#[derive(Debug)]
pub struct TokenUser {
    pub user: User,
    pub audiences: Vec<String>,
}

/// The token a request carries.
pub fn presented(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
}

/// The user of a request, if its token is for this API.
pub async fn user(api: &Api, token: &str, now: Timestamp) -> ApiResult<Option<User>> {
    let own = std::slice::from_ref(&api.settings.issuer);
    Ok(authenticate(api, token, own, now).await?.ok().map(|authenticated| authenticated.user))
}

/// Who presents a token that is for one of these audiences, or why nobody does.
pub async fn authenticate(
    api: &Api,
    token: &str,
    audiences: &[String],
    now: Timestamp,
) -> ApiResult<Result<TokenUser, &'static str>> {
    let for_this_api = |user: User| TokenUser { user, audiences: vec![api.settings.issuer.clone()] };
    if let Some(user) = api.settings.static_tokens.user(token) {
        return Ok(Ok(for_this_api(user.clone())));
    }
    if let Some((id, secret)) = bootstrap_token::parse(token) {
        let user = bootstrap_token::authenticate(api, id, secret, now).await?;
        return Ok(user.map(for_this_api).ok_or("invalid bearer token"));
    }
    if !jws::is_compact(token) {
        return Ok(Err("invalid bearer token"));
    }
    if let Some(user) = api.settings.trusted_issuers.user(token, now).await {
        return Ok(Ok(for_this_api(user)));
    }
    Ok(match service_account::authenticate(api, token, now).await? {
        Ok(mut found) => {
            found.audiences.retain(|audience| audiences.contains(audience));
            if found.audiences.is_empty() {
                Err("token audiences is invalid for the target audiences")
            } else {
                Ok(found)
            }
        }
        refused => refused,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_follows_bearer() {
        let token_in = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            presented(&headers).map(str::to_owned)
        };
        assert_eq!(token_in("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(token_in("bearer  abc ").as_deref(), Some("abc"));
        assert_eq!(token_in("Basic abc"), None);
        assert_eq!(token_in("Bearer "), None);
    }
}
