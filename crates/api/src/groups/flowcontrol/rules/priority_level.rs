//! PriorityLevelConfiguration: how many requests of one importance are at work, and how many wait.

use k8s_openapi::api::flowcontrol::v1::{
    ExemptPriorityLevelConfiguration, LimitResponse, LimitedPriorityLevelConfiguration, PriorityLevelConfiguration,
    PriorityLevelConfigurationSpec, QueuingConfiguration,
};

use super::validate_conditions;
use crate::{
    field::{Errors, FieldError, Path},
    groups::flowcontrol::bootstrap,
    strategy::Rules,
    validation::check::{fill_number, list, shown, text},
};

pub struct PriorityLevelConfigurationRules;

const EXEMPT: &str = "exempt";
const MAX_QUEUES: i32 = 10_000_000;
/// How many bits of a flow's hash choose its queues.
const MAX_HASH_BITS: i32 = 60;

impl Rules for PriorityLevelConfigurationRules {
    type Object = PriorityLevelConfiguration;

    fn default(object: &mut PriorityLevelConfiguration) {
        if object.spec.type_ == "Exempt" {
            let exempt = object.spec.exempt.get_or_insert_default();
            exempt.nominal_concurrency_shares.get_or_insert(0);
            exempt.lendable_percent.get_or_insert(0);
        }
        if let Some(limited) = &mut object.spec.limited {
            limited.nominal_concurrency_shares.get_or_insert(30);
            limited.lendable_percent.get_or_insert(0);
            if let Some(queuing) = &mut limited.limit_response.queuing {
                fill_number(&mut queuing.queues, 64);
                fill_number(&mut queuing.hand_size, 8);
                fill_number(&mut queuing.queue_length_limit, 50);
            }
        }
    }

    fn prepare_create(object: &mut PriorityLevelConfiguration) {
        object.status = Some(Default::default());
    }

    fn validate(object: &PriorityLevelConfiguration, errors: &mut Errors) {
        let (name, path) = (text(&object.metadata.name), Path::new("spec"));
        validate_spec(name, &object.spec, &path, errors);
        let mut fixed = bootstrap::mandatory_priority_levels().into_iter();
        let Some(mut fixed) = fixed.find(|level| text(&level.metadata.name) == name) else { return };
        let words = if name == EXEMPT {
            fixed.spec.exempt = object.spec.exempt.clone(); // the one part that may be tuned
            format!("spec of '{name}' except the 'spec.exempt' field must equal the fixed value")
        } else {
            format!("spec of '{name}' must equal the fixed value")
        };
        if fixed.spec != object.spec {
            errors.push(FieldError::invalid(&path, shown(&object.spec), words));
        }
    }

    fn validate_status(object: &PriorityLevelConfiguration, _: &PriorityLevelConfiguration, errors: &mut Errors) {
        let Some(status) = &object.status else { return };
        validate_conditions(list(&status.conditions).iter().map(|condition| condition.type_.as_str()), errors);
    }
}

fn validate_spec(name: &str, spec: &PriorityLevelConfigurationSpec, path: &Path, errors: &mut Errors) {
    let at = path.child("type");
    if (name == EXEMPT) != (spec.type_ == "Exempt") {
        let words = "type must be 'Exempt' if and only if name is 'exempt'";
        errors.push(FieldError::invalid(&at, spec.type_.as_str(), words));
    }
    let (exempt, limited) = (path.child("exempt"), path.child("limited"));
    match spec.type_.as_str() {
        "Exempt" => {
            if spec.limited.is_some() {
                errors.push(FieldError::forbidden(&limited, "must be nil if the type is not Limited"));
            }
            if let Some(own) = &spec.exempt {
                validate_exempt(own, &exempt, errors);
            }
        }
        "Limited" => {
            if spec.exempt.is_some() {
                errors.push(FieldError::forbidden(&exempt, "must be nil if the type is Limited"));
            }
            match &spec.limited {
                Some(own) => validate_limited(own, &limited, errors),
                None => errors.push(FieldError::required(&limited, "must not be empty when type is Limited")),
            }
        }
        other => errors.push(FieldError::not_supported(&at, other, &["Exempt", "Limited"])),
    }
}

fn validate_shares(shares: Option<i32>, lendable: Option<i32>, path: &Path, errors: &mut Errors) {
    if let Some(shares) = shares.filter(|shares| *shares < 0) {
        let at = path.child("nominalConcurrencyShares");
        errors.push(FieldError::invalid(&at, shares, "must be a non-negative integer"));
    }
    if let Some(percent) = lendable.filter(|percent| !(0..=100).contains(percent)) {
        let at = path.child("lendablePercent");
        errors.push(FieldError::invalid(&at, percent, "must be between 0 and 100, inclusive"));
    }
}

fn validate_exempt(exempt: &ExemptPriorityLevelConfiguration, path: &Path, errors: &mut Errors) {
    validate_shares(exempt.nominal_concurrency_shares, exempt.lendable_percent, path, errors);
}

fn validate_limited(limited: &LimitedPriorityLevelConfiguration, path: &Path, errors: &mut Errors) {
    validate_limit_response(&limited.limit_response, &path.child("limitResponse"), errors);
    validate_shares(limited.nominal_concurrency_shares, limited.lendable_percent, path, errors);
    if let Some(percent) = limited.borrowing_limit_percent.filter(|percent| *percent < 0) {
        let at = path.child("borrowingLimitPercent");
        errors.push(FieldError::invalid(&at, percent, "if specified, must be a non-negative integer"));
    }
}

