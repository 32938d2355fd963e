//! Query parameters, parsed once and refused by name when they make no sense.

use mainstay_api::field::{Errors, FieldError, Path};
use serde_json::Value;

use crate::http::status::{ApiError, ApiResult};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    Exact,
    NotOlderThan,
}

/// `resourceVersion` of a read: unset means newest, `0` means anything at hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    #[default]
    Newest,
    Any,
    Of(u64),
}

#[derive(Debug, Default)]
pub struct Query {
    pub label_selector: String,
    pub field_selector: String,
    pub limit: Option<usize>,
    pub continue_token: String,
    pub version: Version,
    pub version_match: Option<VersionMatch>,
    pub watch: bool,
    pub bookmarks: bool,
    pub send_initial_events: Option<bool>,
    pub timeout_seconds: Option<u64>,
    pub dry_run: bool,
    pub field_validation: FieldValidation,
    pub field_manager: String,
    pub force: Option<bool>,
    pub grace_period_seconds: Option<i64>,
    pub propagation_policy: Option<String>,
    pub orphan_dependents: Option<bool>,
    pub include_object: Option<String>,
}

impl Query {
    pub fn parse(query: &str) -> ApiResult<Self> {
        let mut parsed = Self::default();
        if query.is_empty() {
            return Ok(parsed);
        }
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "labelSelector" => parsed.label_selector = value.into_owned(),
                "fieldSelector" => parsed.field_selector = value.into_owned(),
                "limit" => parsed.limit = number(&name, &value)?.filter(|n| *n > 0),
                "continue" => parsed.continue_token = value.into_owned(),
                "resourceVersion" => parsed.version = version(&value)?,
                "resourceVersionMatch" => parsed.version_match = version_match(&value)?,
                "watch" => parsed.watch = truth(&name, &value)?,
                "allowWatchBookmarks" => parsed.bookmarks = truth(&name, &value)?,
                "sendInitialEvents" => parsed.send_initial_events = Some(truth(&name, &value)?),
                "timeoutSeconds" => parsed.timeout_seconds = number(&name, &value)?,
                "dryRun" => parsed.dry_run |= dry_run(&value)?,
                "fieldValidation" => parsed.field_validation = field_validation(&value)?,
                "fieldManager" => parsed.field_manager = value.into_owned(),
                "force" => parsed.force = Some(truth(&name, &value)?),
                "gracePeriodSeconds" => parsed.grace_period_seconds = number(&name, &value)?,
                "propagationPolicy" if !value.is_empty() => parsed.propagation_policy = Some(value.into_owned()),
                "orphanDependents" => parsed.orphan_dependents = Some(truth(&name, &value)?),
                "includeObject" => parsed.include_object = Some(value.into_owned()),
                _ => {}
            }
        }
        parsed.check_list_options()?;
        Ok(parsed)
    }

    /// Whether another server may take this for a watch: it may read the first value or the last, and go on after an error.
    pub fn may_ask_to_watch(query: &str) -> bool {
        let mut values = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| name == "watch");
        values.any(|(_, value)| !value.eq_ignore_ascii_case("false") && value != "0")
    }

    /// Which combinations of list options mean something.
    fn check_list_options(&self) -> ApiResult<()> {
        let mut errors = Errors::new();
        if let Some(matching) = self.version_match {
            let path = Path::new("resourceVersionMatch");
            if self.version == Version::Newest && self.send_initial_events.is_none() {
                let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
                errors.push(FieldError::forbidden(&path, why));
            }
            if !self.continue_token.is_empty() {
                let why = "resourceVersionMatch is forbidden when continue is provided";
                errors.push(FieldError::forbidden(&path, why));
            }
            if matching == VersionMatch::Exact && self.version == Version::Any {
                let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
                errors.push(FieldError::forbidden(&path, why));
            }
            if self.watch && self.send_initial_events.is_none() {
                let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                errors.push(FieldError::forbidden(&path, why));
            }
        }
        if self.send_initial_events.is_some() {
            if !self.watch {
                let why = "sendInitialEvents is forbidden for list";
                errors.push(FieldError::forbidden(&Path::new("sendInitialEvents"), why));
            } else if self.version_match != Some(VersionMatch::NotOlderThan) {
                let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                errors.push(FieldError::forbidden(&Path::new("resourceVersionMatch"), why));
            }
        }
        if !self.continue_token.is_empty() && matches!(self.version, Version::Of(_)) {
            return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
        }
        if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid_kind("meta.k8s.io", "ListOptions", "", &errors)) }
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> ApiResult<Option<T>> {
    if value.is_empty() {
        return Ok(None);
    }
    let bad = |_| ApiError::bad_request(format!("query parameter {name:?}: {value:?} is not a valid number"));
    value.parse().map(Some).map_err(bad)
}

