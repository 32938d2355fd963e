//! Applies events about ResourceClaims, ResourceSlices, DeviceClasses and DeviceTaintRules.
//!
//! They are listed apart from what every pod depends on: a server that does not serve them must not keep all pods from being
//! scheduled. Pods with claims wait until all of them are listed.

use std::collections::{BTreeSet, HashSet};

use super::{SchedulerState, WatchedKind, missing_names};
use crate::{
    claim_writer::WrittenClaim,
    core::devices::view::{ClaimKey, ClaimView, DeviceClassView, DeviceTaintRuleView, SliceView},
    reflector::{Delta, Item, ObjectRef},
};

const DEVICE_KINDS: [WatchedKind; 4] = [
    WatchedKind::ResourceClaims,
    WatchedKind::ResourceSlices,
    WatchedKind::DeviceClasses,
    WatchedKind::DeviceTaintRules,
];

impl SchedulerState {
    pub(super) fn apply_resource_claims(&mut self, delta: Delta<ClaimView>) {
        match delta {
            Delta::Replaced { items, version, round } => {
                let listed: HashSet<ClaimKey> = items.iter().map(|item| key_of(&item.object)).collect();
                // Claims that were created after the list was taken are not in it.
                let known = self.cluster.devices.claims();
                let gone = known.filter(|(key, claim)| claim.version <= version && !listed.contains(key));
                let gone: Vec<(ClaimKey, String)> = gone.map(|(key, claim)| (key.clone(), claim.uid.clone())).collect();
                for (key, uid) in gone {
                    self.changes.devices |= self.cluster.devices.remove_claim(&key, &uid);
                }
                items.into_iter().for_each(|item| self.update_resource_claim(item));
                self.mark_device_kind(WatchedKind::ResourceClaims, round);
            }
            Delta::Updated(item) => self.update_resource_claim(item),
            Delta::Deleted(object) => {
                self.changes.devices |= self.cluster.devices.remove_claim(&key_of(&object), &object.uid);
            }
        }
    }

    fn update_resource_claim(&mut self, item: Item<ClaimView>) {
        self.changes.devices |= self.cluster.devices.update_claim(&key_of(&item.object), item.view);
    }

    /// What the API answered to our own writes is known before the watch shows it.
    pub(super) fn take_in_written_claims(&mut self, claims: Vec<WrittenClaim>) {
        for WrittenClaim { key, view } in claims {
            self.changes.devices |= self.cluster.devices.update_claim(&key, view);
        }
    }

    pub(super) fn apply_slices(&mut self, delta: Delta<SliceView>) {
        self.changes.devices = true;
        match delta {
            Delta::Replaced { items, round, .. } => {
                let listed: BTreeSet<&str> = items.iter().map(|item| item.object.name.as_str()).collect();
                for name in missing_names(self.cluster.devices.slice_names(), &listed) {
                    self.cluster.devices.remove_slice(&name);
                }
                items.into_iter().for_each(|item| self.update_slice(item));
                self.mark_device_kind(WatchedKind::ResourceSlices, round);
            }
            Delta::Updated(item) => self.update_slice(item),
            Delta::Deleted(object) => self.cluster.devices.remove_slice(&object.name),
        }
    }

    fn update_slice(&mut self, item: Item<SliceView>) {
        self.cluster.devices.update_slice(&item.object.name, item.object.version, item.view.spec);
    }

    pub(super) fn apply_device_classes(&mut self, delta: Delta<DeviceClassView>) {
        self.changes.devices = true;
        match delta {
            Delta::Replaced { items, round, .. } => {
                let listed: BTreeSet<&str> = items.iter().map(|item| item.object.name.as_str()).collect();
                for name in missing_names(self.cluster.devices.class_names(), &listed) {
                    self.cluster.devices.remove_class(&name);
                }
                for Item { object, view } in items {
                    self.cluster.devices.update_class(&object.name, view.created(), view.spec);
                }
                self.mark_device_kind(WatchedKind::DeviceClasses, round);
            }
            Delta::Updated(Item { object, view }) => {
                self.cluster.devices.update_class(&object.name, view.created(), view.spec);
            }
            Delta::Deleted(object) => self.cluster.devices.remove_class(&object.name),
        }
    }

    pub(super) fn apply_device_taint_rules(&mut self, delta: Delta<DeviceTaintRuleView>) {
        self.changes.devices = true;
        match delta {
            Delta::Replaced { items, round, .. } => {
                let listed: BTreeSet<&str> = items.iter().map(|item| item.object.name.as_str()).collect();
                for name in missing_names(self.cluster.devices.taint_rule_names(), &listed) {
                    self.cluster.devices.remove_taint_rule(&name);
                }
                for Item { object, view } in items {
                    self.cluster.devices.update_taint_rule(&object.name, view.spec);
                }
                self.mark_device_kind(WatchedKind::DeviceTaintRules, round);
            }
            Delta::Updated(Item { object, view }) => self.cluster.devices.update_taint_rule(&object.name, view.spec),
            Delta::Deleted(object) => self.cluster.devices.remove_taint_rule(&object.name),
        }
    }

    fn mark_device_kind(&mut self, kind: WatchedKind, round: u64) {
        self.mark_synced(kind, round);
        self.cluster.devices.is_listed = DEVICE_KINDS.iter().all(|kind| self.synced.contains_key(kind));
        self.changes.devices = true;
    }
}

fn key_of(object: &ObjectRef) -> ClaimKey {
    ClaimKey::new(&object.namespace, &object.name)
}