fn validate_limit_response(response: &LimitResponse, path: &Path, errors: &mut Errors) {
    let at = path.child("queuing");
    match (response.type_.as_str(), &response.queuing) {
        ("Reject", None) => {}
        ("Reject", Some(_)) => {
            errors.push(FieldError::forbidden(&at, "must be nil if limited.limitResponse.type is not Limited"));
        }
        ("Queue", Some(queuing)) => validate_queuing(queuing, &at, errors),
        ("Queue", None) => {
            errors.push(FieldError::required(&at, "must not be empty if limited.limitResponse.type is Limited"));
        }
        (other, _) => errors.push(FieldError::not_supported(&path.child("type"), other, &["Queue", "Reject"])),
    }
}

fn validate_queuing(queuing: &QueuingConfiguration, path: &Path, errors: &mut Errors) {
    let number = |value: Option<i32>| value.unwrap_or_default();
    let [length, queues, hand] = [queuing.queue_length_limit, queuing.queues, queuing.hand_size].map(number);
    let mut refuse =
        |field: &str, value: i32, words: &str| errors.push(FieldError::invalid(&path.child(field), value, words));
    if length <= 0 {
        refuse("queueLengthLimit", length, "must be positive");
    }
    if queues <= 0 {
        refuse("queues", queues, "must be positive");
    } else if queues > MAX_QUEUES {
        refuse("queues", queues, &format!("must not be greater than {MAX_QUEUES}"));
    }
    if hand <= 0 {
        refuse("handSize", hand, "must be positive");
    } else if hand > queues {
        refuse("handSize", hand, &format!("should not be greater than queues ({queues})"));
    } else if required_entropy_bits(queues, hand) > MAX_HASH_BITS {
        let words = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {MAX_HASH_BITS}"
        );
        refuse("handSize", hand, &words);
    }
}

/// How many bits it takes to deal a hand of queues out of all of them.
fn required_entropy_bits(deck: i32, hand: i32) -> i32 {
    let mut bits = 0.0;
    for dealt in 0..hand.min(MAX_HASH_BITS + 1) {
        bits += f64::from(deck - dealt).log2();
    }
    bits.ceil() as i32
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, with};

    fn level() -> Value {
        json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
            "metadata": {"name": "mine"},
            "spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}},
        })
    }

    #[test]
    fn a_level_is_completed_as_upstream_completes_it() {
        let limited = json!({
            "nominalConcurrencyShares": 30, "lendablePercent": 0,
            "limitResponse": {"type": "Queue", "queuing": {"queues": 64, "handSize": 8, "queueLengthLimit": 50}},
        });
        let expected = with(&level(), json!({"spec": {"limited": limited}, "status": {}}));
        assert_completes::<PriorityLevelConfigurationRules>(level(), expected);
    }

    #[test]
    fn bad_levels_are_refused_with_upstreams_messages() {
        let queuing = "spec.limited.limitResponse.queuing";
        let cases: &[(Value, &[&str])] = &[
            (
                json!({"type": "Exempt"}),
                &[
                    r#"spec.type: Invalid value: "Exempt": type must be 'Exempt' if and only if name is 'exempt'"#,
                    "spec.limited: Forbidden: must be nil if the type is not Limited",
                ],
            ),
            (json!({"limited": null}), &["spec.limited: Required value: must not be empty when type is Limited"]),
            (
                json!({"limited": {"nominalConcurrencyShares": -1, "lendablePercent": 101, "borrowingLimitPercent": -2}}),
                &[
                    "spec.limited.nominalConcurrencyShares: Invalid value: -1: must be a non-negative integer",
                    "spec.limited.lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive",
                    "spec.limited.borrowingLimitPercent: Invalid value: -2: if specified, must be a non-negative integer",
                ],
            ),
            (
                json!({"limited": {"limitResponse": {"type": "Reject"}}}),
                &[
                    "spec.limited.limitResponse.queuing: Forbidden: must be nil if limited.limitResponse.type is not Limited",
                ],
            ),
            (
                json!({"limited": {"limitResponse": {"queuing": {"queues": 4, "handSize": 5, "queueLengthLimit": -1}}}}),
                &[
                    &format!("{queuing}.queueLengthLimit: Invalid value: -1: must be positive"),
                    &format!("{queuing}.handSize: Invalid value: 5: should not be greater than queues (4)"),
                ],
            ),
            (
                json!({"limited": {"limitResponse": {"queuing": {"queues": 128, "handSize": 10}}}}),
                &[&format!(
                    "{queuing}.handSize: Invalid value: 10: required entropy bits of deckSize 128 and handSize 10 should not be greater than 60"
                )],
            ),
        ];
        for (change, expected) in cases {
            assert_refused::<PriorityLevelConfigurationRules>(with(&level(), json!({"spec": change})), expected);
        }
    }

    #[test]
    fn of_the_mandatory_ones_only_the_shares_of_the_exempt_may_be_tuned() {
        for fixed in bootstrap::mandatory_priority_levels() {
            assert_refused::<PriorityLevelConfigurationRules>(serde_json::to_value(&fixed).unwrap(), &[]);
        }
        let [exempt, catch_all] =
            bootstrap::mandatory_priority_levels().map(|level| serde_json::to_value(level).unwrap());
        let tuned = with(&exempt, json!({"spec": {"exempt": {"nominalConcurrencyShares": 5}}}));
        assert_refused::<PriorityLevelConfigurationRules>(tuned, &[]);
        let changed = with(&catch_all, json!({"spec": {"limited": {"nominalConcurrencyShares": 50}}}));
        let expected =
            format!("spec: Invalid value: {}: spec of 'catch-all' must equal the fixed value", changed["spec"]);
        assert_refused::<PriorityLevelConfigurationRules>(changed, &[&expected]);
    }
}
