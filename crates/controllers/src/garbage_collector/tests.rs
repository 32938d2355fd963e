//! The graph and the plan together, against a model of the API: random objects come and go,
//! events are late or lost, actions are applied after the world has moved on.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::api::ApiResource;
use proptest::prelude::*;

use super::{
    graph::{DeletionState, FOREGROUND, ORPHAN, OwnerGraph},
    object,
    plan::{Action, OwnerState, Policy, World, plan},
};
use crate::runtime::{
    discovery::ServerResource, metadata_watch::MetadataEvent, object_meta::ObjectLocation, object_meta::Uid,
};

const FOREIGN: &str = "x.example.com/y";

#[derive(Clone, Debug)]
enum Command {
    /// Owners by how many objects ago they were made; far beyond the first there was nobody.
    Create {
        kind: bool,
        owners: Vec<(usize, bool)>,
        held: bool,
    },
    Delete {
        ago: usize,
        policy: Policy,
    },
    /// Takes the foreign finalizer away.
    Release {
        ago: usize,
    },
    /// The watch of a kind breaks, what it was about to tell is lost, and it starts over.
    Break {
        kind: bool,
    },
}

fn command() -> impl Strategy<Value = Command> {
    let policy = prop_oneof![Just(Policy::Background), Just(Policy::Foreground), Just(Policy::Orphan)];
    let owners = prop::collection::vec((1..8usize, any::<bool>()), 0..3);
    prop_oneof![
        6 => (any::<bool>(), owners, prop::bool::weighted(0.15))
            .prop_map(|(kind, owners, held)| Command::Create { kind, owners, held }),
        3 => (1..12usize, policy).prop_map(|(ago, policy)| Command::Delete { ago, policy }),
        1 => (1..20usize).prop_map(|ago| Command::Release { ago }),
        1 => any::<bool>().prop_map(|kind| Command::Break { kind }),
    ]
}

struct Model {
    kinds: [Arc<ServerResource>; 2],
    objects: BTreeMap<String, (bool, ObjectMeta)>,
    made: usize,
    version: u64,
    events: [VecDeque<MetadataEvent>; 2],
    graph: OwnerGraph,
    queue: BTreeSet<Uid>,
    /// Plans that were made and not yet carried out, by whom they were for.
    under_way: VecDeque<(Uid, VecDeque<Action>)>,
    /// What must survive, because all its owners were deleted for it to stay.
    orphans: BTreeSet<String>,
    /// What was ever deleted in the foreground.
    foreground: BTreeSet<String>,
}

fn resource(plural: &str) -> Arc<ServerResource> {
    let api = ApiResource {
        group: String::new(),
        version: "v1".into(),
        api_version: "v1".into(),
        kind: plural.into(),
        plural: plural.into(),
    };
    Arc::new(ServerResource { api, namespaced: true, verbs: Vec::new() })
}

impl Model {
    fn new() -> Self {
        let mut model = Self {
            kinds: [resource("as"), resource("bs")],
            objects: BTreeMap::new(),
            made: 0,
            version: 0,
            events: Default::default(),
            graph: OwnerGraph::default(),
            queue: BTreeSet::new(),
            under_way: VecDeque::new(),
            orphans: BTreeSet::new(),
            foreground: BTreeSet::new(),
        };
        model.relist(false);
        model.relist(true);
        model
    }

    fn relist(&mut self, kind: bool) {
        let events = &mut self.events[usize::from(kind)];
        events.clear();
        events.push_back(MetadataEvent::ListBegan);
        let own = self.objects.values().filter(|(k, _)| *k == kind);
        events.extend(own.map(|(_, meta)| MetadataEvent::Applied(meta.clone())));
        events.push_back(MetadataEvent::ListEnded);
    }

