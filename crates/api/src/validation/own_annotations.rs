//! Annotations of our own that are checked wherever they are written: on a pod, on a template of pods, on their owner.

use crate::{
    config_versions::{self, ConfigVersions},
    exclusive,
    field::{Errors, FieldError, Path},
    heal, needs,
};

pub fn check<'a>(annotations: impl Iterator<Item = (&'a str, &'a str)>, path: &Path, errors: &mut Errors) {
    for (key, value) in annotations {
        let error = match key {
            heal::ANNOTATION => heal::Policy::parse(value).err().map(|error| error.to_string()),
            needs::ANNOTATION => value.parse::<needs::Needs>().err().map(|error| error.to_string()),
            config_versions::ANNOTATION
            | config_versions::ROLLED_OUT_ANNOTATION
            | config_versions::LAST_GOOD_ANNOTATION => {
                value.parse::<ConfigVersions>().err().map(|error| error.to_string())
            }
            config_versions::ROLLOUT_ANNOTATION if value != config_versions::BUDGETED => {
                Some(format!("must be {:?}", config_versions::BUDGETED))
            }
            config_versions::PROGRESS_DEADLINE_ANNOTATION => config_versions::parse_progress_deadline(value).err(),
            exclusive::ANNOTATION => exclusive::validate(value).err(),
            _ => None,
        };
        if let Some(error) = error {
            errors.push(FieldError::invalid(&path.key(key), value, error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(key: &str, value: &str) -> Vec<String> {
        let mut errors = Errors::new();
        let annotations = [("other", "x"), (key, value)];
        check(annotations.into_iter(), &Path::new("metadata").child("annotations"), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_bad_policy_is_refused_by_the_name_of_its_annotation() {
        assert_eq!(
            messages(heal::ANNOTATION, "hold=forever"),
            [
                "metadata.annotations[mainstay.dev/heal]: Invalid value: \"hold=forever\": hold=forever is not understood: \
             hold must be a time such as 30s, 10m or 1h, at most 168h"
            ]
        );
        assert!(messages(heal::ANNOTATION, "hold=30s").is_empty());
    }

    #[test]
    fn a_bad_need_is_refused_by_the_name_of_its_annotation() {
        assert_eq!(
            messages(needs::ANNOTATION, "mysql >= 0"),
            [
                "metadata.annotations[mainstay.dev/needs]: Invalid value: \"mysql >= 0\": \"mysql >= 0\": the number must be \
             from 1 to 10000"
            ]
        );
        assert!(messages(needs::ANNOTATION, "mysql >= 1").is_empty());
    }
    #[test]
    fn the_annotations_of_rollouts_and_drains_have_few_values() {
        for (key, good, bad) in [
            (config_versions::ROLLOUT_ANNOTATION, "budgeted", "Budgeted"),
            (config_versions::PROGRESS_DEADLINE_ANNOTATION, "600", "10m"),
            (config_versions::PROGRESS_DEADLINE_ANNOTATION, "1", "0"),
            (exclusive::ANNOTATION, "drain", "start"),
            (config_versions::ANNOTATION, "{\"secret/a\": \"a-0123456789abcdef\"}", "{\"secret/a\": \"other\"}"),
        ] {
            assert!(messages(key, good).is_empty(), "{key}");
            let refused = messages(key, bad);
            assert_eq!(refused.len(), 1, "{key}");
            assert!(refused[0].starts_with(&format!("metadata.annotations[{key}]: Invalid value: ")), "{refused:?}");
        }
    }
}
