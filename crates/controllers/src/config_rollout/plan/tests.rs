use serde_json::{Value, json};

use super::*;
use crate::config_rollout::workload::{OwnDeadline, RolloutPod};
use mainstay_api::config_versions::copy_config_map;

fn zones() -> ConfigSource {
    ConfigSource::config_map("zones")
}

fn body(source: &ConfigSource, content: &str) -> CopyBody {
    let map = json!({"metadata": {"name": source.name, "namespace": "shop"}, "data": {"k": content}});
    CopyBody::ConfigMap(Box::new(copy_config_map(&serde_json::from_value(map).unwrap())))
}

/// The name of the copy of `zones` with this content.
fn copy(content: &str) -> String {
    body(&zones(), content).name().to_owned()
}

fn versions(content: &str) -> ConfigVersions {
    ConfigVersions { copies: [(zones(), copy(content))].into() }
}

/// A workload that shows `zones`, with an API around it that does what is planned.
struct Model {
    world: World,
    events: Vec<String>,
    now: Timestamp,
    deleted: Vec<String>,
}

impl Model {
    fn new(content: &str) -> Self {
        let workload = Workload {
            uid: "u".to_owned(),
            version: "1".to_owned(),
            is_being_deleted: false,
            is_budgeted: true,
            sources: [zones()].into(),
            template: None,
            rolled_out: None,
            last_good: None,
            progress: Progress::UnderWay,
            deadline: None,
        };
        let (owned, in_use) = (BTreeSet::new(), BTreeSet::new());
        let mut model = Self {
            world: World { workload, contents: BTreeMap::new(), owned, in_use },
            events: vec![],
            now: Timestamp::UNIX_EPOCH,
            deleted: vec![],
        };
        model.change(content);
        model
    }

    fn change(&mut self, content: &str) {
        self.world.contents.insert(zones(), body(&zones(), content));
        self.settle();
    }

    fn progress(&mut self, progress: Progress) {
        self.world.workload.progress = progress;
        self.settle();
    }

    /// Applies plans until there is nothing left to do.
    fn settle(&mut self) {
        for _ in 0..10 {
            let actions = plan(&self.world, self.now);
            if actions.is_empty() {
                return;
            }
            actions.into_iter().for_each(|action| self.apply(action));
        }
        panic!("it never rests: {:?}", plan(&self.world, self.now));
    }

    fn apply(&mut self, action: Action) {
        let workload = &mut self.world.workload;
        match action {
            Action::EnsureCopy(body) => {
                self.world.owned.insert(OwnedCopy { kind: body.kind(), name: body.name().to_owned() });
            }
            Action::Release(copy) => assert!(self.world.owned.remove(&copy), "{copy:?}"),
            Action::Write(write) => {
                assert_eq!(write.version, workload.version, "fenced by what was judged");
                for (source, copy) in write.template.iter().flat_map(|versions| &versions.copies) {
                    let copy = OwnedCopy { kind: source.kind, name: copy.clone() };
                    assert!(self.world.owned.contains(&copy), "a template names no copy that is not there");
                }
                if write.template != workload.template {
                    // A new template is a new rollout.
                    workload.progress = Progress::UnderWay;
                    let named = write.template.iter().flat_map(|versions| &versions.copies);
                    self.world
                        .in_use
                        .extend(named.map(|(source, name)| OwnedCopy { kind: source.kind, name: name.clone() }));
                }
                (workload.template, workload.rolled_out, workload.last_good) =
                    (write.template, write.rolled_out, write.last_good);
                workload.version.push('+');
                if let Some(deadline) = &mut workload.deadline {
                    deadline.began = write.began;
                }
                self.events.push(
                    match write.why {
                        Why::Changed(_) => "changed",
                        Why::Failed(_) => "failed",
                        Why::TakenBack(_) => "taken back",
                        Why::Complete => "complete",
                        Why::Unbudgeted => "unbudgeted",
                        Why::Recorded => "recorded",
                    }
                    .to_owned(),
                );
            }
            Action::DeletePod { name, uid } => {
                let deadline = workload.deadline.as_mut().unwrap();
                assert!(deadline.pods.iter().any(|pod| pod.uid == uid), "fenced");
                deadline.pods.retain(|pod| pod.uid != uid);
                self.deleted.push(name);
            }
        }
    }