    fn ago(&self, ago: usize) -> String {
        match self.made.checked_sub(ago) {
            Some(index) => format!("u{index}"),
            None => "nobody".to_owned(),
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Create { kind, owners, held } => {
                let reference = |(ago, block): (usize, bool)| OwnerReference {
                    uid: self.ago(ago),
                    block_owner_deletion: Some(block),
                    ..OwnerReference::default()
                };
                let mut references: Vec<_> = owners.into_iter().map(reference).collect();
                references.dedup_by(|a, b| a.uid == b.uid);
                let uid = format!("u{}", self.made);
                self.made += 1;
                let meta = ObjectMeta {
                    name: Some(uid.clone()),
                    namespace: Some("n".into()),
                    uid: Some(uid.clone()),
                    owner_references: Some(references),
                    finalizers: held.then(|| vec![FOREIGN.to_owned()]),
                    ..ObjectMeta::default()
                };
                self.put(kind, meta);
            }
            Command::Delete { ago, policy } => {
                let uid = self.ago(ago);
                let alive = |meta: &ObjectMeta| meta.deletion_timestamp.is_none();
                if !self.objects.get(&uid).is_some_and(|(_, meta)| alive(meta)) {
                    return;
                }
                self.orphans.remove(&uid);
                if policy == Policy::Orphan {
                    let only = |meta: &ObjectMeta| matches!(references(meta), [one] if one.uid == uid) && alive(meta);
                    let orphans = self.objects.iter().filter(|(_, (_, meta))| only(meta)).map(|(uid, _)| uid.clone());
                    self.orphans.extend(orphans);
                }
                self.delete(&uid, policy);
            }
            Command::Release { ago } => {
                let uid = self.ago(ago);
                self.change(&uid, |meta| meta.finalizers.iter_mut().for_each(|all| all.retain(|f| f != FOREIGN)));
            }
            Command::Break { kind } => self.relist(kind),
        }
    }

    fn put(&mut self, kind: bool, mut meta: ObjectMeta) {
        self.version += 1;
        meta.resource_version = Some(self.version.to_string());
        let uid = meta.uid.clone().unwrap();
        let over = meta.deletion_timestamp.is_some() && meta.finalizers.iter().flatten().next().is_none();
        let events = &mut self.events[usize::from(kind)];
        if over {
            self.objects.remove(&uid);
            events.push_back(MetadataEvent::Deleted(meta));
        } else {
            events.push_back(MetadataEvent::Applied(meta.clone()));
            self.objects.insert(uid, (kind, meta));
        }
    }

    fn change(&mut self, uid: &str, change: impl FnOnce(&mut ObjectMeta)) {
        let Some((kind, mut meta)) = self.objects.get(uid).cloned() else { return };
        change(&mut meta);
        self.put(kind, meta);
    }

    fn delete(&mut self, uid: &str, policy: Policy) {
        if policy == Policy::Foreground {
            self.foreground.insert(uid.to_owned());
        }
        self.change(uid, |meta| {
            let finalizers = meta.finalizers.get_or_insert_default();
            finalizers.retain(|f| f != ORPHAN && f != FOREGROUND);
            match policy {
                Policy::Background => {}
                Policy::Foreground => finalizers.push(FOREGROUND.to_owned()),
                Policy::Orphan => finalizers.push(ORPHAN.to_owned()),
            }
            meta.deletion_timestamp.get_or_insert(Time(jiff::Timestamp::UNIX_EPOCH));
        });
    }

    fn deliver(&mut self, kind: bool) -> bool {
        let Some(observed) = self.events[usize::from(kind)].pop_front() else { return false };
        let resource = &self.kinds[usize::from(kind)];
        let affected = match observed {
            MetadataEvent::ListBegan => {
                self.graph.begin_list(resource);
                Vec::new()
            }
            MetadataEvent::Applied(meta) => self.graph.upsert(resource, &meta),
            MetadataEvent::Deleted(meta) => self.graph.remove(&meta.uid.unwrap()),
            MetadataEvent::ListEnded => self.graph.end_list(resource),
            MetadataEvent::ResourceRemoved => unreachable!("kinds stay"),
        };
        self.queue.extend(affected);
        true
    }

