//! How deep a template nests, from its tokens alone, before anything recursive looks at it.
//!
//! The engine's parser bounds brackets and blocks, and nothing else: signs (`---1`), chains of operators, filters and attributes, and `elif` recurse in its parser,
//! in its code generator or when the tree is dropped, once for each of them. A template of a few hundred KiB would overflow the stack, which ends the process.

use minijinja::{
    machinery::{Token, tokenize},
    syntax::SyntaxConfig,
};

/// Tokens on one path from the root of an expression to a leaf; commas separate paths.
pub const MAX_EXPRESSION: usize = 500;
/// Branches (`if`, `elif`) that are open at the same time.
pub const MAX_BRANCHES: usize = 150;

/// Where a template nests too deep, and what.
#[derive(Debug, PartialEq, Eq)]
pub struct TooDeep {
    pub line: usize,
    pub problem: String,
}

/// One open bracket: the depth where it was opened, and the greatest since.
struct Bracket {
    start: usize,
    peak: usize,
}

/// What the lexer refuses is left to the parser, which refuses it at the same place.
pub fn check_nesting(source: &str, syntax: SyntaxConfig) -> Result<(), TooDeep> {
    let mut expression = ExpressionDepth::default();
    let mut branches: Vec<usize> = Vec::new();
    let mut is_first = false;
    for (token, span) in tokenize(source, false, syntax).map_while(Result::ok) {
        let line = usize::from(span.start_line);
        expression.follow(&token);
        if expression.depth > MAX_EXPRESSION {
            let problem = format!("an expression nests or chains more than {MAX_EXPRESSION} tokens deep");
            return Err(TooDeep { line, problem });
        }
        match (is_first, &token) {
            (true, Token::Ident("if")) => branches.push(1),
            (true, Token::Ident("elif")) => {
                if let Some(open) = branches.last_mut() {
                    *open += 1;
                }
            }
            (true, Token::Ident("endif")) => {
                branches.pop();
            }
            _ => {}
        }
        if branches.iter().sum::<usize>() > MAX_BRANCHES {
            return Err(TooDeep { line, problem: format!("more than {MAX_BRANCHES} branches (if, elif) are open") });
        }
        is_first = matches!(token, Token::BlockStart);
    }
    Ok(())
}

/// An upper bound of the depth of an expression's tree: every token may be one level, and what follows a bracket stands above what is in it.
#[derive(Default)]
struct ExpressionDepth {
    depth: usize,
    brackets: Vec<Bracket>,
}

impl ExpressionDepth {
    fn follow(&mut self, token: &Token<'_>) {
        match token {
            Token::TemplateData(_)
            | Token::VariableStart
            | Token::VariableEnd
            | Token::BlockStart
            | Token::BlockEnd => *self = Self::default(),
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => {
                self.depth += 1;
                self.brackets.push(Bracket { start: self.depth, peak: self.depth });
            }
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                let peak = self.brackets.pop().map_or(0, |bracket| bracket.peak);
                self.depth = self.depth.max(peak) + 1;
            }
            Token::Comma => match self.brackets.last_mut() {
                Some(bracket) => {
                    bracket.peak = bracket.peak.max(self.depth);
                    self.depth = bracket.start;
                }
                None => self.depth = 0,
            },
            _ => self.depth += 1,
        }
    }
}