    fn named(&self) -> Option<&String> {
        self.world.workload.template.as_ref()?.copies.get(&zones())
    }

    fn events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
    }

    fn owned(&self) -> Vec<String> {
        self.world.owned.iter().map(|copy| copy.name.clone()).collect()
    }
}

#[test]
fn a_changed_content_is_rolled_out_once_and_then_there_is_rest() {
    let mut model = Model::new("1");
    assert_eq!(model.named(), Some(&copy("1")));
    model.progress(Progress::Complete);
    assert_eq!(model.world.workload.last_good, Some(versions("1")));
    model.change("2");
    assert_eq!(model.named(), Some(&copy("2")));
    assert_eq!(model.events(), ["changed", "complete", "changed"]);
    model.change("2");
    assert!(model.events().is_empty(), "the same content is no news");
}

#[test]
fn a_copy_is_there_before_the_template_names_it() {
    let mut model = Model::new("1");
    model.world.contents.insert(zones(), body(&zones(), "2"));
    let actions = plan(&model.world, model.now);
    assert_eq!(actions[0], Action::EnsureCopy(body(&zones(), "2")));
    assert!(matches!(&actions[1..], [Action::Write(_)]), "{actions:?}");
    // One that somebody deleted is made again.
    model.settle();
    model.world.owned.clear();
    assert_eq!(plan(&model.world, model.now), [Action::EnsureCopy(body(&zones(), "2"))]);
}

#[test]
fn what_was_taken_back_stays_until_the_content_changes() {
    for keeps_record in [true, false] {
        let mut model = Model::new("1");
        model.progress(Progress::Complete);
        model.change("2");
        model.progress(Progress::Complete);
        model.events();
        // `kubectl rollout undo`, which takes a Deployment's annotations away.
        model.world.workload.template = Some(versions("1"));
        if !keeps_record {
            (model.world.workload.rolled_out, model.world.workload.last_good) = (None, None);
        }
        model.progress(Progress::UnderWay);
        assert_eq!(model.named(), Some(&copy("1")));
        model.progress(Progress::Complete);
        assert_eq!(model.named(), Some(&copy("1")));
        assert_eq!(model.world.workload.last_good, Some(versions("1")));
        assert_eq!(model.world.workload.rolled_out, Some(versions("2")));
        assert!(!model.events().contains(&"changed".to_owned()));
        model.change("3");
        assert_eq!(model.named(), Some(&copy("3")));
        // And what was taken back once may be rolled out again.
        model.progress(Progress::Complete);
        model.change("2");
        assert_eq!(model.named(), Some(&copy("2")));
    }
}

#[test]
fn undoing_the_undo_is_as_if_nothing_happened() {
    let mut model = Model::new("1");
    model.change("2");
    model.world.workload.template = Some(versions("1"));
    model.settle();
    model.world.workload.template = Some(versions("2"));
    model.settle();
    model.progress(Progress::Complete);
    assert_eq!(model.world.workload.last_good, Some(versions("2")));
}

#[test]
fn a_rollout_that_fails_returns_to_the_last_good_version_and_stays_there() {
    let mut model = Model::new("1");
    model.progress(Progress::Complete);
    model.change("bad");
    model.events();
    model.progress(Progress::Failed);
    assert_eq!(model.named(), Some(&copy("1")));
    assert_eq!(model.events(), ["failed"]);
    model.progress(Progress::Failed);
    model.progress(Progress::Complete);
    assert_eq!(model.named(), Some(&copy("1")));
    assert!(model.events().is_empty());
    // The next content is tried, and a second failure returns as well.
    model.change("worse");
    model.progress(Progress::Failed);
    assert_eq!(model.named(), Some(&copy("1")));
    model.change("2");
    model.progress(Progress::Complete);
    assert_eq!(model.world.workload.last_good, Some(versions("2")));
}

#[test]
fn a_first_rollout_that_fails_has_nothing_to_return_to() {
    let mut model = Model::new("bad");
    model.events();
    model.progress(Progress::Failed);
    assert_eq!(model.named(), Some(&copy("bad")));
    assert!(model.events().is_empty());
    // Nor does a rollout of something else that fails.
    model.progress(Progress::Complete);
    model.events();
    model.progress(Progress::Failed);
    assert_eq!(model.named(), Some(&copy("bad")));
    assert!(model.events().is_empty());
}