    /// As the collector observes, only that the API is the model.
    fn look(&mut self) -> bool {
        let busy: BTreeSet<Uid> = self.under_way.iter().map(|(uid, _)| uid.clone()).collect();
        let Some(uid) = self.queue.iter().find(|uid| !busy.contains(*uid)).cloned() else { return false };
        self.queue.remove(&uid);
        let Some(entry) = self.graph.entry(&uid) else { return true };
        let Some((_, meta)) = self.objects.get(&*uid).cloned() else {
            let affected = self.graph.remove(&uid);
            self.queue.extend(affected);
            return true;
        };
        let found = object(entry.location, meta);
        let dependents = entry.dependents;
        let world = match found.deletion {
            DeletionState::BackgroundDeletion => return true,
            DeletionState::ForegroundDeletion => World::Awaiting { object: found, dependents },
            DeletionState::OrphaningDependents => {
                let names = |meta: &ObjectMeta| references(meta).iter().any(|r| *r.uid == *uid);
                let dependents = self.objects.values().filter(|(_, meta)| names(meta));
                let location =
                    |kind: bool, meta: &ObjectMeta| ObjectLocation::new(self.kinds[usize::from(kind)].clone(), meta);
                let dependents = dependents.map(|(kind, meta)| object(location(*kind, meta), meta.clone())).collect();
                World::Orphaning { object: found, dependents }
            }
            DeletionState::Alive => {
                let mut owner_states = Vec::new();
                for reference in &found.references {
                    owner_states.push(self.owner_state(&reference.uid));
                }
                World::Owned { object: found, owner_states, dependents, warned: false }
            }
        };
        let actions: VecDeque<_> = plan(&world).into();
        if !actions.is_empty() {
            self.under_way.push_back((uid, actions));
        }
        true
    }

    fn owner_state(&mut self, owner: &str) -> OwnerState {
        let Some((kind, meta)) = self.objects.get(owner) else { return OwnerState::Absent { elsewhere: false } };
        self.graph.confirm(&self.kinds[usize::from(*kind)], meta);
        if DeletionState::from_meta(meta) == DeletionState::ForegroundDeletion {
            OwnerState::AwaitsDependents
        } else {
            OwnerState::Present
        }
    }

    /// Carries out the next action of some plan, unless the object has changed.
    fn act(&mut self) -> bool {
        let Some((uid, mut actions)) = self.under_way.pop_front() else { return false };
        let done = actions.pop_front().is_none_or(|action| self.apply(action));
        if !done {
            self.queue.insert(uid);
        } else if !actions.is_empty() {
            self.under_way.push_back((uid, actions));
        }
        true
    }

    fn apply(&mut self, action: Action) -> bool {
        let (uid, version) = match &action {
            Action::Delete { uid, version, .. }
            | Action::SetReferences { uid, version, .. }
            | Action::SetFinalizers { uid, version, .. } => (uid.clone(), version.clone()),
            Action::Requeue { uid } => {
                self.queue.insert(uid.clone());
                return true;
            }
            Action::Warn { .. } => return true,
        };
        match self.objects.get(&*uid) {
            None => {
                let affected = self.graph.remove(&uid);
                self.queue.extend(affected);
                return true;
            }
            Some((_, meta)) if meta.resource_version.as_ref() != Some(&version) => return false,
            Some(_) => {}
        }
        match action {
            Action::Delete { policy, .. } => {
                let (_, meta) = &self.objects[&*uid];
                for owner in references(meta) {
                    // Nobody waits for a dependent that does not block: its owner may be further by now.
                    let deletion = self.objects.get(&owner.uid).map(|(_, owner)| DeletionState::from_meta(owner));
                    let takes_along = deletion != Some(DeletionState::Alive) && self.foreground.contains(&owner.uid);
                    assert!(deletion.is_none() || takes_along, "deleted {uid} of {deletion:?} {owner:?}");
                }
                self.delete(&uid, policy);
            }
            Action::SetReferences { references, .. } => {
                self.change(&uid, |meta| meta.owner_references = Some(references));
            }
            Action::SetFinalizers { finalizers, .. } => self.change(&uid, |meta| meta.finalizers = Some(finalizers)),
            Action::Requeue { .. } | Action::Warn { .. } => {}
        }
        true
    }

    /// One step of something that has something to do; the choice says of what.
    fn step(&mut self, choice: u8) -> bool {
        (0..4).any(|n| match (choice + n) % 4 {
            0 => self.deliver(false),
            1 => self.deliver(true),
            2 => self.look(),
            _ => self.act(),
        })
    }

    /// Until nothing is left to do.
    fn rest(&mut self) {
        for turn in 0..100_000u32 {
            if !self.step((turn % 4) as u8) {
                return;
            }
        }
        panic!("does not come to rest");
    }

