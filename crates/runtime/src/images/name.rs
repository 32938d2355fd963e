//! Parses image references and completes them as docker does.

use oci_client::Reference;

use super::PullError;

/// `busybox` is `docker.io/library/busybox:latest`.
pub fn parse(reference: &str) -> Result<Reference, PullError> {
    reference.parse().map_err(|e: oci_client::ParseError| PullError::InvalidName {
        reference: reference.to_owned(),
        why: e.to_string(),
    })
}

/// Registry and repository without tag and digest.
pub fn repository(name: &Reference) -> String {
    format!("{}/{}", name.registry(), name.repository())
}

/// The full name with a tag; `None` if it has only a digest.
pub fn tagged(name: &Reference) -> Option<String> {
    name.tag().map(|tag| format!("{}:{tag}", repository(name)))
}

pub fn with_digest(name: &Reference, digest: &str) -> String {
    format!("{}@{digest}", repository(name))
}

/// An image's id, with or without its algorithm.
pub fn as_id(reference: &str) -> Option<String> {
    let hex = reference.strip_prefix("sha256:").unwrap_or(reference);
    is_hex(hex).then(|| format!("sha256:{hex}"))
}

/// The part of a digest that is safe as a file's name; only sha256 is understood.
pub fn hex(digest: &str) -> Option<&str> {
    digest.strip_prefix("sha256:").filter(|hex| is_hex(hex))
}

fn is_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_written_out_as_docker_does() {
        let cases = [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("library/busybox", "docker.io/library/busybox:latest"),
            ("index.docker.io/library/busybox", "docker.io/library/busybox:latest"),
            ("someone/thing", "docker.io/someone/thing:latest"),
            ("localhost:5000/thing", "localhost:5000/thing:latest"),
            ("registry.example/a/b/c:v1", "registry.example/a/b/c:v1"),
        ];
        for (short, full) in cases {
            assert_eq!(tagged(&parse(short).unwrap()).as_deref(), Some(full), "{short}");
        }
    }

    #[test]
    fn a_digest_names_without_a_tag() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let name = parse(&format!("busybox@{digest}")).unwrap();
        assert_eq!(tagged(&name), None);
        assert_eq!(name.digest(), Some(digest.as_str()));
        assert_eq!(with_digest(&name, &digest), format!("docker.io/library/busybox@{digest}"));
    }

    #[test]
    fn impossible_names_are_refused() {
        for name in ["", "Upper", "a b", "a@sha256:12", "x:y:z", "-x"] {
            assert!(matches!(parse(name), Err(PullError::InvalidName { .. })), "{name}");
        }
    }

    #[test]
    fn ids_are_distinguished_from_names() {
        let id = format!("sha256:{}", "0".repeat(64));
        assert_eq!(as_id(&id), Some(id.clone()));
        assert_eq!(as_id(&"0".repeat(64)), Some(id));
        assert_eq!(as_id("busybox"), None);
        assert_eq!(hex("sha256:../../etc"), None);
        assert_eq!(hex("sha512:abc"), None);
    }
}
