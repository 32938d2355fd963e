//! Machines: makes one for every Node, says of each whether it is heard of and accounted for, and taints the Node of one that has to
//! be provisioned anew.
//!
//! Labels of a Node are given to its Machine as well, so that Releases can select by them, and taken back when the Node has them no longer.
//! Labels that people gave to a Machine stay, whatever its Node is called: a machine may label its own Node, and so choose no other Release.
//! Which labels are copies is noted in an annotation; a copy that somebody changed is theirs from then on.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use mainstay_api::{
    machine::{Machine, MachineAxis, MachineSpec, REPROVISION_TAINT, StateValue},
    wellknown::mainstay::NODE_LABELS,
};
use mainstay_machines::{
    accounting::{Account, Contact, account, is_written},
    status_patch::state_patch,
};
use serde_json::json;

use crate::runtime::{
    ApiError, Change, Context, Controller, Limits, ObjectKey, Plan, Runnable, context::synced_machines, error,
};

pub struct MachineController {
    context: Arc<Context>,
    expected: Arc<AtomicUsize>,
}

/// One name, as a Node and as a Machine.
pub struct MachineWorld {
    machine: Option<Arc<Machine>>,
    node: Option<NodeFacts>,
    expects_any: bool,
}

#[derive(Debug, PartialEq)]
struct NodeFacts {
    contact: Contact,
    labels: BTreeMap<String, String>,
    has_reprovision_taint: bool,
    version: String,
}

/// What becomes of the labels of a Machine.
#[derive(Debug, PartialEq)]
pub struct LabelChange {
    /// Those without a value are removed.
    labels: BTreeMap<String, Option<String>>,
    /// All that are copies of those of the Node then.
    copied: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    Create {
        labels: BTreeMap<String, String>,
    },
    /// If the Machine is as it was judged: people label it too.
    Label {
        change: LabelChange,
        version: String,
    },
    Account {
        account: Box<Account>,
        uid: String,
    },
    /// Keeps pods off a node, or lets them on again.
    Taint {
        add: bool,
        version: String,
    },
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<MachineController>();
    let (machines, expected) = (&context.machine_caches.machines, Arc::<AtomicUsize>::default());
    context.metrics.reset_unaccounted();
    machines.on_change({
        let (queue, expected, all) = (queue.clone(), expected.clone(), Arc::downgrade(machines));
        let metrics = context.metrics.clone();
        move |change: Change<'_, Machine>| {
            let reason = |machine: Option<&Machine>| machine.and_then(Machine::unaccounted).map(str::to_owned);
            metrics.count_unaccounted(reason(change.before).as_deref(), reason(change.after).as_deref());
            queue.add(change.key.name.clone());
            let is_expected = |machine: Option<&Machine>| machine.is_some_and(|machine| machine.spec.expected);
            let is_first = match (is_expected(change.before), is_expected(change.after)) {
                (false, true) => expected.fetch_add(1, Ordering::SeqCst) == 0,
                (true, false) => expected.fetch_sub(1, Ordering::SeqCst) == 1,
                _ => false,
            };
            // Whether a machine is one too many depends on whether any is expected.
            if is_first {
                let all = all.upgrade().map(|all| all.all()).unwrap_or_default();
                all.iter().for_each(|machine| queue.add(machine.name().to_owned()));
            }
        }
    });
    context.caches.nodes.on_change({
        let queue = queue.clone();
        move |change: Change<'_, Node>| {
            if change.before.map(NodeFacts::from_node) != change.after.map(NodeFacts::from_node) {
                queue.add(change.key.name.clone());
            }
        }
    });
    let controller = MachineController { context: context.clone(), expected };
    context.runnable(Arc::new(controller), queue, Limits::default()).after(synced_machines(context.clone()))
}

impl NodeFacts {
    fn from_node(node: &Node) -> Self {
        let ready = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready: Option<&NodeCondition> = ready.into_iter().find(|condition| condition.type_ == "Ready");
        let contact = match ready {
            Some(ready) if ready.status == "Unknown" => {
                let since = ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
                Contact::Silent { since }
            }
            _ => Contact::Heard,
        };
        let mut taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
        Self {
            contact,
            labels: node.metadata.labels.clone().unwrap_or_default(),
            has_reprovision_taint: taints.any(|taint| taint.key == REPROVISION_TAINT),
            version: String::new(),
        }
    }
}

