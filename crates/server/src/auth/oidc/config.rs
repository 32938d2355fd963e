//! Whom JWTs of people are trusted from, and what their claims mean: upstream's AuthenticationConfiguration.

use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuthenticationConfiguration {
    pub api_version: String,
    pub kind: String,
    #[serde(default)]
    pub jwt: Vec<JwtConfig>,
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
        Ok(())
    }
}
