//! Expands `$(NAME)` in values, commands, arguments and paths.

/// Replaces each `$(NAME)` that `lookup` knows. What it does not know stays as it is, and so does a
/// reference that is not closed; `$$` is a plain dollar, so `$$(NAME)` is never replaced.
pub fn expand<'a>(text: &str, mut lookup: impl FnMut(&str) -> Option<&'a str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(value),
                None => out.extend(["$(", name, ")"]),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn references_are_replaced_as_users_know_it() {
        let known = BTreeMap::from([("VAR_A", "A"), ("VAR_EMPTY", ""), ("VAR_REF", "$(VAR_A)"), ("(X", "odd")]);
        for (text, expected) in [
            ("$(VAR_A)", "A"),
            ("___$(VAR_A)___", "___A___"),
            ("$$(VAR_A)", "$(VAR_A)"),
            ("$$$(VAR_A)", "$A"),
            ("$$$$(VAR_A)", "$$(VAR_A)"),
            ("$(VAR_EMPTY)x", "x"),
            ("$(VAR_REF)", "$(VAR_A)"), // not looked at again
            ("$(NOBODY)", "$(NOBODY)"),
            ("$(VAR_A", "$(VAR_A"),
            ("$VAR_A)", "$VAR_A)"),
            ("$((X)", "odd"),
            ("${VAR_A}", "${VAR_A}"),
            ("cost: 5$", "cost: 5$"),
            ("$ä$(VAR_A)", "$äA"),
            ("$()", "$()"),
            ("", ""),
        ] {
            assert_eq!(expand(text, |name| known.get(name).copied()), expected, "{text}");
        }
    }

    /// One character at a time, as the rules are told.
    fn model(text: &[char], known: &BTreeMap<String, String>) -> String {
        match text {
            [] => String::new(),
            ['$', '$', rest @ ..] => format!("${}", model(rest, known)),
            ['$', '(', rest @ ..] if rest.contains(&')') => {
                let end = rest.iter().position(|c| *c == ')').unwrap();
                let name: String = rest[..end].iter().collect();
                let value = known.get(&name).cloned().unwrap_or_else(|| format!("$({name})"));
                value + &model(&rest[end + 1..], known)
            }
            [first, rest @ ..] => format!("{first}{}", model(rest, known)),
        }
    }

    proptest! {
        #[test]
        fn any_text_expands_as_in_the_model(
            text in "[$()ABä ]{0,24}",
            known in proptest::collection::btree_map("[AB(]{0,2}", "[$()AB]{0,4}", 0..4),
        ) {
            let chars: Vec<char> = text.chars().collect();
            prop_assert_eq!(expand(&text, |name| known.get(name).map(String::as_str)), model(&chars, &known));
        }
    }
}
