//! Image garbage collection: which unused images are removed when the disk fills up, the least recently used first. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use mainstay_runtime::images::{HOST_IMAGE, Image};

use super::pressure::Amount;
use crate::settings::Eviction;

/// An image that just came is about to be used.
const YOUNG: SignedDuration = SignedDuration::from_mins(2);

/// When each image was first seen and last used.
#[derive(Default)]
pub struct Uses(BTreeMap<String, Use>);

struct Use {
    since: Timestamp,
    last: Timestamp,
}

impl Uses {
    pub fn note(&mut self, images: &[Image], used: &BTreeSet<String>, now: Timestamp) {
        self.0.retain(|id, _| images.iter().any(|image| image.id == *id));
        for image in images {
            let entry = self.0.entry(image.id.clone()).or_insert(Use { since: now, last: Timestamp::MIN });
            if is_used(image, used) {
                entry.last = now;
            }
        }
    }

    /// The ids to remove, in order, until this many bytes are free again.
    pub fn victims(&self, images: &[Image], used: &BTreeSet<String>, bytes: u64, now: Timestamp) -> Vec<String> {
        let idle = |image: &&Image| image.id != HOST_IMAGE && !is_used(image, used);
        let mut old: Vec<(&Use, &Image)> =
            images.iter().filter(idle).filter_map(|image| Some((self.0.get(&image.id)?, image))).collect();
        old.retain(|(observed, _)| now.duration_since(observed.since) >= YOUNG);
        old.sort_by(|(a, x), (b, y)| (a.last, a.since, &x.id).cmp(&(b.last, b.since, &y.id)));
        let mut freed = 0;
        let enough = old.into_iter().take_while(|(_, image)| {
            let more = freed < bytes;
            freed += image.size;
            more
        });
        enough.map(|(_, image)| image.id.clone()).collect()
    }
}

/// By id, name or digest: containers tell any of them.
fn is_used(image: &Image, used: &BTreeSet<String>) -> bool {
    used.contains(&image.id) || image.tags.iter().chain(&image.digests).any(|name| used.contains(name))
}

/// How many bytes to free: none below the high mark; above it, down to the low one.
pub fn to_free(disk: Amount, limits: &Eviction) -> u64 {
    let used = disk.capacity.saturating_sub(disk.available);
    let mark = |percent: u8| disk.capacity / 100 * u64::from(percent);
    if disk.capacity > 0 && used >= mark(limits.image_gc_high) { used - mark(limits.image_gc_low).min(used) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_minute(minute: i64) -> Timestamp {
        Timestamp::from_second(minute * 60).unwrap()
    }

    fn image(id: &str, size: u64) -> Image {
        Image { id: id.into(), tags: vec![format!("{id}:latest")], size, ..Image::default() }
    }

    #[test]
    fn the_least_recently_used_go_first_until_enough_is_free() {
        let images = [image("a", 10), image("b", 10), image("c", 10), image("new", 10), image(HOST_IMAGE, 0)];
        let mut uses = Uses::default();
        uses.note(&images[..3], &["a".to_owned()].into(), at_minute(0));
        uses.note(&images[..3], &["b:latest".to_owned()].into(), at_minute(10));
        uses.note(&images, &BTreeSet::new(), at_minute(20));
        let victims = |bytes, used: &[&str]| {
            uses.victims(&images, &used.iter().map(|s| s.to_string()).collect(), bytes, at_minute(21))
        };
        assert_eq!(victims(15, &[]), ["c", "a"], "one that was never used first");
        assert_eq!(victims(100, &[]), ["c", "a", "b"], "neither the young one nor the machine itself");
        assert_eq!(victims(100, &["a"]), ["c", "b"], "none that is in use");
        assert!(victims(0, &[]).is_empty());
    }

    #[test]
    fn nothing_is_freed_below_the_high_mark() {
        let disk = |available| Amount { capacity: 1000, available };
        let limits = Eviction::default();
        assert_eq!(to_free(disk(151), &limits), 0);
        assert_eq!(to_free(disk(150), &limits), 50);
        assert_eq!(to_free(Amount::default(), &limits), 0);
    }
}