    fn check(&self) {
        for (uid, (_, meta)) in &self.objects {
            let deletion = |uid: &str| self.objects.get(uid).map(|(_, meta)| DeletionState::from_meta(meta));
            let references = references(meta);
            match DeletionState::from_meta(meta) {
                DeletionState::Alive if references.is_empty() => {}
                DeletionState::Alive => {
                    let settled = |r: &OwnerReference| {
                        !matches!(deletion(&r.uid), None | Some(DeletionState::ForegroundDeletion))
                    };
                    assert!(references.iter().all(settled), "{uid} has unsettled owners: {references:?}");
                }
                DeletionState::BackgroundDeletion => assert!(meta.finalizers.iter().flatten().any(|f| f == FOREIGN)),
                DeletionState::ForegroundDeletion => {
                    let blocks = |r: &OwnerReference| r.uid == *uid && r.block_owner_deletion == Some(true);
                    let blocked = self.objects.values().any(|(_, meta)| self::references(meta).iter().any(blocks));
                    assert!(blocked, "{uid} waits for nobody");
                }
                DeletionState::OrphaningDependents => panic!("{uid} still orphans"),
            }
        }
        for orphan in &self.orphans {
            assert!(self.objects.contains_key(orphan), "the orphan {orphan} did not survive");
        }
    }
}

fn references(meta: &ObjectMeta) -> &[OwnerReference] {
    meta.owner_references.as_deref().unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn garbage_goes_owned_objects_stay_and_then_all_is_quiet(
        commands in prop::collection::vec((command(), prop::collection::vec(0..4u8, 0..12)), 1..60)
    ) {
        let mut model = Model::new();
        for (command, steps) in commands {
            model.command(command);
            for choice in steps {
                model.step(choice);
            }
        }
        model.rest();
        model.check();
        // Whatever was left out of sight by then changes nothing.
        model.relist(false);
        model.relist(true);
        let before = model.version;
        model.rest();
        model.check();
        prop_assert_eq!(model.version, before, "a complete look at a world at rest does nothing");
    }

    #[test]
    fn nothing_is_remembered_of_what_is_gone(
        commands in prop::collection::vec((command(), prop::collection::vec(0..4u8, 0..12)), 1..40)
    ) {
        let mut model = Model::new();
        for (command, steps) in commands {
            model.command(command);
            for choice in steps {
                model.step(choice);
            }
        }
        for ago in 1..=model.made {
            model.command(Command::Release { ago });
            model.command(Command::Delete { ago, policy: Policy::Background });
        }
        model.rest();
        prop_assert!(model.objects.is_empty(), "{:?}", model.objects.keys());
        prop_assert_eq!(model.graph.size(), (0, 0));
    }
}

#[test]
fn objects_without_owners_cost_nothing() {
    let mut graph = OwnerGraph::default();
    let kind = resource("as");
    for i in 0..1000 {
        let meta = ObjectMeta { uid: Some(format!("u{i}")), ..ObjectMeta::default() };
        assert!(graph.upsert(&kind, &meta).is_empty());
    }
    assert_eq!(graph.size(), (0, 0));
}

#[test]
fn a_kind_that_is_no_longer_served_takes_nobody_along() {
    let mut graph = OwnerGraph::default();
    let (owners, dependents) = (resource("as"), resource("bs"));
    let owner = ObjectMeta { uid: Some("o".into()), namespace: Some("n".into()), ..ObjectMeta::default() };
    let reference = OwnerReference { uid: "o".into(), ..OwnerReference::default() };
    let dependent = ObjectMeta {
        uid: Some("d".into()),
        namespace: Some("n".into()),
        owner_references: Some(vec![reference]),
        ..ObjectMeta::default()
    };
    assert_eq!(graph.upsert(&dependents, &dependent), ["d".into()]);
    assert!(graph.upsert(&owners, &owner).is_empty());
    graph.drop_resource(&owners);
    assert!(graph.entry("d").is_none() && !graph.was_seen_deleted("o"));
    assert_eq!(graph.remove("o"), ["d".into()]);
    assert!(graph.entry("d").is_some() && graph.was_seen_deleted("o"));
}
