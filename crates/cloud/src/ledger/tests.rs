//! The ledger over a real API and a cloud in memory, interrupted between any two steps.

use std::collections::BTreeMap;

use mainstay_api::cloud::cloud_resource::{ResourceOwner, ResourceType};
use mainstay_testing::TestApi;
use parking_lot::Mutex;

use super::*;
use crate::openstack::{Service, error::Call};

/// A cloud in memory: tags by id.
#[derive(Default)]
struct FakeCloud {
    resources: Mutex<BTreeMap<String, String>>,
    creates: Mutex<u32>,
    /// How the next creates go wrong: an error, and whether the work was done all the same.
    failures: Mutex<Vec<(u16, bool)>>,
    /// Deletes take effect after so many looks.
    lingers: Mutex<u32>,
}

impl FakeCloud {
    fn count(&self) -> usize {
        self.resources.lock().len()
    }
}

impl ResourceDriver for FakeCloud {
    async fn find(&self, tag: &str) -> Result<Vec<String>, CloudError> {
        Ok(self.resources.lock().iter().filter(|(_, own)| *own == tag).map(|(id, _)| id.clone()).collect())
    }

    async fn create(&self, tag: &str) -> Result<String, CloudError> {
        let number = {
            let mut creates = self.creates.lock();
            *creates += 1;
            *creates
        };
        let id = format!("id-{number}");
        let failure = self.failures.lock().pop();
        if failure.is_none_or(|(_, done)| done) {
            self.resources.lock().insert(id.clone(), tag.to_owned());
        }
        match failure {
            None => Ok(id),
            Some((status, _)) => {
                let call = Call { service: Service::Compute, operation: "create", method: "POST", path: "/".into() };
                Err(CloudError::Refused { call, status, kind: None, message: "no".into(), retry_after: None })
            }
        }
    }

    async fn delete(&self, id: &str) -> Result<(), CloudError> {
        if *self.lingers.lock() == 0 {
            self.resources.lock().remove(id);
        }
        Ok(())
    }

    async fn exists(&self, id: &str) -> Result<bool, CloudError> {
        let mut lingers = self.lingers.lock();
        *lingers = lingers.saturating_sub(1);
        Ok(self.resources.lock().contains_key(id))
    }
}

struct Fixture {
    ledger: Ledger,
    now: Arc<Mutex<Timestamp>>,
    api: TestApi,
}

