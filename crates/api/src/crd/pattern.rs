//! Regular expressions of schemas: written in Go's syntax (RE2), run by the `regex` crate.
//!
//! Both are free of backtracking, so that no pattern takes more than linear time. They differ in details, which
//! [`translate`] evens out: Go's `\d`, `\w`, `\s` and `\b` know ASCII only, a brace that begins no repetition stands for itself, and
//! a character class has no nested classes and no set operations.
//!
//! Schemas repeat the same few patterns many times over, so that compiled ones are shared by all who use them.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError, Weak},
};

use regex::{Regex, RegexBuilder};

/// Most memory that one compiled pattern may take.
const SIZE_LIMIT: usize = 2 << 20;

type Shared = Mutex<HashMap<Box<str>, Weak<Regex>>>;

static SHARED: LazyLock<Shared> = LazyLock::new(Shared::default);

/// Compiles a pattern, or takes the one that somebody else compiled.
pub fn compile(pattern: &str) -> Result<Arc<Regex>, String> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = shared.get(pattern).and_then(Weak::upgrade) {
        return Ok(known);
    }
    let compiled = RegexBuilder::new(&translate(pattern)).size_limit(SIZE_LIMIT).build();
    let compiled = Arc::new(compiled.map_err(|error| error.to_string())?);
    if shared.len() >= 1024 {
        shared.retain(|_, known| known.strong_count() > 0);
    }
    shared.insert(pattern.into(), Arc::downgrade(&compiled));
    Ok(compiled)
}

/// The pattern as the `regex` crate reads it.
fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    let mut in_class = false;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => {
                let Some(escaped) = rest.chars().next() else {
                    out.push('\\');
                    break;
                };
                rest = &rest[escaped.len_utf8()..];
                if escaped == 'Q' && !in_class {
                    let end = rest.find("\\E").unwrap_or(rest.len());
                    out.push_str(&regex::escape(&rest[..end]));
                    rest = rest[end..].strip_prefix("\\E").unwrap_or(&rest[end..]);
                } else {
                    push_escape(&mut out, escaped, in_class);
                }
            }
            '[' if !in_class => {
                in_class = true;
                out.push('[');
                if let Some(after) = rest.strip_prefix('^') {
                    out.push('^');
                    rest = after;
                }
                // A bracket that comes first stands for itself.
                if let Some(after) = rest.strip_prefix(']') {
                    out.push_str("\\]");
                    rest = after;
                }
            }
            '[' => match rest.strip_prefix(':').and_then(|named| named.find(":]")) {
                Some(end) => {
                    let named = &rest[..end + 3];
                    out.push('[');
                    out.push_str(named);
                    rest = &rest[named.len()..];
                }
                None => out.push_str("\\["),
            },
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(c);
            }
            '-' if in_class && rest.starts_with('-') => out.push_str("\\-"),
            '{' if !in_class && !begins_repetition(rest) => out.push_str("\\{"),
            _ => out.push(c),
        }
    }
    out
}

fn push_escape(out: &mut String, escaped: char, in_class: bool) {
    let ascii = match (escaped, in_class) {
        ('d', true) => "0-9",
        ('d', false) => "[0-9]",
        ('D', _) => "[^0-9]",
        ('w', true) => "0-9A-Za-z_",
        ('w', false) => "[0-9A-Za-z_]",
        ('W', _) => "[^0-9A-Za-z_]",
        ('s', true) => r"\t\n\f\r ",
        ('s', false) => r"[\t\n\f\r ]",
        ('S', _) => r"[^\t\n\f\r ]",
        ('b', false) => r"(?-u:\b)",
        ('B', false) => r"(?-u:\B)",
        ('<' | '>' | '/' | '_', _) => {
            out.push(escaped);
            return;
        }
        _ => {
            out.push('\\');
            out.push(escaped);
            return;
        }
    };
    out.push_str(ascii);
}

/// Whether what follows a brace makes it `{2}`, `{2,}` or `{2,5}`.
fn begins_repetition(rest: &str) -> bool {
    let Some((inside, _)) = rest.split_once('}') else { return false };
    let (low, high) = inside.split_once(',').unwrap_or((inside, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    !low.is_empty() && digits(low) && digits(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_in_go() {
        let cases = [
            (r"^\d+$", "12", true),
            (r"^\d+$", "١٢", false), // digits, but not ASCII
            (r"^[\w.-]+$", "a_b.c-d", true),
            (r"^[\w]$", "é", false),
            (r"^a{$", "a{", true),
            (r"^a{2}$", "aa", true),
            (r"^[[]$", "[", true),
            (r"^[^]a]$", "b", true),
            (r"^[a&&b]+$", "a&b", true),
            (r"^[[:alpha:]]+$", "abc", true),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"^https?:\/\/x$", "https://x", true),
            (r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", "a.b-c", true),
            (r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$", "1h30m", true),
            (r"^(\d+|(\d*\.\d+))$", ".5", true),
        ];
        for (pattern, text, expected) in cases {
            let compiled = compile(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            assert_eq!(compiled.is_match(text), expected, "{pattern} {text:?}");
        }
    }

    #[test]
    fn what_is_no_pattern_or_would_be_huge_is_refused() {
        for pattern in ["(", "a**b(", r"(?P<n", "((a{1000}){1000}){1000}", "(?=a)"] {
            assert!(compile(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn equal_patterns_are_compiled_once() {
        let first = compile("^shared-[a-z]+$").unwrap();
        assert!(Arc::ptr_eq(&first, &compile("^shared-[a-z]+$").unwrap()));
    }
}
