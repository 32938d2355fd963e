//! A hash of what a container is made from: it changes when the container has to be re-created.
//!
//! Of a container's spec only the image may change in place and need a new container for it (resources
//! are changed in the running one). Nothing else goes into the identity, so that a field that a later
//! version learns to default does not restart every container of a cluster when the agent is upgraded.

use k8s_openapi::api::core::v1::Container;
use xxhash_rust::xxh3::Xxh3;

/// The annotation that carries it.
pub const SPEC_HASH: &str = "mainstay.dev/spec-hash";

pub fn identity(container: &Container) -> String {
    let mut hash = Xxh3::new();
    for part in [container.name.as_str(), container.image.as_deref().unwrap_or_default()] {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    format!("{:016x}", hash.digest())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_image_is_another_container_and_other_limits_are_not() {
        let container =
            |image: &str| Container { name: "web".to_owned(), image: Some(image.to_owned()), ..Container::default() };
        let mut limited = container("nginx:1");
        limited.resources = Some(Default::default());
        assert_eq!(identity(&container("nginx:1")), identity(&limited));
        assert_ne!(identity(&container("nginx:1")), identity(&container("nginx:2")));
        // It is kept by containers that outlive the agent, so it may not change with a version.
        assert_eq!(identity(&container("nginx:1")).len(), 16);
    }
}
