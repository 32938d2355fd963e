//! `app=web,tier in (a,b),!legacy`.

use std::fmt;

use serde_json::Value;

use super::{SelectorError, parse::Parser};
use crate::{
    matching::Operator,
    validation::names::{label_value, qualified_name},
};

/// How a [`Term`] relates a label's value to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    Equals,
    NotEquals,
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

/// One requirement on one label. Values are sorted and distinct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    pub key: String,
    pub relation: Relation,
    pub values: Vec<String>,
}

/// A label selector: all of its terms must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    terms: Vec<Term>,
    /// An absent `LabelSelector` selects nothing, an empty one everything.
    nothing: bool,
}

impl Labels {
    /// Selects every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Selects no object.
    pub fn nothing() -> Self {
        Self { terms: Vec::new(), nothing: true }
    }

    /// The form of `?labelSelector=` and `kubectl -l`. An empty string selects everything.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut terms = Parser::new(text).selector()?;
        terms.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { terms, nothing: false })
    }

    /// A `metav1.LabelSelector` as found in specs.
    pub fn from_selector(selector: &Value) -> Result<Self, SelectorError> {
        let Some(selector) = selector.as_object() else { return Ok(Self::nothing()) };
        let mut terms = Vec::new();
        for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            let value = value.as_str().unwrap_or_default().to_owned();
            terms.push(Term::new(key.clone(), Relation::Equals, vec![value])?);
        }
        for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let text = |name| expression.get(name).and_then(Value::as_str).unwrap_or_default();
            let relation = match text("operator") {
                "In" => Relation::In,
                "NotIn" => Relation::NotIn,
                "Exists" => Relation::Exists,
                "DoesNotExist" => Relation::DoesNotExist,
                other => return Err(SelectorError::new(format!("{other:?} is not a valid label selector operator"))),
            };
            let values = expression.get("values").and_then(Value::as_array);
            let values = values.into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect();
            terms.push(Term::new(text("key").to_owned(), relation, values)?);
        }
        terms.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { terms, nothing: false })
    }

    /// A plain map of labels, as in `Service.spec.selector`: each must be equal.
    pub fn from_map(labels: &Value) -> Self {
        let terms = labels.as_object().into_iter().flatten().map(|(key, value)| Term {
            key: key.clone(),
            relation: Relation::Equals,
            values: vec![value.as_str().unwrap_or_default().to_owned()],
        });
        Self { terms: terms.collect(), nothing: false }
    }

    /// Whether the selector asks for nothing in particular, so that every object matches.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty() && !self.nothing
    }

    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Whether an object whose labels are found by `label` is selected.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.terms.iter().all(|term| term.matches(label(&term.key)))
    }

    /// [`Labels::matches`] for an object's `metadata.labels`.
    pub fn matches_map(&self, labels: Option<&Value>) -> bool {
        self.matches(|key| labels?.get(key)?.as_str())
    }
}

