//! Tokens from a file, as upstream's `--token-auth-file`: lines of `token,user,uid,"group1,group2"`, the last two optional.
//!
//! Tokens are kept as digests: looking one up takes the same time however much of it was guessed right.

use std::{collections::HashMap, fmt};

use ring::digest;

use super::User;

type Digest = [u8; 32];

#[derive(Default)]
pub struct StaticTokens(HashMap<Digest, User>);

impl fmt::Debug for StaticTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StaticTokens({} users)", self.0.len())
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TokenFileError {
    line: usize,
    problem: &'static str,
}

impl StaticTokens {
    pub fn parse(text: &str) -> Result<Self, TokenFileError> {
        let mut users = HashMap::new();
        for (at, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let fail = |problem| TokenFileError { line: at + 1, problem };
            let fields = split_record(line).ok_or_else(|| fail("a quote is not closed"))?;
            let [token, user, uid @ ..] = &*fields else { return Err(fail("want token,user,uid,\"groups\"")) };
            if token.is_empty() || user.is_empty() {
                return Err(fail("the token and the user name must not be empty"));
            }
            let groups = uid.get(1).map(String::as_str).unwrap_or_default();
            let groups =
                groups.split(',').map(str::trim).filter(|group| !group.is_empty()).map(str::to_owned).collect();
            let uid = uid.first().cloned().unwrap_or_default();
            let user = User { uid, ..User::authenticated(user.clone(), groups) };
            if users.insert(digest_of(token), user).is_some() {
                return Err(fail("the same token stands in an earlier line"));
            }
        }
        Ok(Self(users))
    }

    pub fn user(&self, token: &str) -> Option<&User> {
        if self.0.is_empty() { None } else { self.0.get(&digest_of(token)) }
    }
}

fn digest_of(token: &str) -> Digest {
    let mut bytes = Digest::default();
    bytes.copy_from_slice(digest::digest(&digest::SHA256, token.as_bytes()).as_ref());
    bytes
}

/// The fields of a line of comma-separated values; `None` if a quote is not closed.
fn split_record(line: &str) -> Option<Vec<String>> {
    let (mut fields, mut field, mut quoted) = (Vec::new(), String::new(), false);
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(std::mem::take(&mut field).trim().to_owned()),
            other => field.push(other),
        }
    }
    fields.push(field.trim().to_owned());
    (!quoted).then_some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_a_user_with_uid_and_groups() {
        let tokens = StaticTokens::parse("# people\nt0ken,ann,u1,\"devs, ops\"\n\nother,bob\n").unwrap();
        let ann = tokens.user("t0ken").unwrap();
        assert_eq!((&*ann.name, &*ann.uid), ("ann", "u1"));
        assert_eq!(ann.groups, ["devs", "ops", "system:authenticated"]);
        assert_eq!(tokens.user("other").unwrap().groups, ["system:authenticated"]);
        assert_eq!(tokens.user("t0ke"), None);
        assert_eq!(tokens.user(""), None);
    }

    #[test]
    fn a_bad_line_is_named() {
        let problem = |text: &str| StaticTokens::parse(text).expect_err("a bad line").to_string();
        assert_eq!(problem("a,b\nlonely"), "line 2: want token,user,uid,\"groups\"");
        assert_eq!(problem(",ann"), "line 1: the token and the user name must not be empty");
        assert_eq!(problem("a,ann,1,\"x"), "line 1: a quote is not closed");
        assert_eq!(problem("a,ann\na,bob"), "line 2: the same token stands in an earlier line");
    }
}
