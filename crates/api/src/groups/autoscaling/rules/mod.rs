//! The `autoscaling` group, in both versions it is served in.

mod behavior;
mod metrics;
mod v1;
mod v2;

pub use v1::HorizontalPodAutoscalerV1Rules;
pub use v2::HorizontalPodAutoscalerV2Rules;

use crate::{
    field::{Errors, FieldError, Path},
    validation::names,
};

/// What both versions say in the same words.
fn validate_bounds(min: Option<i32>, max: i32, path: &Path, errors: &mut Errors) {
    let at = path.child("maxReplicas");
    if let Some(min) = min.filter(|min| *min < 1) {
        errors.push(FieldError::invalid(&path.child("minReplicas"), min, "must be greater than or equal to 1"));
    }
    if max < 1 {
        errors.push(FieldError::invalid(&at, max, "must be greater than 0"));
    }
    if min.is_some_and(|min| max < min) {
        errors.push(FieldError::invalid(&at, max, "must be greater than or equal to `minReplicas`"));
    }
}

fn validate_target(kind: &str, name: &str, path: &Path, errors: &mut Errors) {
    names::require(kind, &path.child("kind"), names::path_segment_name, errors);
    names::require(name, &path.child("name"), names::path_segment_name, errors);
}
