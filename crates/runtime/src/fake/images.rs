//! Images of the fake: names with nothing behind them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::{
    images::{Auth, DiskUsage, HOST_IMAGE, Image, Images, PullError},
    port::Result,
};

type Refusal = Arc<dyn Fn() -> PullError + Send + Sync>;

/// One pull as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    pub reference: String,
    pub auth: Option<Auth>,
}

pub struct FakeImages {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the name they were added or pulled under.
    present: BTreeMap<String, Image>,
    refusals: HashMap<String, Refusal>,
    pulls: Vec<Pull>,
    usage: DiskUsage,
}

impl FakeImages {
    pub(super) fn new() -> Self {
        let images = Self { state: Mutex::default() };
        images.add("busybox");
        images
            .state
            .lock()
            .present
            .insert(HOST_IMAGE.to_owned(), Image { id: HOST_IMAGE.to_owned(), ..Image::default() });
        images
    }

    pub fn add(&self, reference: &str) -> Image {
        let image = made_up(reference);
        self.insert(reference, image.clone());
        image
    }

    pub fn insert(&self, reference: &str, image: Image) {
        self.state.lock().present.insert(reference.to_owned(), image);
    }

    pub fn forget(&self, reference: &str) {
        self.state.lock().present.remove(reference);
    }

    /// Pulls of this fail until [`FakeImages::allow`].
    pub fn refuse(&self, reference: &str, why: impl Fn() -> PullError + Send + Sync + 'static) {
        self.state.lock().refusals.insert(reference.to_owned(), Arc::new(why));
    }

    pub fn allow(&self, reference: &str) {
        self.state.lock().refusals.remove(reference);
    }

    pub fn pulls(&self) -> Vec<Pull> {
        self.state.lock().pulls.clone()
    }

    pub fn set_usage(&self, usage: DiskUsage) {
        self.state.lock().usage = usage;
    }

    pub(super) fn has(&self, image: &str, id: &str) -> bool {
        let state = self.state.lock();
        state.present.contains_key(image)
            || state.present.values().any(|i| i.id == id || i.digests.iter().any(|d| d == id))
    }
}

/// Upstream's shape of names and ids, derived from the reference alone.
fn made_up(reference: &str) -> Image {
    let hash = format!("{:032x}", xxh(reference));
    let digest = format!("sha256:{hash}{hash}");
    let last = reference.rsplit('/').next().unwrap_or(reference);
    let (name, tag) = match last.split_once(':') {
        Some((_, tag)) => (reference.trim_end_matches(tag).trim_end_matches(':'), tag),
        None => (reference, "latest"),
    };
    let name = if name.contains('/') { name.to_owned() } else { format!("docker.io/library/{name}") };
    Image {
        id: digest.clone(),
        tags: vec![format!("{name}:{tag}")],
        digests: vec![format!("{name}@{digest}")],
        size: 1 << 20,
        user: String::new(),
        created_at: None,
    }
}

/// Any spread-out function of the text does.
fn xxh(text: &str) -> u128 {
    text.bytes().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

#[async_trait]
impl Images for FakeImages {
    async fn list(&self) -> Result<Vec<Image>> {
        Ok(self.state.lock().present.values().cloned().collect())
    }

    async fn find(&self, reference: &str) -> Result<Option<Image>> {
        let state = self.state.lock();
        let named = |i: &&Image| i.id == reference || i.tags.iter().chain(&i.digests).any(|name| name == reference);
        Ok(state.present.get(reference).or_else(|| state.present.values().find(named)).cloned())
    }

    async fn pull(&self, reference: &str, auth: Option<&Auth>) -> std::result::Result<Image, PullError> {
        let mut state = self.state.lock();
        state.pulls.push(Pull { reference: reference.to_owned(), auth: auth.cloned() });
        if let Some(refusal) = state.refusals.get(reference) {
            return Err(refusal());
        }
        Ok(state.present.entry(reference.to_owned()).or_insert_with(|| made_up(reference)).clone())
    }

    async fn remove(&self, id: &str) -> Result<()> {
        self.state.lock().present.retain(|_, image| image.id != id);
        Ok(())
    }

    async fn usage(&self) -> Result<DiskUsage> {
        Ok(self.state.lock().usage)
    }
}
