//! `metadata.name=web,status.phase!=Running`, with `\\`, `\,` and `\=` for the characters
//! themselves.

use super::SelectorError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Equals,
    NotEquals,
}

/// One requirement on one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub field: String,
    pub op: Operator,
    pub value: String,
}

/// A field selector: all of its requirements must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    requirements: Vec<Requirement>,
}

impl Fields {
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut requirements = Vec::new();
        for term in split_terms(text) {
            if term.is_empty() {
                continue;
            }
            let Some((field, op, value)) = split_term(term) else {
                return Err(SelectorError::new(format!("invalid selector: '{text}'; can't understand '{term}'")));
            };
            requirements.push(Requirement { field: field.to_owned(), op, value: unescape(value)? });
        }
        Ok(Self { requirements })
    }

    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// The one value `field` must have, if the selector says so.
    pub fn exact(&self, field: &str) -> Option<&str> {
        let mut required = self.requirements.iter().filter(|r| r.op == Operator::Equals && r.field == field);
        required.next().map(|r| r.value.as_str())
    }

    /// Whether an object whose fields are found by `field` is selected. An absent field is empty.
    pub fn matches<'a>(&self, field: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|r| {
            let equal = field(&r.field).unwrap_or_default() == r.value;
            equal == (r.op == Operator::Equals)
        })
    }
}

fn split_terms(text: &str) -> Vec<&str> {
    let (mut terms, mut start, mut escaped) = (Vec::new(), 0, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn split_term(term: &str) -> Option<(&str, Operator, &str)> {
    term.char_indices().find_map(|(i, _)| {
        let (field, rest) = term.split_at(i);
        let operators = [("!=", Operator::NotEquals), ("==", Operator::Equals), ("=", Operator::Equals)];
        operators.into_iter().find_map(|(symbol, op)| Some((field, op, rest.strip_prefix(symbol)?)))
    })
}

fn unescape(value: &str) -> Result<String, SelectorError> {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => plain.push(c),
                Some(c) => {
                    return Err(SelectorError::new(format!("invalid field selector: invalid escape sequence: \\{c}")));
                }
                None => return Err(SelectorError::new("invalid field selector: invalid escape sequence: \\")),
            },
            ',' | '=' => {
                return Err(SelectorError::new(format!("invalid field selector: unescaped character in value: {c}")));
            }
            c => plain.push(c),
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_read_in_order() {
        let fields = Fields::parse("metadata.name=web,status.phase!=Running,spec.nodeName==n1,").unwrap();
        let read: Vec<_> = fields.requirements().iter().map(|r| (r.field.as_str(), r.op, r.value.as_str())).collect();
        assert_eq!(
            read,
            [
                ("metadata.name", Operator::Equals, "web"),
                ("status.phase", Operator::NotEquals, "Running"),
                ("spec.nodeName", Operator::Equals, "n1"),
            ]
        );
        assert_eq!(fields.exact("metadata.name"), Some("web"));
        assert_eq!(fields.exact("status.phase"), None);
        assert!(Fields::parse("").unwrap().is_empty());
    }

    #[test]
    fn escapes_stand_for_the_character() {
        let fields = Fields::parse(r"a=x\,y\=z\\").unwrap();
        assert_eq!(fields.exact("a"), Some(r"x,y=z\"));
    }

    #[test]
    fn absent_fields_are_empty() {
        let fields = Fields::parse("a=,b!=x").unwrap();
        assert!(fields.matches(|_| None));
        assert!(!fields.matches(|field| (field == "b").then_some("x")));
    }

    #[test]
    fn broken_selectors_are_refused() {
        for (selector, message) in [
            ("a", "invalid selector: 'a'; can't understand 'a'"),
            ("a=b=c", "invalid field selector: unescaped character in value: ="),
            (r"a=\x", r"invalid field selector: invalid escape sequence: \x"),
            (r"a=b\", r"invalid field selector: invalid escape sequence: \"),
        ] {
            assert_eq!(Fields::parse(selector).unwrap_err().to_string(), message);
        }
    }
}
