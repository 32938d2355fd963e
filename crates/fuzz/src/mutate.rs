//! Makes new inputs of known ones, by a seed: the same seed gives the same inputs on every machine.
//!
//! Bytes are flipped, cut, repeated and mixed with those of other inputs and with words of the target's language. An input that is JSON is
//! also changed as a tree: most of a document stays well-formed, so that more than the parser of JSON is reached.

use fastrand::Rng;
use serde_json::{Map, Value, json};

/// No mutation makes an input longer.
const MAX_LENGTH: usize = 16 * 1024;

/// Words that break things in any language.
const WORDS: [&str; 24] = [
    "0",
    "-1",
    "1",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "1e999",
    "0.1",
    "null",
    "true",
    "\"\"",
    "{}",
    "[]",
    "../",
    "%00",
    "\u{0}",
    "\u{feff}",
    "\u{10ffff}",
    "ß",
    "'",
    "\\u0000",
    "~1",
    "$patch",
    "k:{",
];

/// An input made of one of the corpus.
pub fn mutate(corpus: &[Vec<u8>], words: &[&str], rng: &mut Rng) -> Vec<u8> {
    let mut input = rng.choice(corpus).cloned().unwrap_or_default();
    let rounds = 1 + rng.usize(..4);
    for _ in 0..rounds {
        match serde_json::from_slice::<Value>(&input) {
            Ok(mut tree) if rng.u8(..4) != 0 => {
                change_tree(&mut tree, corpus, words, rng);
                input = tree.to_string().into_bytes();
            }
            _ => change_bytes(&mut input, corpus, words, rng),
        }
    }
    input.truncate(MAX_LENGTH);
    input
}

fn change_bytes(input: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[&str], rng: &mut Rng) {
    let at = rng.usize(..=input.len());
    let end = (at + rng.usize(..=16)).min(input.len());
    match rng.u8(..8) {
        0 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
        1 if at < input.len() => input[at] = rng.u8(..),
        2 => drop(input.drain(at..end)),
        3 => {
            let repeated = input[at..end].repeat(1 + rng.usize(..64));
            input.splice(at..at, repeated);
        }
        4 => {
            let other = rng.choice(corpus).cloned().unwrap_or_default();
            let from = rng.usize(..=other.len());
            input.splice(at.., other[from..].iter().copied());
        }
        5 => input.truncate(at),
        6 => drop(input.splice(at..end, (0..rng.usize(..8)).map(|_| rng.u8(..)).collect::<Vec<u8>>())),
        _ => drop(input.splice(at..end, word(words, rng).bytes())),
    }
    input.truncate(MAX_LENGTH);
}

fn word<'a>(words: &[&'a str], rng: &mut Rng) -> &'a str {
    let own = !words.is_empty() && rng.bool();
    rng.choice(if own { words } else { &WORDS }).copied().unwrap_or_default()
}

/// Changes one node, found by a random walk from the root.
fn change_tree(tree: &mut Value, corpus: &[Vec<u8>], words: &[&str], rng: &mut Rng) {
    let mut node = tree;
    while rng.u8(..8) != 0 {
        let children = match &*node {
            Value::Array(items) => items.len(),
            Value::Object(fields) => fields.len(),
            _ => 0,
        };
        if children == 0 {
            break;
        }
        let at = rng.usize(..children);
        node = match node {
            Value::Array(items) => &mut items[at],
            Value::Object(fields) => fields.values_mut().nth(at).expect("as many as counted"),
            _ => unreachable!("it has children"),
        };
    }
    match node {
        Value::Array(items) if rng.bool() => change_list(items, corpus, words, rng),
        Value::Object(fields) if rng.bool() => change_fields(fields, corpus, words, rng),
        Value::String(text) if rng.bool() => {
            let mut bytes = std::mem::take(text).into_bytes();
            change_bytes(&mut bytes, &[], words, rng);
            *text = String::from_utf8_lossy(&bytes).into_owned();
        }
        node => *node = any_value(corpus, words, rng),
    }
}

fn change_list(items: &mut Vec<Value>, corpus: &[Vec<u8>], words: &[&str], rng: &mut Rng) {
    let at = rng.usize(..=items.len());
    match rng.u8(..4) {
        0 if at < items.len() => drop(items.remove(at)),
        1 if at < items.len() => items.insert(at, items[at].clone()),
        2 if at < items.len() => items.swap(0, at),
        _ => items.insert(at, any_value(corpus, words, rng)),
    }
}

fn change_fields(fields: &mut Map<String, Value>, corpus: &[Vec<u8>], words: &[&str], rng: &mut Rng) {
    let names: Vec<String> = fields.keys().cloned().collect();
    match (rng.u8(..4), rng.choice(&names)) {
        (0, Some(name)) => drop(fields.remove(name)),
        (1, Some(name)) => {
            let value = fields.remove(name).unwrap_or_default();
            fields.insert(word(words, rng).to_owned(), value);
        }
        (2, Some(name)) => {
            let value = any_value(corpus, words, rng);
            fields.insert(name.clone(), value);
        }
        _ => {
            let value = any_value(corpus, words, rng);
            fields.insert(word(words, rng).to_owned(), value);
        }
    }
}

/// A constant, a word, or a part of another input.
fn any_value(corpus: &[Vec<u8>], words: &[&str], rng: &mut Rng) -> Value {
    match rng.u8(..12) {
        0 => Value::Null,
        1 => json!(rng.bool()),
        2 => json!(rng.i64(..)),
        3 => json!(rng.choice([0, 1, -1, i64::MAX, i64::MIN, 1 << 31, 65_536])),
        4 => json!(rng.f64() * 1e10),
        5 => json!({}),
        6 => json!([]),
        7 => (0..1 + rng.usize(..60)).fold(json!(1), |inner, _| json!([inner])),
        8 | 9 => json!(word(words, rng)),
        _ => {
            let other = rng.choice(corpus).and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
            let mut node = other.unwrap_or_default();
            while rng.u8(..4) != 0 {
                let mut children = match node {
                    Value::Array(items) if !items.is_empty() => items,
                    Value::Object(fields) if !fields.is_empty() => fields.into_iter().map(|(_, value)| value).collect(),
                    leaf => return leaf,
                };
                node = children.swap_remove(rng.usize(..children.len()));
            }
            node
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_every_input() {
        let corpus = [b"{\"a\":[1,{\"b\":\"c\"}]}".to_vec(), b"plain".to_vec()];
        let inputs = |seed: u64| {
            let mut rng = Rng::with_seed(seed);
            (0..200).map(|_| mutate(&corpus, &["word"], &mut rng)).collect::<Vec<_>>()
        };
        assert_eq!(inputs(7), inputs(7));
        assert_ne!(inputs(7), inputs(8));
        let trees = inputs(7).iter().filter(|input| serde_json::from_slice::<Value>(input).is_ok()).count();
        assert!(trees > 20, "{trees} of 200 are still JSON");
    }

    #[test]
    fn nothing_grows_without_bound() {
        let corpus = [vec![b'a'; MAX_LENGTH]];
        let mut rng = Rng::with_seed(1);
        assert!((0..500).all(|_| mutate(&corpus, &[], &mut rng).len() <= MAX_LENGTH));
    }
}
