//! The annotation that says how pods are healed, wherever it is written: on a pod, on a template of pods, on
//! their owner.

use crate::{
    field::{Errors, FieldError, Path},
    heal::{ANNOTATION, Policy},
};

pub fn check<'a>(annotations: impl Iterator<Item = (&'a str, &'a str)>, path: &Path, errors: &mut Errors) {
    for (_, value) in annotations.filter(|(key, _)| *key == ANNOTATION) {
        if let Err(error) = Policy::parse(value) {
            errors.push(FieldError::invalid(&path.key(ANNOTATION), value, error.to_string()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_policy_is_refused_by_the_name_of_its_annotation() {
        let mut errors = Errors::new();
        let annotations = [("other", "x"), (ANNOTATION, "hold=forever")];
        check(annotations.into_iter(), &Path::new("metadata").child("annotations"), &mut errors);
        let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "metadata.annotations[mainstay.dev/heal]: Invalid value: \"hold=forever\": hold=forever is not understood: \
             hold must be a time such as 30s, 10m or 1h, at most 168h"
            ]
        );
        let mut errors = Errors::new();
        check([(ANNOTATION, "hold=30s")].into_iter(), &Path::new("metadata"), &mut errors);
        assert!(errors.is_empty());
    }
}
