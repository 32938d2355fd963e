//! Field paths and field errors: the vocabulary in which the API refuses an object.

use std::fmt;

use serde_json::Value;

use crate::decode::{MAX_PATH, reported_path};

/// Where in an object: `spec.containers[0].env[1].name`, `metadata.labels[app]`. Of a very long path the beginning: a key may be as long as
/// an object, and everything below it has it in its path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    /// The object itself; its children start the path.
    pub const ROOT: Path = Path(String::new());

    pub fn new(name: &str) -> Self {
        Path(name.to_owned())
    }

    pub fn child(&self, name: &str) -> Self {
        self.extended(if self.0.is_empty() { "" } else { "." }, name, "")
    }

    pub fn index(&self, index: usize) -> Self {
        self.extended("[", &index.to_string(), "]")
    }

    pub fn key(&self, key: &str) -> Self {
        self.extended("[", key, "]")
    }

    fn extended(&self, before: &str, step: &str, after: &str) -> Self {
        let parts = [&*self.0, before, step, after];
        if parts.iter().map(|part| part.len()).sum::<usize>() <= MAX_PATH {
            return Path(parts.concat());
        }
        Path(reported_path(&format_args!("{}{before}{step}{after}", self.0)))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a field is refused. The names users see are those of `metav1.CauseType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Required,
    Invalid,
    NotSupported,
    Duplicate,
    Forbidden,
    TooLong,
    TooMany,
    NotFound,
    TypeInvalid,
    Internal,
}

impl Reason {
    /// The `reason` of a cause in a `Status`.
    pub fn cause(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::NotFound => "FieldValueNotFound",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Internal => "InternalError",
        }
    }

    fn message_prefix(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::NotFound => "Not found",
            Self::Internal => "Internal error",
        }
    }
}

/// One refused field. `Display` of [`FieldError::body`] is the message of the cause; the whole
/// `Display` puts the path in front, as in the message of the `Status`.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub reason: Reason,
    pub path: Path,
    /// The refused value, where showing it helps.
    pub value: Option<Value>,
    pub detail: String,
}

/// What validation collects: the first [`Errors::MAX_KEPT`] errors within [`Errors::MAX_BYTES`], and how many more there were.
///
/// An object can be wrong in more places than anyone would read, each with the same long key in its path; its errors must
/// not take more memory than itself. The first error is always kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors {
    errors: Vec<FieldError>,
    omitted: usize,
    /// Of the texts of the errors that are kept.
    bytes: usize,
}

impl Errors {
    pub const MAX_KEPT: usize = 500;
    pub const MAX_BYTES: usize = 1 << 20;

    pub const fn new() -> Self {
        Self { errors: Vec::new(), omitted: 0, bytes: 0 }
    }

    pub fn push(&mut self, error: FieldError) {
        let bytes = self.bytes.saturating_add(error.text_size());
        if self.errors.is_empty() || self.errors.len() < Self::MAX_KEPT && bytes <= Self::MAX_BYTES {
            self.bytes = bytes;
            self.errors.push(error);
        } else {
            self.omitted += 1;
        }
    }

    pub fn append(&mut self, other: Self) {
        self.omitted += other.omitted;
        self.extend(other.errors);
    }

    /// How many there were, omitted ones included.
    pub fn len(&self) -> usize {
        self.errors.len() + self.omitted
    }

    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    pub fn omitted(&self) -> usize {
        self.omitted
    }

    pub fn iter(&self) -> std::slice::Iter<'_, FieldError> {
        self.errors.iter()
    }
}

impl Extend<FieldError> for Errors {
    fn extend<T: IntoIterator<Item = FieldError>>(&mut self, errors: T) {
        errors.into_iter().for_each(|error| self.push(error));
    }
}

impl FromIterator<FieldError> for Errors {
    fn from_iter<T: IntoIterator<Item = FieldError>>(errors: T) -> Self {
        let mut collected = Self::new();
        collected.extend(errors);
        collected
    }
}

impl From<FieldError> for Errors {
    fn from(error: FieldError) -> Self {
        Self { bytes: error.text_size(), errors: vec![error], omitted: 0 }
    }
}

impl IntoIterator for Errors {
    type Item = FieldError;
    type IntoIter = std::vec::IntoIter<FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.errors.into_iter()
    }
}

impl<'a> IntoIterator for &'a Errors {
    type Item = &'a FieldError;
    type IntoIter = std::slice::Iter<'a, FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FieldError {
    fn new(reason: Reason, path: &Path, value: Option<Value>, detail: impl Into<String>) -> Self {
        Self { reason, path: path.clone(), value, detail: detail.into() }
    }

    pub fn required(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(Reason::Required, path, None, detail)
    }

    pub fn invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(Reason::Invalid, path, Some(value.into()), detail)
    }

    pub fn type_invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(Reason::TypeInvalid, path, Some(value.into()), detail)
    }

    /// The supported values are listed in the given order (upstream sorts some sets, others not).
    pub fn not_supported(path: &Path, value: impl Into<Value>, supported: &[&str]) -> Self {
        let names: Vec<_> = supported.iter().map(|name| format!("{name:?}")).collect();
        Self::new(
            Reason::NotSupported,
            path,
            Some(value.into()),
            if names.is_empty() { String::new() } else { format!("supported values: {}", names.join(", ")) },
        )
    }

    pub fn duplicate(path: &Path, value: impl Into<Value>) -> Self {
        Self::new(Reason::Duplicate, path, Some(value.into()), "")
    }

    pub fn forbidden(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(Reason::Forbidden, path, None, detail)
    }

    pub fn not_found(path: &Path, value: impl Into<Value>) -> Self {
        Self::new(Reason::NotFound, path, Some(value.into()), "")
    }

    pub fn too_long(path: &Path, limit: usize) -> Self {
        Self::new(Reason::TooLong, path, None, format!("may not be more than {limit} bytes"))
    }

    pub fn too_many(path: &Path, actual: usize, limit: usize) -> Self {
        Self::new(Reason::TooMany, path, Some(actual.into()), format!("must have at most {limit} items"))
    }

    /// How long its text is, about.
    fn text_size(&self) -> usize {
        let value = match &self.value {
            None => 0,
            Some(Value::String(text)) => text.len(),
            Some(value @ (Value::Array(_) | Value::Object(_))) => value.to_string().len(),
            Some(_) => 8,
        };
        self.path.0.len() + value + self.detail.len()
    }

    /// The error without its path: `Invalid value: "x": must be …`.
    pub fn body(&self) -> String {
        let mut text = self.reason.message_prefix().to_owned();
        if let Some(value) = &self.value {
            text.push_str(": ");
            text.push_str(&value.to_string());
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.0.is_empty() { f.write_str(&self.body()) } else { write!(f, "{}: {}", self.path, self.body()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_very_many_errors_the_first_are_kept_and_the_rest_counted() {
        let mut errors = Errors::new();
        let path = Path::new("spec").child("containers");
        errors.extend((0..900_000).map(|n| FieldError::required(&path.index(n), "")));
        assert_eq!((errors.iter().count(), errors.omitted(), errors.len()), (500, 899_500, 900_000));
        let mut both = Errors::from(FieldError::required(&path, ""));
        both.append(errors);
        assert_eq!((both.iter().count(), both.len()), (500, 900_001));
    }

    #[test]
    fn of_very_long_errors_the_first_are_kept_and_the_rest_counted() {
        let (path, detail) = (Path::new("spec"), "k".repeat(400_000));
        let errors: Errors = (0..100).map(|n| FieldError::required(&path.index(n), &*detail)).collect();
        assert_eq!((errors.iter().count(), errors.len()), (2, 100));
        let longer = FieldError::invalid(&path, "v".repeat(Errors::MAX_BYTES), "");
        let errors: Errors = [longer.clone(), longer].into_iter().collect();
        assert_eq!((errors.iter().count(), errors.len()), (1, 2), "one says what is wrong");
    }

    #[test]
    fn of_a_very_long_path_the_beginning_is_kept() {
        let key = Path::new("spec").key(&"k".repeat(400_000));
        for path in [key.clone(), key.index(1), key.child("a").key("b")] {
            assert_eq!(path, key);
            assert_eq!(path.to_string(), format!("spec[{}…", "k".repeat(MAX_PATH - 5)));
        }
    }

    #[test]
    fn errors_read_as_upstream_writes_them() {
        let path = Path::new("spec").child("containers").index(0);
        let cases = [
            (FieldError::required(&path.child("name"), ""), "spec.containers[0].name: Required value"),
            (
                FieldError::invalid(&path.child("name"), "A_b", "must be lower case"),
                r#"spec.containers[0].name: Invalid value: "A_b": must be lower case"#,
            ),
            (
                FieldError::not_supported(&path.child("imagePullPolicy"), "x", &["Always", "Never"]),
                r#"spec.containers[0].imagePullPolicy: Unsupported value: "x": supported values: "Always", "Never""#,
            ),
            (FieldError::duplicate(&path.child("name"), "a"), r#"spec.containers[0].name: Duplicate value: "a""#),
            (FieldError::forbidden(&Path::new("spec"), "may not change"), "spec: Forbidden: may not change"),
            (
                FieldError::too_long(&Path::new("metadata").child("annotations"), 262_144),
                "metadata.annotations: Too long: may not be more than 262144 bytes",
            ),
            (
                FieldError::invalid(&Path::new("metadata").child("labels").key("a"), 5, ""),
                "metadata.labels[a]: Invalid value: 5",
            ),
        ];
        for (error, expected) in cases {
            assert_eq!(error.to_string(), expected);
        }
    }
}
