//! Options of writes that name who sets fields: `fieldManager` and `force`.

use mainstay_api::field::{Errors, FieldError, Path};

use crate::{
    http::{
        query::Query,
        status::{ApiError, ApiResult},
    },
    objects::field_tracking::MAX_NAME,
};

/// Which kind of write the options are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    Create,
    Update,
    Patch,
    Apply,
}

/// Refuses options that make no sense for a write, in upstream's words.
pub fn check(query: &Query, kind: WriteKind) -> ApiResult<()> {
    let mut errors = Errors::new();
    if kind == WriteKind::Patch && query.force.is_some() {
        errors.push(FieldError::forbidden(&Path::new("force"), "may not be specified for non-apply patch"));
    }
    let (name, path) = (query.field_manager.as_str(), Path::new("fieldManager"));
    if kind == WriteKind::Apply && name.is_empty() {
        errors.push(FieldError::required(&path, "is required for apply patch"));
    }
    if name.len() > MAX_NAME {
        errors.push(FieldError::too_long(&path, MAX_NAME));
    }
    for (at, c) in name.char_indices().filter(|(_, c)| c.is_control()) {
        let why = format!("invalid character U+{:04X} (at position {at})", u32::from(c));
        errors.push(FieldError::invalid(&path, name, why));
    }
    if errors.is_empty() {
        return Ok(());
    }
    let options = match kind {
        WriteKind::Create => "CreateOptions",
        WriteKind::Update => "UpdateOptions",
        WriteKind::Patch | WriteKind::Apply => "PatchOptions",
    };
    Err(ApiError::invalid_kind("meta.k8s.io", options, "", &errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(query: &str, kind: WriteKind) -> Option<String> {
        check(&Query::parse(query).unwrap(), kind).err().map(|error| error.message().to_owned())
    }

    #[test]
    fn an_apply_names_its_manager_and_only_an_apply_can_be_forced() {
        assert_eq!(
            refusal("", WriteKind::Apply).unwrap(),
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch"
        );
        assert_eq!(
            refusal("force=true", WriteKind::Patch).unwrap(),
            "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch"
        );
        assert_eq!(refusal("force=true&fieldManager=m", WriteKind::Apply), None);
        assert_eq!(refusal("fieldManager=m", WriteKind::Patch), None);
    }

    #[test]
    fn names_of_managers_are_short_and_printable() {
        let long = format!("fieldManager={}", "x".repeat(MAX_NAME + 1));
        assert!(refusal(&long, WriteKind::Create).unwrap().starts_with("CreateOptions.meta.k8s.io \"\" is invalid: "));
        assert!(refusal("fieldManager=a%0Ab", WriteKind::Update).unwrap().contains("invalid character U+000A"));
        assert_eq!(refusal(&long[..long.len() - 1], WriteKind::Update), None);
    }
}
