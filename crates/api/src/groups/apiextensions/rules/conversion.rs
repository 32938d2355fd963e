//! How objects are converted between versions.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;
use serde::Deserialize;
use serde_json::Value;

use super::text;
use crate::{
    field::{Errors, FieldError, Path},
    groups::admissionregistration::rules::webhook_client,
    validation::{check, names::dns1035_label},
};

const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

pub fn validate(conversion: &Value, path: &Path, errors: &mut Errors) {
    if conversion.is_null() {
        return;
    }
    check::required_one_of(text(conversion, "strategy"), &["None", "Webhook"], &path.child("strategy"), errors);
    let webhook = &conversion["webhook"];
    if conversion["strategy"] != "Webhook" {
        if !webhook.is_null() {
            let words = "should not be set when strategy is not set to Webhook";
            errors.push(FieldError::forbidden(&path.child("webhook"), words));
        }
        return;
    }
    let at = path.child("webhook");
    match WebhookClientConfig::deserialize(&webhook["clientConfig"]) {
        Ok(client) => webhook_client::validate(&client, &at.child("clientConfig"), errors),
        Err(_) => {
            errors.push(FieldError::required(&at.child("clientConfig"), "required when strategy is set to Webhook"));
        }
    }
    review_versions(&webhook["conversionReviewVersions"], &at.child("conversionReviewVersions"), errors);
}

fn review_versions(versions: &Value, path: &Path, errors: &mut Errors) {
    let listed: Vec<&str> = versions.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if listed.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, version) in listed.iter().enumerate() {
        if !seen.insert(version) {
            errors.push(FieldError::invalid(&path.index(index), *version, "duplicate version"));
            continue;
        }
        for complaint in dns1035_label(version) {
            errors.push(FieldError::invalid(&path.index(index), *version, complaint));
        }
    }
    if !listed.iter().any(|version| REVIEW_VERSIONS.contains(version)) {
        let words = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.push(FieldError::invalid(path, listed, words));
    }
}
