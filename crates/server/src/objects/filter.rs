//! Label and field selectors of one request, resolved against one kind.

use std::sync::Arc;

use mainstay_api::{
    descriptor::Descriptor,
    selector::{Fields, Labels, Operator},
};
use mainstay_store::{Entry, IndexMatch, WatchIndex};

use crate::{
    http::{
        query::Query,
        status::{ApiError, ApiResult},
    },
    objects::{keys, object},
};

pub struct Filter {
    labels: Labels,
    fields: Vec<FieldRequirement>,
}

struct FieldRequirement {
    subject: Subject,
    operator: Operator,
    value: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Name,
    Namespace,
    /// Index into the descriptor's selectable fields.
    Field(usize),
}

impl Filter {
    pub fn parse(d: &Descriptor, query: &Query) -> ApiResult<Self> {
        let labels = Labels::parse(&query.label_selector).map_err(|e| ApiError::bad_request(e.to_string()))?;
        let fields = Fields::parse(&query.field_selector).map_err(|e| ApiError::bad_request(e.to_string()))?;
        let fields = fields.requirements().iter().map(|requirement| {
            let subject = subject(d, &requirement.field)?;
            Ok(FieldRequirement { subject, operator: requirement.op, value: requirement.value.clone() })
        });
        Ok(Self { labels, fields: fields.collect::<ApiResult<_>>()? })
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The one name that can match, if the selector pins it.
    pub fn exact_name(&self) -> Option<&str> {
        let mut pinned = self.fields.iter().filter(|t| t.subject == Subject::Name && t.operator == Operator::Equals);
        pinned.next().map(|test| test.value.as_str())
    }

    /// The part of a collection that holds all that can match, if a field's value makes one.
    pub fn part(&self, d: &Arc<Descriptor>) -> Option<IndexMatch> {
        let pinned = self.fields.iter().find_map(|test| match (test.subject, test.operator) {
            (Subject::Field(index), Operator::Equals) => Some((index, test.value.as_str())),
            _ => None,
        });
        // Where objects are stored in another form, looking at one means converting it.
        let (index, value) = pinned.filter(|_| d.conversion.is_none() && d.custom.is_none())?;
        Some(IndexMatch { index: Arc::new(Field { d: d.clone(), index }), value: value.into() })
    }

    pub fn matches(&self, d: &Descriptor, entry: &Entry) -> bool {
        if self.is_empty() {
            return true;
        }
        let (namespace, name) = keys::names(d, &entry.key);
        let by_key = |test: &FieldRequirement| match test.subject {
            Subject::Name => test.matches_value(name),
            Subject::Namespace => test.matches_value(namespace.unwrap_or_default()),
            Subject::Field(_) => true,
        };
        if !self.fields.iter().all(by_key) {
            return false;
        }
        let only_keys = !self.fields.iter().any(|t| matches!(t.subject, Subject::Field(_)));
        if self.labels.is_empty() && only_keys {
            return true;
        }
        let matched = object::with_selector_fields(d, entry, |fields| {
            let by_field = |test: &FieldRequirement| match test.subject {
                Subject::Field(index) => test.matches_value(fields.fields.get(index).map_or("", |v| v)),
                Subject::Name | Subject::Namespace => true,
            };
            self.labels.matches(|key| fields.label(key)) && self.fields.iter().all(by_field)
        });
        matched.unwrap_or(true) // cannot be parsed: whoever encodes it reports that
    }
}

/// A selectable field of a kind that is stored as it is served.
struct Field {
    d: Arc<Descriptor>,
    index: usize,
}

impl WatchIndex for Field {
    fn name(&self) -> &str {
        &self.d.selectable[self.index].label
    }

    fn value<'a>(&self, entry: &'a Entry) -> &'a str {
        object::selector_fields(&self.d, entry).fields.get(self.index).map_or("", |value| value)
    }
}

impl FieldRequirement {
    fn matches_value(&self, actual: &str) -> bool {
        match self.operator {
            Operator::Equals => actual == self.value,
            Operator::NotEquals => actual != self.value,
        }
    }
}

fn subject(d: &Descriptor, field: &str) -> ApiResult<Subject> {
    match field {
        "metadata.name" => Ok(Subject::Name),
        "metadata.namespace" => Ok(Subject::Namespace),
        other => match d.selectable.iter().position(|s| s.label == other) {
            Some(index) => Ok(Subject::Field(index)),
            None if d.selectable.is_empty() => Err(ApiError::bad_request(format!(
                "{other:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
            ))),
            None => Err(ApiError::bad_request(format!("field label not supported: {other}"))),
        },
    }
}
