//! Tells another server as whom a request was authenticated: upstream's `X-Remote-*` headers.

use std::fmt::Write;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{
    auth::User,
    http::status::{ApiError, ApiResult},
};

pub const USER: &str = "x-remote-user";
pub const UID: &str = "x-remote-uid";
pub const GROUP: &str = "x-remote-group";
pub const EXTRA_PREFIX: &str = "x-remote-extra-";

/// Replaces whatever the client sent under these names.
pub fn set(headers: &mut HeaderMap, user: &User) -> ApiResult<()> {
    let sent: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with("x-remote-")).cloned().collect();
    for name in sent {
        headers.remove(name);
    }
    let value = |text: &str| {
        let refused = || ApiError::bad_request("the user's name, groups or extra fields cannot be sent in a header");
        HeaderValue::from_bytes(text.as_bytes()).map_err(|_| refused())
    };
    headers.insert(USER, value(&user.name)?);
    if !user.uid.is_empty() {
        headers.insert(UID, value(&user.uid)?);
    }
    for group in &user.groups {
        headers.append(GROUP, value(group)?);
    }
    for (key, values) in &user.extra {
        let name = format!("{EXTRA_PREFIX}{}", escape_key(key));
        let name = HeaderName::try_from(name).map_err(|error| ApiError::bad_request(error.to_string()))?;
        for own in values {
            headers.append(name.clone(), value(own)?);
        }
    }
    Ok(())
}

/// A key as part of a header's name: what is not allowed there, and `%`, in percent encoding.
fn escape_key(key: &str) -> String {
    let mut escaped = String::new();
    for byte in key.bytes() {
        match byte {
            b'!' | b'#' | b'$' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~' => {
                escaped.push(char::from(byte));
            }
            byte if byte.is_ascii_alphanumeric() => escaped.push(char::from(byte)),
            byte => {
                let _ = write!(escaped, "%{byte:02X}"); // writing to a String does not fail
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_says_who_they_are_by_themselves() {
        let mut headers = HeaderMap::new();
        for (name, value) in [(USER, "root"), (GROUP, "system:masters"), (UID, "0"), ("x-remote-extra-scopes", "all")] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let mut user = User::authenticated("jane".to_owned(), vec!["dev".to_owned()]);
        user.extra.insert("example.com/scopes".to_owned(), vec!["a".to_owned(), "b".to_owned()]);
        set(&mut headers, &user).unwrap();
        let all = |name: &str| headers.get_all(name).iter().map(|v| v.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(all(USER), ["jane"]);
        assert_eq!(all(GROUP), ["dev", "system:authenticated"]);
        assert_eq!(all("x-remote-extra-example.com%2fscopes"), ["a", "b"]);
        assert!(!headers.contains_key(UID) && !headers.contains_key("x-remote-extra-scopes"));
    }

    #[test]
    fn a_name_that_would_end_the_header_is_refused() {
        let mut headers = HeaderMap::new();
        let user = User::authenticated("jane\r\nX-Remote-Group: system:masters".to_owned(), vec![]);
        assert!(set(&mut headers, &user).is_err());
    }
}
