//! Versions of rendered configuration: a short digest of the content.

use sha2::{Digest, Sha256};

/// How many hexadecimal digits a version has.
pub const DIGITS: usize = 10;

/// The version of a content: ten hexadecimal digits that depend on nothing else.
pub fn version(content: &str) -> String {
    let digest = Sha256::digest(content.as_bytes());
    digest.iter().take(DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a text looks like a version.
pub fn is_version(text: &str) -> bool {
    text.len() == DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_follows_from_the_content_alone() {
        assert_eq!(version("a"), version("a"));
        assert_ne!(version("a"), version("b"));
        assert_eq!(version(""), "e3b0c44298");
        assert!(is_version(&version("a")));
        for other in ["", "e3b0c4429", "E3B0C44298", "e3b0c4429g", "e3b0c442980"] {
            assert!(!is_version(other), "{other:?}");
        }
    }
}
