//! Bearer tokens: of a service account, of a node about to join, from a file, or from an OpenID Connect provider.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use http::{HeaderMap, HeaderValue, header};
use jiff::Timestamp;

use super::{User, bootstrap_token, jws, service_account};
use crate::{
    api::Api,
    http::{status::ApiResult, websocket},
};

/// How programs in a browser, which cannot set headers of a WebSocket, send a token: among the protocols that they offer.
const WEBSOCKET_TOKEN: &str = "base64url.bearer.authorization.k8s.io.";

/// Someone, and whom the token was made for.
#[derive(Debug)]
pub struct TokenUser {
    pub user: Arc<User>,
    pub audiences: Vec<String>,
}

/// The token a request carries.
pub fn presented(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
}

/// Makes a token among the protocols of a WebSocket a header like any other, and takes it off the list: nobody behind this server may see it, and no answer
/// may repeat it. As upstream, it counts if there is one, beside a protocol that is meant.
pub fn move_websocket_token(headers: &mut HeaderMap) {
    if !websocket::is_requested(headers) {
        return;
    }
    let offered = websocket::values(headers, &header::SEC_WEBSOCKET_PROTOCOL).map(str::to_owned);
    let (tokens, others): (Vec<_>, Vec<_>) = offered.partition(|protocol| protocol.starts_with(WEBSOCKET_TOKEN));
    if tokens.is_empty() {
        return;
    }
    headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
    let Ok(rest) = HeaderValue::from_str(&others.join(", ")) else { return };
    if others.is_empty() {
        return;
    }
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, rest);
    if let ([token], false) = (&*tokens, headers.contains_key(header::AUTHORIZATION))
        && let Ok(token) = BASE64.decode(&token[WEBSOCKET_TOKEN.len()..])
        && let Ok(mut value) = HeaderValue::from_bytes(&[b"Bearer ", &*token].concat())
    {
        value.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, value);
    }
}

/// The user of a request, if its token is for this API.
pub async fn user(api: &Api, token: &str, now: Timestamp) -> ApiResult<Option<Arc<User>>> {
    let own = std::slice::from_ref(&api.settings.issuer);
    Ok(authenticate(api, token, own, now).await?.ok().map(|authenticated| authenticated.user))
}

/// Why a token that somebody may have does not count here.
const OTHER_AUDIENCE: &str = "token audiences is invalid for the target audiences";

/// Who presents a token that is for one of these audiences, or why nobody does.
///
/// Tokens of a file, of a node about to join and of an OpenID Connect provider are for this API alone, whatever they say: who asks on behalf of
/// another audience must not take them.
pub async fn authenticate(
    api: &Api,
    token: &str,
    audiences: &[String],
    now: Timestamp,
) -> ApiResult<Result<TokenUser, &'static str>> {
    let own = &api.settings.issuer;
    let for_this_api = |user: User| {
        if audiences.contains(own) {
            Ok(TokenUser { user: Arc::new(user), audiences: vec![own.clone()] })
        } else {
            Err(OTHER_AUDIENCE)
        }
    };
    if let Some(user) = api.settings.static_tokens.user(token) {
        return Ok(for_this_api(user.clone()));
    }
    if let Some((id, secret)) = bootstrap_token::parse(token) {
        let user = bootstrap_token::authenticate(api, id, secret, now).await?;
        return Ok(user.ok_or("invalid bearer token").and_then(for_this_api));
    }
    if !jws::is_compact(token) {
        return Ok(Err("invalid bearer token"));
    }
    if let Some(user) = api.settings.trusted_issuers.user(token, now).await {
        return Ok(for_this_api(user));
    }
    Ok(match service_account::authenticate(api, token, now).await? {
        Ok(mut found) => {
            found.audiences.retain(|audience| audiences.contains(audience));
            if found.audiences.is_empty() { Err(OTHER_AUDIENCE) } else { Ok(found) }
        }
        refused => refused,
    })
}

#[cfg(test)]
mod tests {
    use mainstay_api::registry::Registry;
    use mainstay_store::Memory;

    use super::*;
    use crate::{auth::static_token::StaticTokens, settings::Settings};

    #[tokio::test]
    async fn a_token_of_a_file_is_for_this_api_alone() {
        let static_tokens = Arc::new(StaticTokens::parse("t0ken,ann").unwrap());
        let settings = Settings { static_tokens, ..Settings::default() };
        let api = Api::new(Registry::builtin(), Arc::new(Memory::new()), settings);
        let (own, vault) = (api.settings.issuer.clone(), "vault".to_owned());
        let asked = async |audiences: &[String]| {
            authenticate(&api, "t0ken", audiences, Timestamp::UNIX_EPOCH).await.expect("an answer")
        };
        let found = asked(&[vault.clone(), own.clone()]).await.expect("ann");
        assert_eq!((&*found.user.name, &*found.audiences), ("ann", &[own][..]));
        assert_eq!(asked(&[vault]).await.expect_err("not for the vault"), OTHER_AUDIENCE);
        assert_eq!(user(&api, "t0ken", Timestamp::UNIX_EPOCH).await.unwrap().expect("ann").name, "ann");
    }

    #[test]
    fn a_browser_sends_its_token_among_the_protocols_of_a_websocket() {
        let moved = |protocols: &[&str], upgrade: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(header::UPGRADE, HeaderValue::from_static(upgrade));
            for protocol in protocols {
                headers.append(header::SEC_WEBSOCKET_PROTOCOL, protocol.parse().unwrap());
            }
            move_websocket_token(&mut headers);
            let offered = websocket::values(&headers, &header::SEC_WEBSOCKET_PROTOCOL).map(str::to_owned);
            let offered: Vec<String> = offered.collect();
            (presented(&headers).map(str::to_owned), offered.join(","))
        };
        let token = format!("{WEBSOCKET_TOKEN}{}", BASE64.encode("t0ken"));
        let some = |token: &str, offered: &str| (Some(token.to_owned()), offered.to_owned());
        let none = |offered: &str| (None, offered.to_owned());
        assert_eq!(moved(&[&token, "v4.channel.k8s.io"], "websocket"), some("t0ken", "v4.channel.k8s.io"));
        assert_eq!(moved(&[&format!("a, {token}, b")], "WebSocket"), some("t0ken", "a,b"));
        assert_eq!(moved(&[&token], "websocket"), none(""), "no protocol is meant");
        assert_eq!(moved(&[&token, &token, "a"], "websocket"), none("a"), "two tokens");
        assert_eq!(moved(&[&format!("{WEBSOCKET_TOKEN}?"), "a"], "websocket"), none("a"), "not base64");
        assert_eq!(moved(&["a"], "websocket"), none("a"));
        assert_eq!(moved(&[&token, "a"], "SPDY/3.1").0, None, "no WebSocket");
    }

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