impl Fixture {
    async fn new() -> Self {
        let api = TestApi::start(&[]).await;
        let now = Arc::new(Mutex::new("2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap()));
        let clock = Clock::new({
            let now = now.clone();
            move || *now.lock()
        });
        let cluster = ClusterId::from_uid("0123456789ab");
        let ledger = Ledger::new(api.client("ledger"), Arc::default(), cluster, clock, Duration::from_secs(30));
        Self { ledger, now, api }
    }

    fn pass(&self, seconds: i64) {
        *self.now.lock() += SignedDuration::from_secs(seconds);
    }

    async fn entries(&self) -> usize {
        let all: Api<CloudResource> = Api::all(self.api.client("test"));
        all.list(&Default::default()).await.unwrap().items.len()
    }
}

fn intent() -> Intent {
    let owner = ResourceOwner {
        api_version: "v1".into(),
        kind: "Service".into(),
        namespace: "n".into(),
        name: "s".into(),
        uid: "u".into(),
    };
    Intent { cloud: "c".into(), resource: ResourceType::Volume, name: "v".into(), owner, ..Intent::default() }
}

#[tokio::test]
async fn what_is_wanted_is_created_once_and_removed_when_it_is_seen_gone() {
    let (fixture, cloud) = (Fixture::new().await, FakeCloud::default());
    let entry = fixture.ledger.ensure(&intent(), &cloud).await.unwrap();
    assert_eq!((entry.id.as_deref(), entry.phase), (Some("id-1"), ResourcePhase::Created));
    let same = fixture.ledger.ensure(&intent(), &cloud).await.unwrap();
    assert_eq!((same.id.as_deref(), cloud.count(), fixture.entries().await), (Some("id-1"), 1, 1));
    *cloud.lingers.lock() = 3;
    assert_eq!(fixture.ledger.remove(&same, &cloud).await.unwrap(), Removal::Pending);
    assert_eq!((cloud.count(), fixture.entries().await), (1, 1), "the entry stays while the cloud shows it");
    *cloud.lingers.lock() = 0;
    assert_eq!(fixture.ledger.remove(&same, &cloud).await.unwrap(), Removal::Done);
    assert_eq!((cloud.count(), fixture.entries().await), (0, 0));
}

#[tokio::test]
async fn a_crash_after_the_create_is_mended_by_the_tag() {
    let (fixture, cloud) = (Fixture::new().await, FakeCloud::default());
    let (entry, is_new) = fixture.ledger.intend(&intent()).await.unwrap();
    assert!(is_new);
    cloud.create(&entry.tag).await.unwrap();
    // Killed here. Another process goes on:
    let adopted = fixture.ledger.ensure(&intent(), &cloud).await.unwrap();
    assert_eq!((adopted.id.as_deref(), cloud.count()), (Some("id-1"), 1));
}

#[tokio::test]
async fn a_crash_before_the_create_is_waited_out_and_then_created_once() {
    let (fixture, cloud) = (Fixture::new().await, FakeCloud::default());
    fixture.ledger.intend(&intent()).await.unwrap();
    let error = fixture.ledger.ensure(&intent(), &cloud).await.unwrap_err();
    assert!(error.settles_at().is_some(), "a create may still be under way: {error}");
    fixture.pass(40);
    fixture.ledger.ensure(&intent(), &cloud).await.unwrap();
    assert_eq!(cloud.count(), 1);
}

#[tokio::test]
async fn a_create_without_an_answer_is_looked_for_before_it_is_repeated() {
    let (fixture, cloud) = (Fixture::new().await, FakeCloud::default());
    cloud.failures.lock().push((500, true));
    assert!(fixture.ledger.ensure(&intent(), &cloud).await.is_err());
    assert_eq!((cloud.count(), fixture.entries().await), (1, 1));
    let found = fixture.ledger.ensure(&intent(), &cloud).await.unwrap();
    assert_eq!((found.id.as_deref(), *cloud.creates.lock()), (Some("id-1"), 1));
}

#[tokio::test]
async fn a_create_that_was_refused_leaves_no_entry() {
    let (fixture, cloud) = (Fixture::new().await, FakeCloud::default());
    cloud.failures.lock().push((403, false));
    let error = fixture.ledger.ensure(&intent(), &cloud).await.unwrap_err();
    assert_eq!(error.cloud().and_then(CloudError::status), Some(403));
    assert_eq!((cloud.count(), fixture.entries().await), (0, 0));
}

#[tokio::test]
async fn an_intent_that_is_not_wanted_any_more_is_forgotten_once_it_is_settled() {
    let (fixture, cloud) = (Fixture::new().await, FakeCloud::default());
    let (entry, _) = fixture.ledger.intend(&intent()).await.unwrap();
    assert!(fixture.ledger.remove(&entry, &cloud).await.unwrap_err().settles_at().is_some());
    // The create that was under way takes effect late.
    cloud.create(&entry.tag).await.unwrap();
    assert_eq!(fixture.ledger.remove(&entry, &cloud).await.unwrap(), Removal::Done);
    assert_eq!((cloud.count(), fixture.entries().await), (0, 0));
    let (entry, _) = fixture.ledger.intend(&intent()).await.unwrap();
    fixture.pass(40);
    assert_eq!(fixture.ledger.remove(&entry, &cloud).await.unwrap(), Removal::Done);
    assert_eq!(fixture.entries().await, 0);
}

#[tokio::test]
async fn of_two_with_one_tag_one_stays() {
    let (fixture, cloud) = (Fixture::new().await, FakeCloud::default());
    let (entry, _) = fixture.ledger.intend(&intent()).await.unwrap();
    cloud.create(&entry.tag).await.unwrap();
    cloud.create(&entry.tag).await.unwrap();
    let adopted = fixture.ledger.ensure(&intent(), &cloud).await.unwrap();
    assert_eq!((adopted.id.as_deref(), cloud.count()), (Some("id-1"), 1));
}

#[tokio::test]
async fn two_who_want_the_same_write_one_entry() {
    let (fixture, cloud) = (Fixture::new().await, FakeCloud::default());
    let first = fixture.ledger.intend(&intent()).await.unwrap();
    let second = fixture.ledger.intend(&intent()).await.unwrap();
    assert_eq!((first.0.uid, first.1, second.1), (second.0.uid, true, false));
    assert_eq!(cloud.count(), 0);
}

#[tokio::test]
async fn what_only_seems_gone_is_neither_forgotten_nor_deleted() {
    let (fixture, cloud) = (Fixture::new().await, FakeCloud::default());
    let entry = fixture.ledger.ensure(&intent(), &cloud).await.unwrap();
    assert!(!fixture.ledger.forget_gone(&entry, &cloud).await.unwrap(), "the first look was at stale data");
    assert_eq!((cloud.count(), fixture.entries().await), (1, 1));
    cloud.resources.lock().clear();
    assert!(fixture.ledger.forget_gone(&entry, &cloud).await.unwrap());
    assert_eq!(fixture.entries().await, 0);
}
