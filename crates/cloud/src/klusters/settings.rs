//! Settings of Klusters: which versions there are, from which image their servers run, and who they are in the cloud.

use std::collections::BTreeMap;

use mainstay_api::cloud::version::parse_version;
use semver::Version;

/// An image that is the machine's own root file system.
pub const HOST_IMAGE: &str = "host";

#[derive(Clone, Debug, Default)]
pub struct KlusterSettings {
    /// The image of each version that is offered.
    pub images: BTreeMap<Version, String>,
    /// The program in the image.
    pub program: String,
    /// The StorageClass of its servers' volumes; the stock one if not set.
    pub storage_class: Option<String>,
    /// The API of a Kluster is at `https://<name>.<domain>:<port>`; at the address of its Service if not set.
    pub domain: Option<String>,
    /// How its API is reached from outside of this cluster.
    pub service_type: ServiceType,
    /// Users of Klusters in the cloud; none are made if not set.
    pub service_users: Option<ServiceUserSettings>,
    /// Where machines that are set up by Ignition fetch the program; their image has it if not set.
    pub agent: Option<ProgramDownload>,
}

/// The program at a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramDownload {
    pub url: String,
    /// In hexadecimal.
    pub sha512: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDownload {
    #[error("{0:?} must be a URL of http or https")]
    Url(String),
    #[error("{0:?} must be a SHA-512 of 128 hexadecimal digits")]
    Hash(String),
}

impl ProgramDownload {
    pub fn new(url: &str, sha512: &str) -> Result<Self, InvalidDownload> {
        let is_url = url.starts_with("https://") || url.starts_with("http://");
        if !is_url || !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidDownload::Url(url.to_owned()));
        }
        if sha512.len() != 128 || !sha512.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(InvalidDownload::Hash(sha512.to_owned()));
        }
        Ok(Self { url: url.to_owned(), sha512: sha512.to_ascii_lowercase() })
    }
}

/// The type of the Services of Klusters' APIs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceType {
    /// Within this cluster alone.
    #[default]
    ClusterIp,
    /// Wherever the load balancer is reached, which this cluster has for it.
    LoadBalancer,
}

impl ServiceType {
    pub fn text(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::LoadBalancer => "LoadBalancer",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::ClusterIp, Self::LoadBalancer].into_iter().find(|own| own.text() == text)
    }
}

#[derive(Clone, Debug)]
pub struct ServiceUserSettings {
    /// The domain that they are made in, by name.
    pub domain: String,
    /// Roles that each has in its project, by name.
    pub roles: Vec<String>,
}

impl Default for ServiceUserSettings {
    fn default() -> Self {
        Self { domain: "kubernikus".to_owned(), roles: vec!["network_admin".to_owned(), "member".to_owned()] }
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} must be a version and an image, such as 1.37.0=registry/mainstay:1")]
pub struct InvalidImage(String);

/// Versions and their images, each written `VERSION=IMAGE`.
pub fn parse_images(pairs: &[String]) -> Result<BTreeMap<Version, String>, InvalidImage> {
    let parse = |pair: &String| {
        let (version, image) = pair.split_once('=').filter(|(_, image)| !image.is_empty())?;
        Some((parse_version(version)?, image.to_owned()))
    };
    pairs.iter().map(|pair| parse(pair).ok_or_else(|| InvalidImage(pair.clone()))).collect()
}

impl KlusterSettings {
    /// This very program in the version that it is, from the machine's own files.
    pub fn of_this_program(version: &str, program: &str) -> Self {
        let images = parse_version(version).map(|version| (version, HOST_IMAGE.to_owned()));
        Self {
            images: images.into_iter().collect(),
            program: program.to_owned(),
            storage_class: None,
            domain: None,
            service_type: ServiceType::default(),
            service_users: None,
            agent: None,
        }
    }

    pub fn newest_version(&self) -> Option<&Version> {
        self.images.keys().next_back()
    }

    pub fn image(&self, version: &str) -> Option<&str> {
        self.images.get(&parse_version(version)?).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_has_a_url_and_a_hash() {
        let hash = "0A".repeat(64);
        assert_eq!(ProgramDownload::new("https://x/m", &hash).unwrap().sha512, "0a".repeat(64));
        assert!(ProgramDownload::new("file:///etc/shadow", &hash).is_err());
        assert!(ProgramDownload::new("https://x/ m", &hash).is_err());
        assert!(ProgramDownload::new("https://x/m", "0a").is_err());
    }

    #[test]
    fn an_image_belongs_to_a_version_and_the_newest_is_offered_first() {
        let pairs = ["1.9.0=a".to_owned(), "1.37.0=example.com/a:1=x".to_owned()];
        let settings = KlusterSettings { images: parse_images(&pairs).unwrap(), ..KlusterSettings::default() };
        assert_eq!(settings.image("1.37.0"), Some("example.com/a:1=x"));
        assert_eq!(settings.newest_version().map(ToString::to_string).as_deref(), Some("1.37.0"));
        assert_eq!(settings.image("1.38.0"), None);
        for wrong in ["", "1.37=x", "1.37.0", "1.37.0="] {
            assert_eq!(parse_images(&[wrong.to_owned()]), Err(InvalidImage(wrong.to_owned())));
        }
    }
}
