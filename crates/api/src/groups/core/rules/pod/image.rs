//! Names of images, as far as the API looks into them.

/// When to pull an image nobody gave a policy for: a moving tag always, a fixed one once.
pub fn pull_policy(image: &str) -> &'static str {
    if is_latest(image) { "Always" } else { "IfNotPresent" }
}

/// Whether the image is the `latest`: by its tag, or for want of tag and digest.
fn is_latest(image: &str) -> bool {
    let (name, digest) = match image.trim().split_once('@') {
        Some((name, _)) => (name, true),
        None => (image.trim(), false),
    };
    // A colon before the last slash belongs to the registry's port.
    let last = name.rsplit('/').next().unwrap_or(name);
    match last.split_once(':') {
        Some((_, tag)) => tag == "latest",
        None => !digest && !name.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moving_tag_is_always_pulled() {
        let cases = [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("localhost:5000/nginx", "Always"),
            ("localhost:5000/nginx:1.27", "IfNotPresent"),
            ("nginx:1.27", "IfNotPresent"),
            ("nginx@sha256:0123", "IfNotPresent"),
            ("nginx:latest@sha256:0123", "Always"),
            ("", "IfNotPresent"),
        ];
        for (image, expected) in cases {
            assert_eq!(pull_policy(image), expected, "{image}");
        }
    }
}
