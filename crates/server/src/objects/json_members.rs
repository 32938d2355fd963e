//! The members of a JSON object, found without parsing what is in them.
//!
//! For changes of one field of a stored object: what stays is copied as it is. The bytes come from the store, so
//! that they are JSON is known; how it is laid out is not. Whatever this does not expect makes it give up, and the
//! caller take the long way.

/// A member's name, which has no escapes, and the bytes of its value.
pub type Member<'a> = (&'a str, &'a [u8]);

/// The members in their order. `None` if this is no object, or one of a kind that needs a real parser.
pub fn parse_members(json: &[u8]) -> Option<Vec<Member<'_>>> {
    let mut at = expect(json, blank(json, 0), b'{')?;
    let mut found = Vec::with_capacity(16);
    at = blank(json, at);
    if json.get(at) == Some(&b'}') {
        return ended(json, at + 1).then_some(found);
    }
    loop {
        let name_end = value_end(json, at)?;
        let name = plain_string(&json[at..name_end])?;
        at = blank(json, expect(json, blank(json, name_end), b':')?);
        let end = value_end(json, at)?;
        found.push((name, &json[at..end]));
        at = blank(json, end);
        match json.get(at)? {
            b',' => at = blank(json, at + 1),
            b'}' => return ended(json, at + 1).then_some(found),
            _ => return None,
        }
    }
}

/// The value of a member.
pub fn find<'a>(members: &[Member<'a>], name: &str) -> Option<&'a [u8]> {
    members.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
}

/// A string that has no escapes.
pub fn plain_string(value: &[u8]) -> Option<&str> {
    let inside = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if inside.contains(&b'\\') { None } else { std::str::from_utf8(inside).ok() }
}

fn expect(json: &[u8], at: usize, byte: u8) -> Option<usize> {
    (json.get(at) == Some(&byte)).then_some(at + 1)
}

fn blank(json: &[u8], mut at: usize) -> usize {
    while matches!(json.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

fn ended(json: &[u8], at: usize) -> bool {
    blank(json, at) == json.len()
}

/// Just behind the value that begins here.
fn value_end(json: &[u8], start: usize) -> Option<usize> {
    let (mut depth, mut at) = (0usize, start);
    loop {
        match json.get(at)? {
            b'"' => at = string_end(json, at)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' if depth == 0 => return (at > start).then_some(at),
            b'}' | b']' => {
                depth -= 1;
                at += 1;
            }
            b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => return (at > start).then_some(at),
            _ => at += 1,
        }
        if depth == 0 && matches!(json[at - 1], b'"' | b'}' | b']') {
            return Some(at);
        }
    }
}

fn string_end(json: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        match json.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn members_are_cut_out_whole() {
        let json = r#" { "a" : {"x": "}\"]", "y": [1, {"z": null}]}, "b":-1.5e3,"c":"t,:}" , "d": [], "e":true } "#;
        let members = parse_members(json.as_bytes()).unwrap();
        let whole: Value = serde_json::from_str(json).unwrap();
        assert_eq!(members.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["a", "b", "c", "d", "e"]);
        for (name, value) in &members {
            assert_eq!(serde_json::from_slice::<Value>(value).unwrap(), whole[name], "{name}");
        }
        assert_eq!(plain_string(find(&members, "c").unwrap()), Some("t,:}"));
        assert_eq!(find(&members, "f"), None);
        assert_eq!(parse_members(b"{}"), Some(Vec::new()));
    }

    #[test]
    fn what_is_no_object_or_needs_a_parser_is_left_alone() {
        for json in ["", "[]", "{", "{\"a\"", "{\"a\":}", "{\"a\":1", "{\"a\":1}x", "{a:1}", r#"{"\u0061":1}"#] {
            assert_eq!(parse_members(json.as_bytes()), None, "{json}");
        }
    }
}
