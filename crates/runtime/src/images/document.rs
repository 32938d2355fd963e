//! Parses image configurations, manifests and indexes (JSON), as OCI and docker both write them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What an image says about how to run it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// `NAME=value`
    pub env: Vec<String>,
    pub working_dir: String,
    /// Empty, `1000`, `1000:1000`, `nobody`.
    pub user: String,
    /// `SIGTERM`, `15`
    pub stop_signal: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("its {what} is not understood")]
    Unreadable {
        what: &'static str,
        #[source]
        source: serde_json::Error,
    },
    #[error("it is not a container image")]
    NotAnImage,
    #[error("there is no image for {os}/{architecture} among {found:?}")]
    NoPlatform { os: &'static str, architecture: &'static str, found: Vec<String> },
    #[error("it names {layers} layers, but {ids} identities for them")]
    Layers { layers: usize, ids: usize },
}

/// A configuration as far as it concerns us.
#[derive(Debug)]
pub struct ParsedConfig {
    pub config: ImageConfig,
    pub diff_ids: Vec<String>,
    pub created_at: Option<Timestamp>,
}

#[derive(Deserialize)]
struct RawConfig {
    created: Option<String>,
    config: Option<RawProcess>,
    rootfs: RawRootfs,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RawProcess {
    user: Option<String>,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: Option<String>,
    stop_signal: Option<String>,
}

#[derive(Deserialize)]
struct RawRootfs {
    diff_ids: Vec<String>,
}

pub fn parse_config(json: &[u8]) -> Result<ParsedConfig, DocumentError> {
    let raw: RawConfig = read("configuration", json)?;
    let process = raw.config.unwrap_or_default();
    let config = ImageConfig {
        entrypoint: process.entrypoint.unwrap_or_default(),
        cmd: process.cmd.unwrap_or_default(),
        env: process.env.unwrap_or_default(),
        working_dir: process.working_dir.unwrap_or_default(),
        user: process.user.unwrap_or_default(),
        stop_signal: process.stop_signal.filter(|signal| !signal.is_empty()),
    };
    let created_at = raw.created.and_then(|time| time.parse().ok());
    Ok(ParsedConfig { config, diff_ids: raw.rootfs.diff_ids, created_at })
}

#[derive(Clone, Debug, Deserialize)]
pub struct Descriptor {
    pub digest: String,
    #[serde(default)]
    pub size: u64,
    pub platform: Option<Platform>,
    #[serde(default)]
    pub annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Platform {
    pub os: String,
    pub architecture: String,
    pub variant: Option<String>,
}

/// What a digest or tag of a registry, or an entry of an index, stands for.
#[derive(Debug)]
pub enum Manifest {
    Image { config: Descriptor, layers: Vec<Descriptor> },
    Index(Vec<Descriptor>),
}

#[derive(Deserialize)]
struct RawManifest {
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
}

pub fn parse_manifest(json: &[u8]) -> Result<Manifest, DocumentError> {
    let raw: RawManifest = read("manifest", json)?;
    match (raw.config, raw.layers, raw.manifests) {
        (Some(config), Some(layers), None) => Ok(Manifest::Image { config, layers }),
        (None, None, Some(manifests)) => Ok(Manifest::Index(manifests)),
        _ => Err(DocumentError::NotAnImage),
    }
}

/// The entry of an index for this machine; one that names no platform will do if it is alone.
pub fn for_this_machine(entries: &[Descriptor]) -> Result<&Descriptor, DocumentError> {
    let (os, architecture) = ("linux", architecture());
    let fits = |entry: &&Descriptor| {
        entry.platform.as_ref().is_some_and(|platform| platform.os == os && platform.architecture == architecture)
    };
    let alone = || match entries {
        [entry] if entry.platform.is_none() => Some(entry),
        _ => None,
    };
    entries.iter().find(fits).or_else(alone).ok_or_else(|| DocumentError::NoPlatform {
        os,
        architecture,
        found: entries.iter().filter_map(|entry| entry.platform.as_ref()).map(Platform::name).collect(),
    })
}

impl Platform {
    fn name(&self) -> String {
        let variant = self.variant.as_ref().map(|variant| format!("/{variant}")).unwrap_or_default();
        format!("{}/{}{variant}", self.os, self.architecture)
    }
}

/// As Go, and with it every image, calls it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
}

pub fn read<T: serde::de::DeserializeOwned>(what: &'static str, json: &[u8]) -> Result<T, DocumentError> {
    serde_json::from_slice(json).map_err(|source| DocumentError::Unreadable { what, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_with_nulls_is_read() {
        let json =
            br#"{"created":"2024-01-02T03:04:05Z","config":{"Entrypoint":null,"Cmd":["sh"],"Env":null,"User":""},
            "rootfs":{"type":"layers","diff_ids":["sha256:x"]}}"#;
        let parsed = parse_config(json).unwrap();
        assert_eq!(parsed.config.cmd, ["sh"]);
        assert!(parsed.config.entrypoint.is_empty() && parsed.config.stop_signal.is_none());
        assert_eq!(parsed.diff_ids, ["sha256:x"]);
        assert!(parsed.created_at.is_some());
    }

    #[test]
    fn the_image_for_this_machine_is_chosen() {
        let json = format!(
            r#"{{"manifests":[
                {{"digest":"a","platform":{{"os":"windows","architecture":"{arch}"}}}},
                {{"digest":"b","platform":{{"os":"unknown","architecture":"unknown"}}}},
                {{"digest":"c","platform":{{"os":"linux","architecture":"{arch}"}}}}]}}"#,
            arch = architecture()
        );
        let Manifest::Index(entries) = parse_manifest(json.as_bytes()).unwrap() else { panic!("no index") };
        assert_eq!(for_this_machine(&entries).unwrap().digest, "c");
        let error = for_this_machine(&entries[..2]).unwrap_err().to_string();
        assert!(error.contains("windows/"), "{error}");
    }

    #[test]
    fn other_artifacts_are_distinguished_from_images() {
        assert!(matches!(parse_manifest(br#"{"blobs":[]}"#), Err(DocumentError::NotAnImage)));
        assert!(matches!(parse_manifest(b"<html>"), Err(DocumentError::Unreadable { .. })));
    }
}
