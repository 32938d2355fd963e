//! Command lines of units: prefixes, quoting and variables as systemd reads them.

use std::collections::BTreeMap;

/// The arguments of one command, and what its prefix said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    pub arguments: Vec<String>,
    /// `-`: a failure counts as success.
    pub may_fail: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    #[error("a quote is not closed")]
    OpenQuote,
    #[error("there is no program")]
    Empty,
}

impl CommandLine {
    pub fn parse(text: &str) -> Result<Self, CommandError> {
        let program = text.trim_start_matches(['-', '@', '+', '!', ':']);
        let prefix = &text[..text.len() - program.len()];
        let arguments = split(program)?;
        if arguments.is_empty() {
            return Err(CommandError::Empty);
        }
        Ok(Self { arguments, may_fail: prefix.contains('-') })
    }

    /// The name of the program without its directory.
    pub fn program(&self) -> &str {
        self.arguments.first().map_or("", |program| program.rsplit('/').next().unwrap_or(program))
    }
}

/// Words, by white space outside quotes. Backslashes have the meaning that they have in C for what units use.
pub fn split(text: &str) -> Result<Vec<String>, CommandError> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None::<char>);
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, _) if character.is_whitespace() => words.extend(word.take()),
            (_, '\\') => {
                let escaped = characters.next().map(|escaped| match escaped {
                    'n' => '\n',
                    't' => '\t',
                    's' => ' ',
                    other => other,
                });
                word.get_or_insert_default().extend(escaped);
            }
            _ => word.get_or_insert_default().push(character),
        }
    }
    if quote.is_some() {
        return Err(CommandError::OpenQuote);
    }
    words.extend(word);
    Ok(words)
}

/// Replaces `${NAME}`, and `$NAME` where it is the whole word, by the unit's own environment. Names that it does not have become
/// `$(NAME)`, which Kubernetes replaces by the container's environment, and are returned.
pub fn substitute(words: Vec<String>, environment: &BTreeMap<String, String>) -> (Vec<String>, Vec<String>) {
    let mut missing = Vec::new();
    let mut look_up = |name: &str| match environment.get(name) {
        Some(value) => value.clone(),
        None => {
            missing.push(name.to_owned());
            format!("$({name})")
        }
    };
    let substituted = words.into_iter().map(|word| {
        if let Some(name) = word.strip_prefix('$').filter(|name| is_variable(name)) {
            return look_up(name);
        }
        let (mut whole, mut rest) = (String::new(), word.as_str());
        while let Some(start) = rest.find('$') {
            let (before, from) = rest.split_at(start);
            whole.push_str(before);
            let braced = from.strip_prefix("${").and_then(|text| text.split_once('}'));
            rest = if let Some((name, after)) = braced.filter(|(name, _)| is_variable(name)) {
                whole.push_str(&look_up(name));
                after
            } else if let Some(after) = from.strip_prefix("$$") {
                whole.push('$');
                after
            } else {
                whole.push('$');
                &from[1..]
            };
        }
        whole + rest
    });
    let substituted = substituted.collect();
    (substituted, missing)
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prefixes_quotes_and_backslashes_are_read_as_systemd_does() {
        let parsed = CommandLine::parse(r#"-/usr/bin/docker run "a b" 'c "d' e\sf x""y"#).unwrap();
        assert!(parsed.may_fail && parsed.program() == "docker");
        assert_eq!(parsed.arguments, ["/usr/bin/docker", "run", "a b", "c \"d", "e f", "xy"]);
        assert_eq!(split("a '' b").unwrap(), ["a", "", "b"]);
        assert_eq!(CommandLine::parse("a 'b"), Err(CommandError::OpenQuote));
        assert_eq!(CommandLine::parse("- "), Err(CommandError::Empty));
    }

    #[test]
    fn variables_come_from_the_unit_or_from_the_container() {
        let environment = BTreeMap::from([("PORT".to_owned(), "80".to_owned())]);
        let words = ["$PORT", "a${PORT}b${IP}", "$$HOME", "$(x)", "$"].map(str::to_owned).to_vec();
        let (words, missing) = substitute(words, &environment);
        assert_eq!(words, ["80", "a80b$(IP)", "$HOME", "$(x)", "$"]);
        assert_eq!(missing, ["IP"]);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[-@$ {}'\"\\\\aä%]{0,40}") {
            if let Ok(words) = split(&text) {
                substitute(words, &BTreeMap::new());
            }
            let _ = CommandLine::parse(&text);
        }
    }
}
