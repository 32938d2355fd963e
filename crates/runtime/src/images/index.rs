//! The index of the image store, which images there are and their names: one small file, replaced whole, so that at every
//! moment it is either as it was or as it shall be. What it does not name does not count.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Image, document::ImageConfig, name};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Index {
    /// By id.
    pub images: BTreeMap<String, Record>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub tags: BTreeSet<String>,
    pub digests: BTreeSet<String>,
    /// Chain ids, lowest first.
    pub layers: Vec<String>,
    pub size: u64,
    pub created_at: Option<Timestamp>,
    pub added_at: Timestamp,
    pub config: ImageConfig,
}

impl Index {
    pub fn find(&self, reference: &str) -> Option<(&String, &Record)> {
        if let Some(id) = name::as_id(reference) {
            return self.images.get_key_value(&id);
        }
        let name = name::parse(reference).ok()?;
        let (digest, tag) = match name.digest() {
            Some(digest) => (Some(name::with_digest(&name, digest)), None),
            None => (None, name::tagged(&name)),
        };
        self.images.iter().find(|(_, record)| {
            digest.as_ref().is_some_and(|digest| record.digests.contains(digest))
                || tag.as_ref().is_some_and(|tag| record.tags.contains(tag))
        })
    }

    /// Adds an image or more names for one. A tag belongs to one image: others lose it.
    pub fn insert(&mut self, id: &str, mut record: Record) {
        for other in self.images.values_mut() {
            other.tags.retain(|tag| !record.tags.contains(tag));
        }
        if let Some(known) = self.images.get(id) {
            record.tags.extend(known.tags.iter().cloned());
            record.digests.extend(known.digests.iter().cloned());
        }
        self.images.insert(id.to_owned(), record);
    }

    /// Layers that no image is made of, among `candidates`.
    pub fn unused<'a>(&self, candidates: impl IntoIterator<Item = &'a String>) -> Vec<String> {
        let used: BTreeSet<&String> = self.images.values().flat_map(|record| &record.layers).collect();
        candidates.into_iter().filter(|layer| !used.contains(layer)).cloned().collect()
    }
}

impl Record {
    pub fn image(&self, id: &str) -> Image {
        Image {
            id: id.to_owned(),
            tags: self.tags.iter().cloned().collect(),
            digests: self.digests.iter().cloned().collect(),
            size: self.size,
            user: self.config.user.clone(),
            created_at: self.created_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tags: &[&str], layers: &[&str]) -> Record {
        Record {
            tags: tags.iter().map(|tag| tag.to_string()).collect(),
            digests: BTreeSet::new(),
            layers: layers.iter().map(|layer| layer.to_string()).collect(),
            size: 1,
            created_at: None,
            added_at: Timestamp::UNIX_EPOCH,
            config: ImageConfig::default(),
        }
    }

    fn id(digit: &str) -> String {
        format!("sha256:{}", digit.repeat(64))
    }

    #[test]
    fn a_tag_moves_to_the_newest_image() {
        let mut index = Index::default();
        index.insert(&id("a"), record(&["docker.io/library/x:latest", "docker.io/library/x:1"], &["l1"]));
        index.insert(&id("b"), record(&["docker.io/library/x:latest"], &["l1", "l2"]));
        assert_eq!(index.find("x").unwrap().0, &id("b"));
        assert_eq!(index.find("x:1").unwrap().0, &id("a"));
        assert_eq!(index.find(&id("a")).unwrap().0, &id("a"));
        assert_eq!(index.find("y"), None);
    }

    #[test]
    fn putting_an_image_again_adds_names() {
        let mut index = Index::default();
        index.insert(&id("a"), record(&["docker.io/library/x:1"], &[]));
        index.insert(&id("a"), record(&["docker.io/library/x:2"], &[]));
        assert_eq!(index.images[&id("a")].tags.len(), 2);
    }

    #[test]
    fn layers_of_other_images_are_not_unused() {
        let mut index = Index::default();
        index.insert(&id("b"), record(&[], &["l1"]));
        assert_eq!(index.unused(&["l1".to_owned(), "l2".to_owned()]), ["l2"]);
    }
}