impl Controller for MachineController {
    const NAME: &'static str = "machine";
    type Key = String;
    type World = MachineWorld;
    type Action = Action;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, name: &String) -> Result<Option<MachineWorld>, ApiError> {
        let key = ObjectKey::new("", name);
        let node = self.context.caches.nodes.get(&key).map(|node| {
            let version = node.metadata.resource_version.clone().unwrap_or_default();
            NodeFacts { version, ..NodeFacts::from_node(&node) }
        });
        let machine = self.context.machine_caches.machines.get(&key);
        Ok(Some(MachineWorld { machine, node, expects_any: self.expected.load(Ordering::SeqCst) > 0 }))
    }

    fn plan(world: &MachineWorld, now: Timestamp) -> Plan<Action, ()> {
        Plan::act(plan(world, now))
    }

    async fn apply(&self, name: &String, action: Action) -> Result<(), ApiError> {
        let machines: Api<Machine> = Api::all(self.context.client.clone());
        let params = PatchParams::default();
        let (doing, written) = match action {
            Action::Create { labels } => {
                let mut machine = Machine::new(name, MachineSpec::default());
                machine.metadata.annotations = Some([(NODE_LABELS.to_owned(), json!(labels).to_string())].into());
                machine.metadata.labels = Some(labels);
                let created = match machines.create(&PostParams::default(), &machine).await {
                    Err(error) if error::has_code(&error, 409) => return Ok(()), // somebody expects it by now
                    created => created,
                };
                ("create machine", created)
            }
            Action::Label { change: LabelChange { labels, copied }, version } => {
                let annotations = json!({ NODE_LABELS: json!(copied).to_string() });
                let metadata = json!({ "resourceVersion": version, "labels": labels, "annotations": annotations });
                let patch = json!({ "metadata": metadata });
                ("label machine", machines.patch(name, &params, &Patch::Merge(patch)).await)
            }
            Action::Account { account, uid } => {
                let Account { seen, accounted } = *account;
                let patch = json!({ "metadata": { "uid": uid }, "status": { "seen": state_patch(Some(&seen)), "conditions": [accounted] } });
                ("write the status of machine", machines.patch_status(name, &params, &Patch::Merge(patch)).await)
            }
            Action::Taint { add, version } => return self.taint(name, add, version).await,
        };
        match written {
            Ok(machine) => self.context.machine_caches.machines.wrote(machine),
            Err(error) if error::is_not_found(&error, name) => {}
            Err(error) => return Err(ApiError::new(format!("{doing} {name}"), error)),
        }
        Ok(())
    }
}

impl MachineController {
    async fn taint(&self, name: &str, add: bool, version: String) -> Result<(), ApiError> {
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        let taint = match add {
            true => json!({ "key": REPROVISION_TAINT, "effect": "NoSchedule" }),
            false => json!({ "key": REPROVISION_TAINT, "$patch": "delete" }),
        };
        let patch = json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": [taint] } });
        match nodes.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Ok(node) => self.context.caches.nodes.wrote(node),
            Err(error) if error::is_not_found(&error, name) => {}
            Err(error) => return Err(ApiError::new(format!("taint node {name}"), error)),
        }
        Ok(())
    }
}

fn plan(world: &MachineWorld, now: Timestamp) -> Vec<Action> {
    let Some(machine) = &world.machine else {
        return world.node.iter().map(|node| Action::Create { labels: node.labels.clone() }).collect();
    };
    let uid = machine.metadata.uid.clone().unwrap_or_default();
    let mut actions = Vec::new();
    if let Some(node) = &world.node {
        if let Some(change) = follow_labels(machine, &node.labels) {
            let version = machine.metadata.resource_version.clone().unwrap_or_default();
            actions.push(Action::Label { change, version });
        }
        let provisioned = machine.state(MachineAxis::Provisioned).map(|own| own.state);
        let should = provisioned == Some(StateValue::Failed);
        let is_known = matches!(provisioned, Some(StateValue::Failed | StateValue::Success));
        if is_known && should != node.has_reprovision_taint {
            actions.push(Action::Taint { add: should, version: node.version.clone() });
        }
    }
    let contact = world.node.as_ref().map_or(Contact::NoNode, |node| node.contact.clone());
    let account = account(machine, &contact, world.expects_any, now);
    if !is_written(machine, &account) {
        actions.push(Action::Account { account: Box::new(account), uid });
    }
    actions
}

