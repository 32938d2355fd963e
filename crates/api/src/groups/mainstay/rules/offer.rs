//! Offer.

use crate::{
    field::{Errors, FieldError, Path},
    offer::Offer,
    ports::PortRanges,
    strategy::Rules,
    validation::{
        check::{NEGATIVE, NOT_POSITIVE, version},
        resources::{amount, canonicalize_one},
    },
};

pub struct OfferRules;

impl Rules for OfferRules {
    type Object = Offer;

    fn default(object: &mut Offer) {
        object.spec.free.values_mut().for_each(canonicalize_one);
    }

    fn validate(object: &Offer, errors: &mut Errors) {
        let (path, spec) = (Path::new("spec"), &object.spec);
        for (name, quantity) in spec.free.iter().filter(|(_, quantity)| amount(quantity).is_negative()) {
            errors.push(FieldError::invalid(&path.child("free").key(name), quantity.0.as_str(), NEGATIVE));
        }
        for (field, ranges) in [("automaticPorts", &spec.automatic_ports), ("explicitPorts", &spec.explicit_ports)] {
            for (i, range) in ranges.iter().enumerate() {
                if let Err(error) = PortRanges::parse([range]) {
                    let at = path.child(field).index(i);
                    errors.push(FieldError::invalid(&at, range.as_str(), error.to_string()));
                }
            }
        }
        if spec.ttl_seconds <= 0 {
            errors.push(FieldError::invalid(&path.child("ttlSeconds"), spec.ttl_seconds, NOT_POSITIVE));
        }
        version(&spec.seen, &path.child("seen"), errors);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, with};

    #[test]
    fn an_offer_says_what_is_free_where_and_how_long() {
        let offer = json!({
            "apiVersion": "mainstay.dev/v1", "kind": "Offer", "metadata": {"name": "n1"},
            "spec": {
                "free": {"cpu": "1500m", "memory": "1Gi", "pods": "110", "example.com/gpu": "2"},
                "automaticPorts": ["31000-31004", "31006"], "explicitPorts": ["1-65535"],
                "ttlSeconds": 5, "renewTime": "2026-01-01T00:00:00.000001Z", "seen": "17",
            },
        });
        assert_completes::<OfferRules>(offer.clone(), offer.clone());
        assert_completes::<OfferRules>(with(&offer, json!({"spec": {"free": {"cpu": "1.5"}}})), offer.clone());
        assert_refused::<OfferRules>(
            with(
                &offer,
                json!({"spec": {
                    "free": {"cpu": "-1"}, "automaticPorts": ["9-8", "1"], "explicitPorts": ["0-5"],
                    "ttlSeconds": 0, "seen": "x",
                }}),
            ),
            &[
                "spec.free[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
                "spec.automaticPorts[0]: Invalid value: \"9-8\": must be a port or a range of ports, such as \
                 31000-32000, between 1 and 65535",
                "spec.explicitPorts[0]: Invalid value: \"0-5\": must be a port or a range of ports, such as \
                 31000-32000, between 1 and 65535",
                "spec.ttlSeconds: Invalid value: 0: must be greater than zero",
                "spec.seen: Invalid value: \"x\": must be a resourceVersion that a server gave",
            ],
        );
    }

    #[test]
    fn an_offer_of_nothing_still_says_how_long() {
        let empty = json!({"apiVersion": "mainstay.dev/v1", "kind": "Offer", "metadata": {"name": "n1"}});
        assert_refused::<OfferRules>(empty, &["spec.ttlSeconds: Invalid value: 0: must be greater than zero"]);
    }
}