/// As upstream reads flags in queries: present without a value means true.
fn truth(name: &str, value: &str) -> ApiResult<bool> {
    match value {
        "" | "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(true),
        "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(false),
        _ => Err(ApiError::bad_request(format!("query parameter {name:?}: {value:?} is not true or false"))),
    }
}

pub fn version(value: &str) -> ApiResult<Version> {
    match value {
        "" => Ok(Version::Newest),
        "0" => Ok(Version::Any),
        number => number.parse().map(Version::Of).map_err(|_| {
            let why = format!("strconv.ParseUint: parsing {number:?}: invalid syntax");
            let error = FieldError::invalid(&Path::new("resourceVersion"), number, why);
            ApiError::bad_request(error.to_string())
        }),
    }
}

fn version_match(value: &str) -> ApiResult<Option<VersionMatch>> {
    match value {
        "" => Ok(None),
        "Exact" => Ok(Some(VersionMatch::Exact)),
        "NotOlderThan" => Ok(Some(VersionMatch::NotOlderThan)),
        other => {
            let path = Path::new("resourceVersionMatch");
            let error = FieldError::not_supported(&path, other, &["Exact", "NotOlderThan", ""]);
            Err(ApiError::invalid_kind("meta.k8s.io", "ListOptions", "", &error.into()))
        }
    }
}

pub fn dry_run(value: &str) -> ApiResult<bool> {
    if value == "All" {
        return Ok(true);
    }
    let error = FieldError::not_supported(&Path::new("dryRun"), Value::String(value.to_owned()), &["All"]);
    Err(ApiError::invalid_kind("meta.k8s.io", "Options", "", &error.into()))
}

fn field_validation(value: &str) -> ApiResult<FieldValidation> {
    match value {
        "" | "Warn" => Ok(FieldValidation::Warn),
        "Ignore" => Ok(FieldValidation::Ignore),
        "Strict" => Ok(FieldValidation::Strict),
        other => {
            let path = Path::new("fieldValidation");
            let error = FieldError::not_supported(&path, other, &["", "Ignore", "Strict", "Warn"]);
            Err(ApiError::invalid_kind("meta.k8s.io", "CreateOptions", "", &error.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused_by_name() {
        for (query, code, needle) in [
            ("limit=x", 400, "limit"),
            ("watch=maybe", 400, "watch"),
            ("resourceVersion=abc", 400, "resourceVersion"),
            ("resourceVersionMatch=Exact", 422, "resourceVersionMatch"),
            ("resourceVersion=5&resourceVersionMatch=Nearly", 422, "NotOlderThan"),
            ("dryRun=Some", 422, "dryRun"),
            ("fieldValidation=Loud", 422, "fieldValidation"),
            ("sendInitialEvents=true&watch=1", 422, "NotOlderThan"),
            ("continue=x&resourceVersion=5", 400, "continue"),
        ] {
            let error = Query::parse(query).expect_err(query);
            assert_eq!(error.code().as_u16(), code, "{query}");
            assert!(error.status().to_string().contains(needle), "{query}: {:?}", error.status());
        }
    }

    #[test]
    fn ordinary_options_are_understood() {
        let query = Query::parse("labelSelector=a%3Db&limit=5&resourceVersion=0&dryRun=All&watch=1&unknown=x").unwrap();
        assert_eq!((query.label_selector.as_str(), query.limit, query.version), ("a=b", Some(5), Version::Any));
        assert!(query.dry_run && query.watch);
    }
}
