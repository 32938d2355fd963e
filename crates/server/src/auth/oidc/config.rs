//! Whom JWTs of people are trusted from, and what their claims mean: upstream's AuthenticationConfiguration.

use mainstay_api::validation::names;
use serde::Deserialize;

/// Domains of keys in `extra` that say what this API itself knows of a user.
const RESERVED_DOMAINS: [&str; 2] = ["k8s.io", "kubernetes.io"];

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuthenticationConfiguration {
    pub api_version: String,
    pub kind: String,
    #[serde(default)]
    pub jwt: Vec<JwtConfig>,
    #[serde(default)]
    pub anonymous: AnonymousConfig,
}

/// Requests without credentials, which are never taken here but for what everybody may see.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AnonymousConfig {
    #[serde(default)]
    pub enabled: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JwtConfig {
    pub issuer: IssuerConfig,
    #[serde(default)]
    pub claim_validation_rules: Vec<ClaimRule>,
    pub claim_mappings: ClaimMappings,
    #[serde(default)]
    pub user_validation_rules: Vec<UserRule>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IssuerConfig {
    pub url: String,
    #[serde(default, rename = "discoveryURL")]
    pub discovery_url: String,
    /// PEM; the machine's own authorities if it is empty.
    #[serde(default)]
    pub certificate_authority: String,
    pub audiences: Vec<String>,
    #[serde(default)]
    pub audience_match_policy: String,
}

/// A claim that a token must have with this value, or an expression that must be true.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClaimRule {
    pub claim: String,
    pub required_value: String,
    pub expression: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct UserRule {
    pub expression: String,
    pub message: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimMappings {
    pub username: PrefixedClaim,
    #[serde(default)]
    pub groups: PrefixedClaim,
    #[serde(default)]
    pub uid: ClaimOrExpression,
    #[serde(default)]
    pub extra: Vec<ExtraMapping>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PrefixedClaim {
    pub claim: String,
    /// Must be given with a claim, even if it is empty.
    pub prefix: Option<String>,
    pub expression: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClaimOrExpression {
    pub claim: String,
    pub expression: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExtraMapping {
    pub key: String,
    pub value_expression: String,
}

/// What is wrong with a configuration, with the path of the field.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct ConfigError {
    pub field: String,
    pub problem: String,
}

impl AuthenticationConfiguration {
    pub fn validate(&self, own_issuer: &str) -> Result<(), ConfigError> {
        let fail = |field: String, problem: &str| Err(ConfigError { field, problem: problem.to_owned() });
        if self.kind != "AuthenticationConfiguration" || !self.api_version.starts_with("apiserver.config.k8s.io/v1") {
            let problem = "want apiVersion apiserver.config.k8s.io/v1 and kind AuthenticationConfiguration";
            return fail("kind".to_owned(), problem);
        }
        if self.jwt.len() > 64 {
            return fail("jwt".to_owned(), "must have at most 64 items");
        }
        if self.anonymous.enabled {
            let problem =
                "must be false: who has no credentials is shown health, /version and /cacerts, and nothing else";
            return fail("anonymous.enabled".to_owned(), problem);
        }
        for (at, jwt) in self.jwt.iter().enumerate() {
            let field = |name: &str| format!("jwt[{at}].{name}");
            let issuer = &jwt.issuer;
            for (name, url) in [("issuer.url", &issuer.url), ("issuer.discoveryURL", &issuer.discovery_url)] {
                let is_left_out = name.ends_with("discoveryURL") && url.is_empty();
                let is_https = url.starts_with("https://") && url.parse::<http::Uri>().is_ok();
                if !is_https && !is_left_out {
                    return fail(field(name), "must be a URL that begins with https://");
                }
                if url.contains(['?', '#']) {
                    return fail(field(name), "must not have a query or a fragment");
                }
            }
            if issuer.url == own_issuer {
                return fail(field("issuer.url"), "must not be that of the service accounts' own tokens");
            }
            if self.jwt[..at].iter().any(|other| other.issuer.url == issuer.url) {
                return fail(field("issuer.url"), "stands in an earlier item");
            }
            if issuer.audiences.iter().all(String::is_empty) {
                return fail(field("issuer.audiences"), "at least one is required");
            }
            match &*issuer.audience_match_policy {
                "MatchAny" => {}
                "" if issuer.audiences.len() == 1 => {}
                "" => {
                    return fail(
                        field("issuer.audienceMatchPolicy"),
                        "must be MatchAny if there are several audiences",
                    );
                }
                _ => return fail(field("issuer.audienceMatchPolicy"), "must be MatchAny"),
            }
            jwt.validate_mappings(&field)?;
        }
        Ok(())
    }
}

impl JwtConfig {
    fn validate_mappings(&self, field: &impl Fn(&str) -> String) -> Result<(), ConfigError> {
        let fail = |name: &str, problem: &str| Err(ConfigError { field: field(name), problem: problem.to_owned() });
        let mappings = &self.claim_mappings;
        if mappings.username.claim.is_empty() && mappings.username.expression.is_empty() {
            return fail("claimMappings.username", "claim or expression is required");
        }
        for (name, mapping) in [("username", &mappings.username), ("groups", &mappings.groups)] {
            let name = format!("claimMappings.{name}");
            if !mapping.claim.is_empty() && !mapping.expression.is_empty() {
                return fail(&name, "claim and expression exclude each other");
            }
            if !mapping.claim.is_empty() && mapping.prefix.is_none() {
                return fail(&format!("{name}.prefix"), "is required with a claim; it may be empty: \"\"");
            }
        }
        if !mappings.uid.claim.is_empty() && !mappings.uid.expression.is_empty() {
            return fail("claimMappings.uid", "claim and expression exclude each other");
        }
        for (at, rule) in self.claim_validation_rules.iter().enumerate() {
            if rule.claim.is_empty() == rule.expression.is_empty() {
                return fail(&format!("claimValidationRules[{at}]"), "either claim or expression is required");
            }
        }
        for (at, mapping) in mappings.extra.iter().enumerate() {
            let is_repeated = mappings.extra[..at].iter().any(|other| other.key == mapping.key);
            let problem = if is_repeated { Some("stands in an earlier item") } else { extra_key_problem(&mapping.key) };
            if let Some(problem) = problem {
                return fail(&format!("claimMappings.extra[{at}].key"), problem);
            }
        }
        self.require_verified_email().map_or(Ok(()), |problem| fail("claimMappings.username.expression", problem))
    }

    /// Whoever may choose an address at the issuer could choose another's: an expression that names people by it has to look whether it is verified.
    fn require_verified_email(&self) -> Option<&'static str> {
        let mappings = &self.claim_mappings;
        let extra = mappings.extra.iter().map(|extra| &extra.value_expression);
        let rules = self.claim_validation_rules.iter().map(|rule| &rule.expression);
        let mut all = std::iter::once(&mappings.username.expression).chain(extra).chain(rules);
        let is_safe = !reads_claim(&mappings.username.expression, "email")
            || all.any(|expression| reads_claim(expression, "email_verified"));
        let problem = "claims.email_verified must be used in claimMappings.username.expression, claimMappings.extra[*].valueExpression or \
                       claimValidationRules[*].expression when claims.email is used here";
        (!is_safe).then_some(problem)
    }
}

/// What is wrong with a key of `extra`, which must be a path below a domain.
fn extra_key_problem(key: &str) -> Option<&'static str> {
    let (domain, path) = key.split_once('/').unwrap_or((key, ""));
    let is_reserved =
        |reserved: &&str| domain.strip_suffix(*reserved).is_some_and(|own| own.is_empty() || own.ends_with('.'));
    if key != key.to_lowercase() {
        Some("must be lowercase")
    } else if path.is_empty() || !names::dns1123_subdomain(domain).is_empty() {
        Some("must be a domain-prefixed path (such as \"acme.io/foo\")")
    } else if RESERVED_DOMAINS.iter().any(is_reserved) {
        Some("k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use")
    } else {
        None
    }
}

/// Whether an expression reads a claim: `claims.email`, `claims.?email` or `claims["email"]`.
fn reads_claim(expression: &str, claim: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_');
    expression.match_indices("claims").any(|(at, variable)| {
        let rest = expression[at + variable.len()..].trim_start();
        let name = rest.strip_prefix('.').or_else(|| rest.strip_prefix('[')).map(str::trim_start);
        let name = name.map(|name| name.trim_start_matches('?').trim_start().trim_start_matches(['"', '\'']));
        name.and_then(|name| name.strip_prefix(claim)).is_some_and(ends)
    })
}
