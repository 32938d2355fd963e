//! ServiceCIDR: a range that services take their addresses from.

use k8s_openapi::api::networking::v1::ServiceCIDR;

use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{IMMUTABLE, list, shown},
        names,
    },
};

pub struct ServiceCIDRRules;

fn ranges(object: &ServiceCIDR) -> &[String] {
    object.spec.as_ref().map_or(&[], |spec| list(&spec.cidrs))
}

impl Rules for ServiceCIDRRules {
    type Object = ServiceCIDR;

    fn default(_: &mut ServiceCIDR) {}

    fn prepare_create(object: &mut ServiceCIDR) {
        object.status = Some(Default::default());
    }

    fn validate(object: &ServiceCIDR, errors: &mut Errors) {
        let (ranges, path) = (ranges(object), Path::new("spec").child("cidrs"));
        if ranges.is_empty() {
            errors.push(FieldError::required(&path, "at least one CIDR required"));
        } else if ranges.len() > 2 {
            errors.push(FieldError::too_many(&path, ranges.len(), 2));
        } else {
            for (i, range) in ranges.iter().enumerate() {
                names::refuse(range, &path.index(i), names::cidr, errors);
            }
            let families: Vec<_> =
                ranges.iter().filter_map(|range| names::parse_cidr(range)).map(|(ip, _)| ip.is_ipv4()).collect();
            if matches!(families[..], [one, other] if one == other) {
                let words = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
                errors.push(FieldError::invalid(&path, shown(&ranges), words));
            }
        }
    }

    /// A second family may be added, once.
    fn validate_update(object: &ServiceCIDR, old: &ServiceCIDR, errors: &mut Errors) {
        let (new, old, path) = (ranges(object), ranges(old), Path::new("spec").child("cidrs"));
        if new.len() != old.len() && (old.len(), new.len()) != (1, 2) {
            errors.push(FieldError::invalid(&path, shown(&new), IMMUTABLE));
            return;
        }
        for (i, (new, _)) in new.iter().zip(old).enumerate().filter(|(_, (new, old))| new != old) {
            errors.push(FieldError::invalid(&path.index(i), new.as_str(), IMMUTABLE));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_refused, assert_update};

    fn cidr(ranges: Value) -> Value {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"}, "spec": {"cidrs": ranges}})
    }

    #[test]
    fn one_range_per_family() {
        assert_refused::<ServiceCIDRRules>(
            cidr(json!([])),
            &["spec.cidrs: Required value: at least one CIDR required"],
        );
        assert_refused::<ServiceCIDRRules>(
            cidr(json!(["10.0.0.0/24", "10.0.1.0/24"])),
            &[
                r#"spec.cidrs: Invalid value: ["10.0.0.0/24","10.0.1.0/24"]: may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"#,
            ],
        );
        let base = cidr(json!(["10.0.0.0/24"]));
        assert_update::<ServiceCIDRRules>(&base, json!({"spec": {"cidrs": ["10.0.0.0/24", "fd00::/112"]}}), &[]);
        assert_update::<ServiceCIDRRules>(
            &base,
            json!({"spec": {"cidrs": ["10.0.1.0/24"]}}),
            &[r#"spec.cidrs[0]: Invalid value: "10.0.1.0/24": field is immutable"#],
        );
    }
}