fn follow_labels(machine: &Machine, node: &BTreeMap<String, String>) -> Option<LabelChange> {
    let none = BTreeMap::new();
    let own = machine.metadata.labels.as_ref().unwrap_or(&none);
    let noted = machine.metadata.annotations.as_ref().and_then(|annotations| annotations.get(NODE_LABELS));
    let noted: BTreeMap<String, String> = noted.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let is_copy = |key: &String| own.get(key).is_some_and(|value| noted.get(key) == Some(value));
    let copied = node.iter().filter(|(key, _)| !own.contains_key(*key) || is_copy(key));
    let copied: BTreeMap<String, String> = copied.map(|(key, value)| (key.clone(), value.clone())).collect();
    let changed = copied.iter().filter(|(key, value)| own.get(*key) != Some(*value));
    let mut labels: BTreeMap<String, Option<String>> =
        changed.map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
    let gone = own.keys().filter(|key| is_copy(key) && !node.contains_key(*key));
    labels.extend(gone.map(|key| (key.clone(), None)));
    (!labels.is_empty() || copied != noted).then_some(LabelChange { labels, copied })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(machine: Option<serde_json::Value>, has_reprovision_taint: bool) -> MachineWorld {
        let node = NodeFacts {
            contact: Contact::Heard,
            labels: [("wave".to_owned(), "canary".to_owned())].into(),
            has_reprovision_taint,
            version: "7".to_owned(),
        };
        let machine = machine.map(|machine| Arc::new(serde_json::from_value(machine).unwrap()));
        MachineWorld { machine, node: Some(node), expects_any: false }
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_000).unwrap()
    }

    #[test]
    fn a_node_without_a_machine_gets_one_with_its_labels() {
        let labels = [("wave".to_owned(), "canary".to_owned())].into();
        assert_eq!(plan(&world(None, false), now()), [Action::Create { labels }]);
    }

    #[test]
    fn a_machine_follows_the_labels_of_its_node_and_keeps_those_that_people_gave_it() {
        let labels = |text: &[(&str, &str)]| -> BTreeMap<String, String> {
            text.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let follow = |own: &[(&str, &str)], noted: Option<&[(&str, &str)]>, node: &[(&str, &str)]| {
            let mut machine = Machine::new("m", MachineSpec::default());
            machine.metadata.labels = Some(labels(own));
            machine.metadata.annotations =
                noted.map(|noted| [(NODE_LABELS.to_owned(), json!(labels(noted)).to_string())].into());
            let change = follow_labels(&machine, &labels(node))?;
            let changed = change.labels.into_iter().map(|(key, value)| format!("{key}={}", value.unwrap_or_default()));
            let copied = change.copied.into_iter().map(|(key, value)| format!("{key}={value}"));
            Some((changed.collect::<Vec<_>>().join(","), copied.collect::<Vec<_>>().join(",")))
        };
        let change = |changed: &str, copied: &str| Some((changed.to_owned(), copied.to_owned()));
        assert_eq!(follow(&[], None, &[("rack", "1")]), change("rack=1", "rack=1"));
        assert_eq!(follow(&[("rack", "1")], Some(&[("rack", "1")]), &[("rack", "1")]), None);
        assert_eq!(follow(&[("rack", "1")], Some(&[("rack", "1")]), &[("rack", "2")]), change("rack=2", "rack=2"));
        assert_eq!(follow(&[("rack", "1")], Some(&[("rack", "1")]), &[]), change("rack=", ""));
        // It was expected with this label: its Node may be called what it likes.
        assert_eq!(follow(&[("rack", "7")], None, &[("rack", "2")]), None);
        assert_eq!(follow(&[("rack", "7")], None, &[]), None);
        // Somebody changed a copy.
        assert_eq!(follow(&[("rack", "7")], Some(&[("rack", "1")]), &[("rack", "1")]), change("", ""));
        assert_eq!(follow(&[("rack", "7")], Some(&[]), &[("rack", "1")]), None);
    }

    #[test]
    fn a_node_whose_machine_has_to_be_provisioned_anew_is_tainted_until_it_is() {
        let machine = |state: &str| {
            json!({
                "metadata": {
                    "name": "m", "uid": "u", "labels": {"wave": "canary", "own": "1"},
                    "annotations": {NODE_LABELS: "{\"wave\":\"canary\"}"},
                },
                "status": {"provisioned": {"state": state, "since": "2026-01-01T00:00:00Z"}},
            })
        };
        for (state, tainted, expected) in [
            ("failed", false, Some(true)),
            ("failed", true, None),
            ("success", true, Some(false)),
            ("success", false, None),
            ("running", true, None),
        ] {
            let actions = plan(&world(Some(machine(state)), tainted), now());
            let taint = actions.iter().find_map(|action| match action {
                Action::Taint { add, .. } => Some(*add),
                _ => None,
            });
            assert_eq!(taint, expected, "{state} {tainted}");
            assert!(!actions.iter().any(|action| matches!(action, Action::Label { .. })), "it has the labels");
        }
    }
}