#[test]
fn what_is_missing_has_no_version_and_what_was_deleted_keeps_its_last() {
    let mut model = Model::new("1");
    model.world.workload.sources.insert(ConfigSource::secret("key"));
    model.settle();
    let named = model.world.workload.template.clone().unwrap();
    assert_eq!(named, versions("1"), "nothing stands for the Secret; a pod waits for it");
    model.world.contents.clear();
    model.settle();
    assert_eq!(model.world.workload.template, Some(versions("1")));
    assert_eq!(model.owned(), [copy("1")]);
    model.change("1");
    model.change("2");
    assert_eq!(model.named(), Some(&copy("2")));
}

#[test]
fn what_the_template_no_longer_shows_is_no_longer_named() {
    let mut model = Model::new("1");
    model.world.workload.sources.clear();
    model.world.contents.clear();
    model.world.in_use.clear();
    model.settle();
    assert_eq!(model.world.workload.template, None);
    assert_eq!(model.world.workload.rolled_out, Some(ConfigVersions::default()));
    assert!(model.owned().is_empty());
}

#[test]
fn a_copy_goes_when_neither_pods_nor_revisions_name_it() {
    let mut model = Model::new("1");
    model.progress(Progress::Complete);
    model.change("2");
    model.progress(Progress::Complete);
    assert_eq!(model.owned().len(), 2, "a retained revision names the first");
    model.world.in_use.retain(|used| used.name == copy("2"));
    model.settle();
    assert_eq!(model.owned(), [copy("2")]);
    // The last good one stays while a rollout is under way, whatever the history is.
    model.change("3");
    model.world.in_use.clear();
    model.settle();
    assert_eq!(model.owned().len(), 2);
    model.progress(Progress::Failed);
    assert_eq!(model.named(), Some(&copy("2")));
}

#[test]
fn a_workload_that_is_no_longer_budgeted_gives_its_versions_up() {
    let mut model = Model::new("1");
    model.progress(Progress::Complete);
    model.events();
    model.world.workload.is_budgeted = false;
    model.world.contents.clear();
    model.settle();
    assert_eq!(model.events(), ["unbudgeted"]);
    let workload = &model.world.workload;
    assert_eq!((&workload.template, &workload.rolled_out, &workload.last_good), (&None, &None, &None));
    model.world.in_use.clear();
    model.settle();
    assert!(model.owned().is_empty());
    // Versions that somebody else writes are not touched.
    model.world.workload.template = Some(versions("1"));
    assert_eq!(plan(&model.world, model.now), []);
}

#[test]
fn a_template_with_versions_of_another_workload_gets_its_own() {
    let mut model = Model::new("1");
    // As of a manifest that was written from another workload: the copies are not this one's.
    model.world.owned.clear();
    (model.world.workload.template, model.world.workload.rolled_out) = (Some(versions("old")), None);
    model.settle();
    assert_eq!(model.named(), Some(&copy("1")));
}

#[test]
fn a_workload_that_is_being_deleted_is_left_alone() {
    let mut model = Model::new("1");
    model.world.workload.is_being_deleted = true;
    model.world.contents.insert(zones(), body(&zones(), "2"));
    assert_eq!(plan(&model.world, model.now), []);
}

#[test]
fn a_plan_shows_no_content() {
    let secret: Value = json!({"metadata": {"name": "key", "namespace": "shop"}, "data": {"k": "c2VjcmV0LXZhbHVl"}});
    let copy = mainstay_api::config_versions::copy_secret(&serde_json::from_value(secret).unwrap());
    let text = format!("{:?}", Action::EnsureCopy(CopyBody::Secret(Box::new(copy))));
    assert!(text.starts_with("EnsureCopy(secret/key-"), "{text}");
    assert!(!text.contains("secret-value") && !text.contains("c2Vj"), "{text}");
}

