//! Image garbage collection: chooses the least recently used images that nothing uses, until enough space is free. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

/// An image as the choice sees it.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub id: String,
    pub layers: Vec<String>,
    pub last_used: SystemTime,
}

/// Chooses among `images`, of which those `in_use` and those used after `young` stay. A layer is freed with the last image
/// that is made of it: `sizes` are the layers' own.
pub fn choose(
    images: &[Candidate],
    in_use: &BTreeSet<String>,
    sizes: &BTreeMap<String, u64>,
    young: SystemTime,
    bytes_to_free: u64,
) -> Vec<String> {
    let mut holders: BTreeMap<&str, usize> = BTreeMap::new();
    for layer in images.iter().flat_map(|image| distinct(&image.layers)) {
        *holders.entry(layer).or_default() += 1;
    }
    let mut oldest: Vec<&Candidate> =
        images.iter().filter(|image| !in_use.contains(&image.id) && image.last_used < young).collect();
    oldest.sort_by(|a, b| (a.last_used, &a.id).cmp(&(b.last_used, &b.id)));
    let (mut chosen, mut freed) = (Vec::new(), 0);
    for image in oldest {
        if freed >= bytes_to_free {
            break;
        }
        for layer in distinct(&image.layers) {
            let holders = holders.entry(layer).or_default();
            *holders = holders.saturating_sub(1);
            if *holders == 0 {
                freed += sizes.get(layer).copied().unwrap_or(0);
            }
        }
        chosen.push(image.id.clone());
    }
    chosen
}

fn distinct(layers: &[String]) -> BTreeSet<&str> {
    layers.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at_second(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn image(id: &str, layers: &[&str], last_used: u64) -> Candidate {
        let layers = layers.iter().map(|layer| layer.to_string()).collect();
        Candidate { id: id.into(), layers, last_used: at_second(last_used) }
    }

    fn chosen(images: &[Candidate], in_use: &[&str], bytes: u64) -> Vec<String> {
        let in_use = in_use.iter().map(|id| id.to_string()).collect();
        let sizes = [("base", 100), ("a", 10), ("b", 20), ("c", 30)].map(|(id, size)| (id.to_owned(), size));
        choose(images, &in_use, &sizes.into(), at_second(1000), bytes)
    }

    #[test]
    fn the_least_recently_used_go_first_and_no_more_than_needed() {
        let images = [image("x", &["a"], 3), image("y", &["b"], 1), image("z", &["c"], 2)];
        assert_eq!(chosen(&images, &[], 15), ["y"]);
        assert_eq!(chosen(&images, &[], 21), ["y", "z"]);
        assert_eq!(chosen(&images, &[], 0), Vec::<String>::new());
    }

    #[test]
    fn images_in_use_and_young_ones_stay() {
        let images = [image("x", &["a"], 1), image("y", &["b"], 2), image("z", &["c"], 2000)];
        assert_eq!(chosen(&images, &["x"], u64::MAX), ["y"]);
    }

    #[test]
    fn a_shared_layer_frees_nothing_until_its_last_image_goes() {
        let images = [image("x", &["base", "a"], 1), image("y", &["base", "b"], 2), image("z", &["c"], 3)];
        assert_eq!(chosen(&images, &[], 11), ["x", "y"]);
        assert_eq!(chosen(&images, &["y"], 11), ["x", "z"]);
    }
}
