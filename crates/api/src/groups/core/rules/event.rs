//! Events: in the namespace of what they are about; complete if they come through the newer API.

use k8s_openapi::api::core::v1::Event;

use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{check::text, names},
    wellknown,
};

const NAME_MAX: usize = 128;
const NOTE_MAX: usize = 1024;

/// The kind `Event`.
pub struct EventRules;

impl Rules for EventRules {
    type Object = Event;

    fn default(_: &mut Event) {}

    fn validate(event: &Event, errors: &mut Errors) {
        let (namespace, about) = (text(&event.metadata.namespace), text(&event.involved_object.namespace));
        // What belongs to no namespace is reported in the default one.
        let fits =
            if about.is_empty() { matches!(namespace, "" | wellknown::namespace::DEFAULT) } else { namespace == about };
        if !fits {
            let at = Path::new("involvedObject").child("namespace");
            errors.push(FieldError::invalid(&at, about, "does not match event.namespace"));
        }
    }

    fn validate_create(event: &Event, errors: &mut Errors) {
        if event.event_time.is_none() {
            return;
        }
        let controller = text(&event.reporting_component);
        names::require(controller, &Path::new("reportingComponent"), names::qualified_name, errors);
        for (field, value) in
            [("reportingInstance", &event.reporting_instance), ("action", &event.action), ("reason", &event.reason)]
        {
            let path = Path::new(field);
            match text(value) {
                "" => errors.push(FieldError::required(&path, "")),
                value => at_most(value, NAME_MAX, &path, errors),
            }
        }
        at_most(text(&event.message), NOTE_MAX, &Path::new("message"), errors);
    }
}

fn at_most(value: &str, length: usize, path: &Path, errors: &mut Errors) {
    if value.len() > length {
        errors.push(FieldError::invalid(path, "", format!("can have at most {length} characters")));
    }
}