impl Term {
    pub(super) fn new(key: String, relation: Relation, mut values: Vec<String>) -> Result<Self, SelectorError> {
        let invalid = |path: &str, value: &str, detail: &str| {
            Err(SelectorError::new(format!("{path}: Invalid value: {value}: {detail}")))
        };
        let errors = qualified_name(&key);
        if !errors.is_empty() {
            return invalid("key", &format!("{key:?}"), &errors.join("; "));
        }
        values.sort();
        values.dedup();
        let shown = || serde_json::to_string(&values).unwrap_or_default();
        match relation {
            Relation::In | Relation::NotIn if values.is_empty() => {
                return invalid("values", &shown(), "for 'in', 'notin' operators, values set can't be empty");
            }
            Relation::Equals | Relation::NotEquals if values.len() != 1 => {
                return invalid("values", &shown(), "exact-match compatibility requires one single value");
            }
            Relation::Exists | Relation::DoesNotExist if !values.is_empty() => {
                return invalid("values", &shown(), "values set must be empty for exists and does not exist");
            }
            Relation::GreaterThan | Relation::LessThan if values.len() != 1 => {
                return invalid("values", &shown(), "for 'Gt', 'Lt' operators, exactly one value is required");
            }
            Relation::GreaterThan | Relation::LessThan if values[0].parse::<i64>().is_err() => {
                let value = format!("{:?}", values[0]);
                return invalid("values[0]", &value, "for 'Gt', 'Lt' operators, the value must be an integer");
            }
            _ => {}
        }
        for (i, value) in values.iter().enumerate() {
            let errors = label_value(value);
            if !errors.is_empty() {
                return invalid(&format!("values[{i}][{key}]"), &format!("{value:?}"), &errors.join("; "));
            }
        }
        Ok(Self { key, relation, values })
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let operator = match self.relation {
            Relation::Equals | Relation::In => Operator::In,
            Relation::NotEquals | Relation::NotIn => Operator::NotIn,
            Relation::Exists => Operator::Exists,
            Relation::DoesNotExist => Operator::DoesNotExist,
            Relation::GreaterThan => Operator::Gt,
            Relation::LessThan => Operator::Lt,
        };
        operator.admits(&self.values, value)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, values) = (&self.key, self.values.join(","));
        match self.relation {
            Relation::Equals => write!(f, "{key}={values}"),
            Relation::NotEquals => write!(f, "{key}!={values}"),
            Relation::In => write!(f, "{key} in ({values})"),
            Relation::NotIn => write!(f, "{key} notin ({values})"),
            Relation::Exists => write!(f, "{key}"),
            Relation::DoesNotExist => write!(f, "!{key}"),
            Relation::GreaterThan => write!(f, "{key}>{values}"),
            Relation::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.terms.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{term}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selects(selector: &str, labels: &Value) -> bool {
        Labels::parse(selector).unwrap().matches(|key| labels.get(key)?.as_str())
    }

    #[test]
    fn each_form_of_requirement_selects_what_it_says() {
        let labels = json!({"app": "web", "tier": "front", "size": "12", "empty": "", "in": "x"});
        for selector in [
            "",
            " ",
            "app",
            "!legacy",
            "app=web",
            "app==web",
            "app = web",
            "app!=db",
            "legacy!=x",
            "app in (web)",
            "app in (db, web)",
            "app notin (db)",
            "legacy notin (a,b)",
            "size>11",
            "size<13",
            "app=web,tier=front",
            "empty=",
            "empty",
            "in=x",
            "in in (x)",
            "empty in (,a)",
            "app=web, !legacy, tier in (front,back)",
            "empty in (a,)",
            "app\tin\n(web)",
        ] {
            assert!(selects(selector, &labels), "{selector:?}");
        }
        for selector in [
            "legacy",
            "!app",
            "app=db",
            "app!=web",
            "app in (db)",
            "app notin (web,x)",
            "size>12",
            "size<12",
            "app>1",
            "legacy>1",
            "app=web,tier=back",
            "app=",
            "legacy in (a)",
        ] {
            assert!(!selects(selector, &labels), "{selector:?}");
        }
    }

    #[test]
    fn broken_selectors_are_refused_with_the_apis_messages() {
        for (selector, message) in [
            ("=web", "found '=', expected: !, identifier, or 'end of string'"),
            ("app=web,", "found '', expected: identifier after ','"),
            ("app=web,,", "found ',', expected: identifier after ','"),
            ("app=web x", "found 'x', expected: ',' or 'end of string'"),
            ("app web", "unable to parse requirement: found 'web', expected: in, notin, =, ==, !=, gt, lt"),
            ("app in web", "unable to parse requirement: found 'web' expected: '('"),
            ("app in (web", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("app=(", "unable to parse requirement: found '(', expected: identifier"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
            (
                "app in ()",
                "unable to parse requirement: values: Invalid value: []: for 'in', 'notin' operators, values set \
                 can't be empty",
            ),
            (
                "size>big",
                "unable to parse requirement: values[0]: Invalid value: \"big\": for 'Gt', 'Lt' operators, the \
                 value must be an integer",
            ),
        ] {
            assert_eq!(Labels::parse(selector).unwrap_err().to_string(), message, "{selector:?}");
        }
        let bad_key = Labels::parse("a/b/c=d").unwrap_err().to_string();
        assert!(bad_key.starts_with("unable to parse requirement: <nil>: Invalid value: \"a/b/c\": a qualified name"));
        let bad_value = Labels::parse("app=-x").unwrap_err().to_string();
        assert!(
            bad_value.starts_with(
                "unable to parse requirement: values[0][app]: Invalid value: \"-x\": a valid label must be"
            )
        );
    }

    #[test]
    fn a_label_selector_object_reads_like_the_string_form() {
        let selector = json!({
            "matchLabels": {"app": "web"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["b", "a"]},
                {"key": "legacy", "operator": "DoesNotExist"},
            ],
        });
        let labels = Labels::from_selector(&selector).unwrap();
        assert_eq!(labels.to_string(), "app=web,!legacy,tier in (a,b)");
        assert!(labels.matches_map(Some(&json!({"app": "web", "tier": "a"}))));
        assert!(!labels.matches_map(Some(&json!({"app": "web", "tier": "c"}))));
        let error =
            Labels::from_selector(&json!({"matchExpressions": [{"key": "a", "operator": "Near"}]})).unwrap_err();
        assert_eq!(error.to_string(), "\"Near\" is not a valid label selector operator");
    }

    #[test]
    fn an_absent_selector_selects_nothing_and_an_empty_one_everything() {
        assert!(!Labels::from_selector(&Value::Null).unwrap().matches_map(None));
        let empty = Labels::from_selector(&json!({})).unwrap();
        assert!(empty.is_empty() && empty.matches_map(None));
        assert!(!Labels::nothing().is_empty());
    }
}
