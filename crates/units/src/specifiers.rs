//! Specifiers in the values of a unit: parts of its name, directories of the system's manager, the name of the machine, and `%%` for a
//! percent sign.

use crate::UnitName;

/// The variable of a container that has the name of its machine, and how the API puts it into commands and other variables.
pub const HOST_VARIABLE: &str = "UNIT_HOST";
pub const HOST_REFERENCE: &str = "$(UNIT_HOST)";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "%{0} is not known here; parts of the unit's name (%i, %I, %j, %p, %P, %n, %N), directories (%t, %S, %C, %L, %E, %T, %V, %h), %H and %% are"
)]
pub struct UnknownSpecifier(pub char);

pub fn expand(text: &str, name: &UnitName) -> Result<String, UnknownSpecifier> {
    let mut expanded = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            expanded.push(character);
            continue;
        }
        match characters.next() {
            Some('i') => expanded.push_str(name.instance().unwrap_or_default()),
            Some('p') => expanded.push_str(name.prefix()),
            Some('n') => expanded.push_str(name.as_str()),
            Some('N') => expanded.push_str(name.stem()),
            Some('I') => expanded.push_str(&unescape(name.instance().unwrap_or_default())),
            Some('P') => expanded.push_str(&unescape(name.prefix())),
            Some('j') => expanded.push_str(name.prefix().rsplit('-').next().unwrap_or_default()),
            Some('t') => expanded.push_str("/run"),
            Some('S') => expanded.push_str("/var/lib"),
            Some('C') => expanded.push_str("/var/cache"),
            Some('L') => expanded.push_str("/var/log"),
            Some('E') => expanded.push_str("/etc"),
            Some('T') => expanded.push_str("/tmp"),
            Some('V') => expanded.push_str("/var/tmp"),
            Some('h') => expanded.push_str("/root"),
            Some('H') => expanded.push_str(HOST_REFERENCE),
            Some('%') => expanded.push('%'),
            Some(other) => return Err(UnknownSpecifier(other)),
            None => expanded.push('%'),
        }
    }
    Ok(expanded)
}

/// As systemd-escape does it backwards: a dash is a slash, `\x2d` a byte.
fn unescape(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        let escaped = match rest {
            [b'\\', b'x', high, low, ..] => {
                std::str::from_utf8(&[*high, *low]).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok())
            }
            _ => None,
        };
        (rest, _) = match escaped {
            Some(byte) => (&rest[4..], bytes.push(byte)),
            None => (after, bytes.push(if *first == b'-' { b'/' } else { *first })),
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifiers_stand_for_parts_of_the_name() {
        let name = UnitName::parse("web@7.service").unwrap();
        assert_eq!(expand("%p-%i %n %N 100%% 5%", &name).unwrap(), "web-7 web@7.service web@7 100% 5%");
        assert_eq!(expand("%i|%p", &UnitName::parse("web").unwrap()).unwrap(), "|web");
        assert_eq!(expand("%m", &name), Err(UnknownSpecifier('m')));
        let path = UnitName::parse("backup-of@var-lib-my\\x2ddb.service").unwrap();
        assert_eq!(expand("%I|%P|%j|%t/%p", &path).unwrap(), "var/lib/my-db|backup/of|of|/run/backup-of");
        assert_eq!(expand("on %H", &name).unwrap(), "on $(UNIT_HOST)");
        assert_eq!(unescape("a\\x2\\xzz-"), "a\\x2\\xzz/");
    }
}
