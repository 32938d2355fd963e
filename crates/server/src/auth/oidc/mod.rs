//! Tokens that an OpenID Connect provider gave to people, as upstream's structured authentication configuration has it.
//!
//! * [`config`]: whom tokens are trusted from and what their claims mean
//! * [`issuer_keys`]: the keys of an issuer
//! * [`claims`]: the user that claims stand for; [`expressions`]: CEL in place of a claim's name
//!
//! A token is taken if its signature, issuer, audience and time are right and every rule of the configuration holds. What
//! was wrong is for the log of an administrator who looks for it (debug): whoever sent the token learns nothing.

mod claims;
pub mod config;
mod expressions;
mod issuer_keys;

use std::fmt;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use jiff::Timestamp;
use jsonwebtoken::{Algorithm, Validation};
use serde::Deserialize;
use serde_json::{Map, Value};

use self::{
    config::{AuthenticationConfiguration, ConfigError, JwtConfig},
    expressions::Expressions,
    issuer_keys::IssuerKeys,
};
use super::User;

/// As upstream's; none of them is symmetric, so that a public key cannot be taken for a secret.
const ALGORITHMS: [Algorithm; 8] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

struct Issuer {
    config: JwtConfig,
    expressions: Expressions,
    keys: IssuerKeys,
}

/// The issuers whose tokens are taken.
#[derive(Default)]
pub struct TrustedIssuers(Vec<Issuer>);

impl fmt::Debug for TrustedIssuers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|issuer| &issuer.config.issuer.url)).finish()
    }
}

#[derive(Deserialize)]
struct UnverifiedClaims {
    #[serde(default)]
    iss: String,
}

impl TrustedIssuers {
    pub fn new(configuration: AuthenticationConfiguration, own_issuer: &str) -> Result<Self, ConfigError> {
        configuration.validate(own_issuer)?;
        let issuers = configuration.jwt.into_iter().enumerate().map(|(at, config)| {
            let named = |error: ConfigError| ConfigError { field: format!("jwt[{at}].{}", error.field), ..error };
            let expressions = Expressions::compile(&config).map_err(named)?;
            Ok(Issuer { keys: IssuerKeys::new(&config.issuer).map_err(named)?, expressions, config })
        });
        Ok(Self(issuers.collect::<Result<_, _>>()?))
    }

    /// Who presents a token; nobody if it is not of one of the issuers or anything about it is wrong.
    pub async fn user(&self, token: &str, now: Timestamp) -> Option<User> {
        if self.0.is_empty() {
            return None;
        }
        let claimed = unverified_issuer(token)?;
        let issuer = self.0.iter().find(|issuer| issuer.config.issuer.url == claimed)?;
        match issuer.authenticate(token, now).await {
            Ok(user) => Some(user),
            Err(why) => {
                tracing::debug!(issuer = claimed, why, "refused a token");
                None
            }
        }
    }
}

impl Issuer {
    async fn authenticate(&self, token: &str, now: Timestamp) -> Result<User, String> {
        let header = jsonwebtoken::decode_header(token).map_err(|error| error.to_string())?;
        if !ALGORITHMS.contains(&header.alg) {
            return Err(format!("signed with {:?}, which is not accepted", header.alg));
        }
        let keys = self.keys.candidates(header.kid.as_deref(), now).await;
        if keys.is_empty() {
            return Err("signed with a key that the issuer does not name".to_owned());
        }
        let mut wanted = Validation::new(header.alg);
        wanted.set_issuer(&[&self.config.issuer.url]);
        wanted.set_audience(&self.config.issuer.audiences);
        wanted.set_required_spec_claims(&["exp", "iss", "aud"]);
        // Time is judged here, by the clock that the caller has.
        wanted.validate_exp = false;
        wanted.leeway = 0;
        let mut why = String::new();
        for key in &keys {
            match jsonwebtoken::decode::<Map<String, Value>>(token, key, &wanted) {
                Ok(decoded) => {
                    check_time(&decoded.claims, now)?;
                    return claims::user(&self.config, &self.expressions, decoded.claims)
                        .map_err(|error| error.to_string());
                }
                Err(error) => why = error.to_string(),
            }
        }
        Err(why)
    }
}

fn check_time(claims: &Map<String, Value>, now: Timestamp) -> Result<(), String> {
    let time = |name: &str| claims.get(name).and_then(Value::as_f64);
    let now = now.as_second() as f64;
    match (time("exp"), time("nbf")) {
        (None, _) => Err("the token never expires".to_owned()),
        (Some(end), _) if end <= now => Err("the token has expired".to_owned()),
        (_, Some(begin)) if begin > now => Err("the token is not valid yet".to_owned()),
        _ => Ok(()),
    }
}

fn unverified_issuer(token: &str) -> Option<String> {
    let claims = BASE64.decode(token.split('.').nth(1)?).ok()?;
    let claims: UnverifiedClaims = serde_json::from_slice(&claims).ok()?;
    (!claims.iss.is_empty()).then_some(claims.iss)
}

#[cfg(test)]
mod tests;
