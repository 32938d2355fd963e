//! The grammar of label selectors.

use super::{Relation, SelectorError, Term};
use crate::validation::names::qualified_name;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    Open,
    Close,
    Comma,
    Not,
    Equals,
    NotEquals,
    Greater,
    Less,
    In,
    NotIn,
    Identifier,
    Unknown,
    End,
}

fn is_symbol(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

fn tokens(text: &str) -> Vec<(Token, &str)> {
    let mut rest = text;
    let mut found = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let Some(first) = rest.chars().next() else { return found };
        let length = if is_symbol(first) {
            if rest.starts_with("==") || rest.starts_with("!=") { 2 } else { 1 }
        } else {
            rest.find(|c: char| is_symbol(c) || matches!(c, ' ' | '\t' | '\r' | '\n')).unwrap_or(rest.len())
        };
        let (literal, after) = rest.split_at(length);
        rest = after;
        let token = match literal {
            "(" => Token::Open,
            ")" => Token::Close,
            "," => Token::Comma,
            "!" => Token::Not,
            "=" | "==" => Token::Equals,
            "!=" => Token::NotEquals,
            ">" => Token::Greater,
            "<" => Token::Less,
            "in" => Token::In,
            "notin" => Token::NotIn,
            "\0" => Token::Unknown,
            _ => Token::Identifier,
        };
        found.push((token, literal));
    }
}

pub struct Parser<'a> {
    tokens: Vec<(Token, &'a str)>,
    at: usize,
}

impl<'a> Parser<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { tokens: tokens(text), at: 0 }
    }

    fn raw(&self) -> (Token, &'a str) {
        self.tokens.get(self.at).copied().unwrap_or((Token::End, ""))
    }

    /// Where a key or a value may stand, `in` and `notin` are ordinary words.
    fn peek(&self) -> (Token, &'a str) {
        match self.raw() {
            (Token::In | Token::NotIn, literal) => (Token::Identifier, literal),
            other => other,
        }
    }

    fn take(&mut self) -> (Token, &'a str) {
        let next = self.peek();
        self.at += 1;
        next
    }

    pub fn selector(&mut self) -> Result<Vec<Term>, SelectorError> {
        let mut terms = Vec::new();
        loop {
            match self.peek() {
                (Token::Identifier | Token::Not, _) => {
                    let term = self.term().map_err(|e| SelectorError(format!("unable to parse requirement: {e}")))?;
                    terms.push(term);
                    match self.take() {
                        (Token::End, _) => return Ok(terms),
                        (Token::Comma, _) => match self.peek() {
                            (Token::Identifier | Token::Not, _) => {}
                            (_, found) => return unexpected(found, "expected: identifier after ','"),
                        },
                        (_, found) => return unexpected(found, "expected: ',' or 'end of string'"),
                    }
                }
                (Token::End, _) => return Ok(terms),
                (_, found) => return unexpected(found, "expected: !, identifier, or 'end of string'"),
            }
        }
    }

    fn term(&mut self) -> Result<Term, SelectorError> {
        let (mut token, mut key) = self.take();
        let negated = token == Token::Not;
        if negated {
            (token, key) = self.take();
        }
        if token != Token::Identifier {
            return unexpected(key, "expected: identifier");
        }
        let errors = qualified_name(key);
        if !errors.is_empty() {
            return Err(SelectorError(format!("<nil>: Invalid value: {key:?}: {}", errors.join("; "))));
        }
        let key = key.to_owned();
        if negated {
            return Term::new(key, Relation::DoesNotExist, Vec::new());
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Term::new(key, Relation::Exists, Vec::new());
        }
        let (operator, literal) = self.raw();
        self.at += 1;
        let relation = match operator {
            Token::In => Relation::In,
            Token::NotIn => Relation::NotIn,
            Token::Equals => Relation::Equals,
            Token::NotEquals => Relation::NotEquals,
            Token::Greater => Relation::GreaterThan,
            Token::Less => Relation::LessThan,
            _ => return unexpected(literal, "expected: in, notin, =, ==, !=, gt, lt"),
        };
        let values = match relation {
            Relation::In | Relation::NotIn => self.values()?,
            _ => vec![self.exact()?],
        };
        Term::new(key, relation, values)
    }

    fn exact(&mut self) -> Result<String, SelectorError> {
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match self.take() {
            (Token::Identifier, value) => Ok(value.to_owned()),
            (_, found) => unexpected(found, "expected: identifier"),
        }
    }

    fn values(&mut self) -> Result<Vec<String>, SelectorError> {
        match self.take() {
            (Token::Open, _) => {}
            (_, found) => return Err(SelectorError(format!("found '{found}' expected: '('"))),
        }
        let mut values = Vec::new();
        // An empty place between commas is the empty value.
        let mut pending = false;
        loop {
            match self.take() {
                (Token::Identifier, value) => {
                    values.push(value.to_owned());
                    match self.peek() {
                        (Token::Comma, _) => {
                            self.at += 1;
                            pending = true;
                        }
                        (Token::Close, _) => pending = false,
                        (_, found) => return unexpected(found, "expected: ',' or ')'"),
                    }
                }
                (Token::Comma, _) => {
                    values.push(String::new());
                    pending = true;
                }
                (Token::Close, _) => {
                    if pending {
                        values.push(String::new());
                    }
                    return Ok(values);
                }
                (_, found) => return unexpected(found, "expected: ',', ')' or identifier"),
            }
        }
    }
}

fn unexpected<T>(found: &str, expected: &str) -> Result<T, SelectorError> {
    Err(SelectorError(format!("found '{found}', {expected}")))
}