proptest::proptest! {
    /// Whatever happens in whatever order: every plan comes to rest, a template names only copies that are there, and what it names is what the
    /// content is, or was, or was good.
    #[test]
    fn it_always_rests(steps in proptest::collection::vec((0u8..6, 0u8..4), 1..40)) {
        let mut model = Model::new("0");
        for (step, number) in steps {
            let content = number.to_string();
            match step {
                0 | 1 => model.change(&content),
                2 => model.progress(Progress::Complete),
                3 => model.progress(Progress::Failed),
                // Somebody takes it back to some version that is still there.
                4 => {
                    let there = model.world.owned.contains(&OwnedCopy { kind: ConfigKind::ConfigMap, name: copy(&content) });
                    if there {
                        model.world.workload.template = Some(versions(&content));
                        model.world.workload.progress = Progress::UnderWay;
                        model.settle();
                    }
                }
                _ => {
                    // History is trimmed.
                    let named = model.named().cloned();
                    model.world.in_use.retain(|used| Some(&used.name) == named.as_ref());
                    model.settle();
                }
            }
            let named = OwnedCopy { kind: ConfigKind::ConfigMap, name: model.named().unwrap().clone() };
            proptest::prop_assert!(model.world.owned.contains(&named));
        }
    }
}

fn rollout_pod(name: &str, content: &str, ready_since: Option<i64>) -> RolloutPod {
    RolloutPod {
        name: name.to_owned(),
        uid: format!("{name}-{content}"),
        versions: versions(content),
        is_leaving: false,
        ready_since: ready_since.map(second),
        waits: false,
        needs_met: None,
    }
}

fn second(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

/// A set of two pods that was complete with the first version, and whose second version has reached one of them.
fn set_with_a_second_version(waits_for_unready: bool) -> Model {
    let mut model = Model::new("1");
    let (limit, pods) = (jiff::SignedDuration::from_secs(600), Vec::new());
    model.world.workload.deadline = Some(OwnDeadline { limit, began: None, pods, waits_for_unready });
    model.progress(Progress::Complete);
    model.now = second(1000);
    model.change("2");
    let deadline = model.world.workload.deadline.as_mut().unwrap();
    assert_eq!(deadline.began, Some(second(1000)));
    deadline.pods = vec![rollout_pod("db-0", "1", Some(10)), rollout_pod("db-1", "2", None)];
    model.settle();
    model.events();
    model
}

#[test]
fn a_set_without_a_deadline_of_its_own_returns_when_nothing_moved_for_too_long() {
    let mut model = set_with_a_second_version(true);
    assert_eq!(next_look(&model.world), Some(second(1600)));
    model.now = second(1599);
    model.settle();
    assert_eq!(model.named(), Some(&copy("2")));
    assert!(model.events().is_empty());
    model.now = second(1600);
    model.settle();
    assert_eq!(model.named(), Some(&copy("1")));
    assert_eq!(model.events(), ["failed"]);
    assert_eq!(model.deleted, ["db-1"], "its controller would wait for it");
    assert_eq!(next_look(&model.world), None);
    // The next content is tried again.
    model.now = second(2000);
    model.change("3");
    assert_eq!(model.named(), Some(&copy("3")));
    assert_eq!(model.events(), ["changed"]);
}

#[test]
fn pods_that_get_on_and_pods_that_wait_for_their_needs_do_not_fail_a_set() {
    let mut model = set_with_a_second_version(false);
    fn pods(model: &mut Model) -> &mut Vec<RolloutPod> {
        &mut model.world.workload.deadline.as_mut().unwrap().pods
    }
    *pods(&mut model) = vec![rollout_pod("db-0", "2", None), rollout_pod("db-1", "2", Some(1500))];
    assert_eq!(next_look(&model.world), Some(second(2100)), "counts from the last progress");
    pods(&mut model)[0].waits = true;
    assert_eq!(next_look(&model.world), None);
    model.now = second(9000);
    model.settle();
    assert_eq!(model.named(), Some(&copy("2")), "waiting is not failing");
    (pods(&mut model)[0].waits, pods(&mut model)[0].needs_met) = (false, Some(second(8900)));
    assert_eq!(next_look(&model.world), Some(second(9500)));
    model.now = second(9500);
    model.settle();
    assert_eq!((model.named(), model.deleted.len()), (Some(&copy("1")), 0), "a DaemonSet replaces them by itself");
    // Without any pod of the version nothing is known: a partition may hold it back.
    let mut model = set_with_a_second_version(true);
    *pods(&mut model) = vec![rollout_pod("db-0", "1", Some(10))];
    model.now = second(99_000);
    model.settle();
    assert_eq!(model.named(), Some(&copy("2")));
}
