//! Offer.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::{
    field::{Errors, FieldError, Path},
    offer::{MOST_POOLS, Offer, OfferPool},
    ports::PortRanges,
    roles::{ANY_ROLE, is_role_name},
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
        for pool in &mut object.spec.pools {
            pool.free.values_mut().chain(pool.capacity.values_mut()).for_each(canonicalize_one);
        }
    }

    fn validate(object: &Offer, errors: &mut Errors) {
        let (path, spec) = (Path::new("spec"), &object.spec);
        amounts(&spec.free, &path.child("free"), errors);
        ports(&spec.automatic_ports, &path.child("automaticPorts"), errors);
        ports(&spec.explicit_ports, &path.child("explicitPorts"), errors);
        pools(&spec.pools, &path.child("pools"), errors);
        if spec.ttl_seconds <= 0 {
            errors.push(FieldError::invalid(&path.child("ttlSeconds"), spec.ttl_seconds, NOT_POSITIVE));
        }
        version(&spec.seen, &path.child("seen"), errors);
    }
}

fn amounts(own: &BTreeMap<String, Quantity>, path: &Path, errors: &mut Errors) {
    for (name, quantity) in own.iter().filter(|(_, quantity)| amount(quantity).is_negative()) {
        errors.push(FieldError::invalid(&path.key(name), quantity.0.as_str(), NEGATIVE));
    }
}

fn ports(ranges: &[String], path: &Path, errors: &mut Errors) {
    for (i, range) in ranges.iter().enumerate() {
        if let Err(error) = PortRanges::parse([range]) {
            errors.push(FieldError::invalid(&path.index(i), range.as_str(), error.to_string()));
        }
    }
}

fn pools(own: &[OfferPool], path: &Path, errors: &mut Errors) {
    if own.len() > MOST_POOLS {
        return errors.push(FieldError::too_many(path, own.len(), MOST_POOLS));
    }
    for (i, pool) in own.iter().enumerate() {
        let path = path.index(i);
        if pool.role != ANY_ROLE && !is_role_name(&pool.role) {
            let why = "must be `*`, or at most 63 small letters, digits and dashes";
            errors.push(FieldError::invalid(&path.child("role"), pool.role.as_str(), why));
        }
        if own[..i].iter().any(|other| other.role == pool.role) {
            errors.push(FieldError::duplicate(&path.child("role"), pool.role.as_str()));
        }
        amounts(&pool.capacity, &path.child("capacity"), errors);
        amounts(&pool.free, &path.child("free"), errors);
        ports(&pool.automatic_ports, &path.child("automaticPorts"), errors);
        ports(&pool.explicit_ports, &path.child("explicitPorts"), errors);
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
    fn pools_are_of_different_roles_and_have_amounts_and_ports() {
        let pool = |role: &str, free: &str| json!({"role": role, "capacity": {"cpu": "4"}, "free": {"cpu": free}, "automaticPorts": ["31500"], "explicitPorts": []});
        let offer = |pools: serde_json::Value| {
            json!({
                "apiVersion": "mainstay.dev/v1", "kind": "Offer", "metadata": {"name": "n1"},
                "spec": {
                    "free": {}, "automaticPorts": [], "explicitPorts": [], "pools": pools, "ttlSeconds": 5, "seen": "17",
                },
            })
        };
        let good = offer(json!([pool("*", "1"), pool("batch", "1500m")]));
        assert_completes::<OfferRules>(offer(json!([pool("*", "1"), pool("batch", "1.5")])), good);
        assert_refused::<OfferRules>(
            offer(json!([pool("Batch", "1"), pool("b", "-1"), pool("b", "1")])),
            &[
                "spec.pools[0].role: Invalid value: \"Batch\": must be `*`, or at most 63 small letters, digits and dashes",
                "spec.pools[1].free[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
                "spec.pools[2].role: Duplicate value: \"b\"",
            ],
        );
    }

    #[test]
    fn an_offer_of_nothing_still_says_how_long() {
        let empty = json!({"apiVersion": "mainstay.dev/v1", "kind": "Offer", "metadata": {"name": "n1"}});
        assert_refused::<OfferRules>(empty, &["spec.ttlSeconds: Invalid value: 0: must be greater than zero"]);
    }
}
