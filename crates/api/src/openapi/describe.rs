//! The descriptions of the built-in types and of our own, from a file that is part of the program.
//!
//! `descriptions.txt` has a line for each definition and, indented, one for each of its fields: a name, a tab and the text, in
//! which `\n` stands for a new line and `\\` for a backslash. The types can be asked for the same by their JSON schema, which would take
//! megabytes of code that runs when somebody asks for OpenAPI and never otherwise. A test compares the two, and writes the file anew.

use serde_json::{Map, Value, json};

const DESCRIPTIONS: &str = include_str!("descriptions.txt");

/// Every definition that has a description, once, with its fields, as JSON schema has them.
pub fn visit(mut visitor: impl FnMut(&str, &Value)) {
    let mut lines = DESCRIPTIONS.lines().peekable();
    while let Some((name, description)) = lines.next().and_then(|line| line.split_once('\t')) {
        let mut properties = Map::new();
        while let Some((field, text)) = lines.peek().and_then(|line| line.strip_prefix(' ')?.split_once('\t')) {
            properties.insert(field.to_owned(), json!({ "description": unescape(text) }));
            lines.next();
        }
        visitor(name, &json!({ "description": unescape(description), "properties": properties }));
    }
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' if characters.next() == Some('n') => out.push('\n'),
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests;
