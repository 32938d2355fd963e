//! Which VolumeAttachments a volume is to have. Pure.

use std::collections::BTreeSet;

use jiff::Timestamp;
use mainstay_controllers::runtime::{ObjectKey, Plan};

/// A pod on a node that uses the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    pub key: ObjectKey,
    pub uid: String,
    pub node: String,
    pub created: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentView {
    pub name: String,
    pub uid: String,
    pub node: String,
    pub is_deleting: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct World {
    /// The PersistentVolume may be attached: it is there and not being deleted.
    pub is_attachable: bool,
    pub pods: Vec<PodView>,
    pub attachments: Vec<AttachmentView>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// To be attached to this node.
    Create { node: String },
    /// To be detached: no pod of the node uses it.
    Delete { name: String, uid: String },
    /// A pod waits for a volume that another node has.
    ReportMultiAttach { pod: ObjectKey, node: String },
}

pub fn plan(world: &World) -> Plan<Action, ()> {
    let wanted: BTreeSet<&str> = world.pods.iter().map(|pod| pod.node.as_str()).collect();
    let is_unused = |own: &&AttachmentView| !own.is_deleting && !wanted.contains(own.node.as_str());
    let unused = world.attachments.iter().filter(is_unused);
    let mut actions: Vec<Action> =
        unused.map(|own| Action::Delete { name: own.name.clone(), uid: own.uid.clone() }).collect();
    match world.attachments.first() {
        // Also while it is being detached: only one node at a time has the volume, or may get it.
        Some(holder) => {
            let waiting = world.pods.iter().filter(|pod| !world.attachments.iter().any(|own| own.node == pod.node));
            actions.extend(
                waiting.map(|pod| Action::ReportMultiAttach { pod: pod.key.clone(), node: holder.node.clone() }),
            );
        }
        None if world.is_attachable => {
            let first = world.pods.iter().min_by(|a, b| (a.created, &a.uid).cmp(&(b.created, &b.uid)));
            actions.extend(first.map(|pod| Action::Create { node: pod.node.clone() }));
        }
        None => {}
    }
    Plan::act(actions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: &str, second: i64) -> PodView {
        PodView {
            key: ObjectKey::new("ns", name),
            uid: name.into(),
            node: node.into(),
            created: Timestamp::from_second(second).unwrap(),
        }
    }

    fn attachment(node: &str, is_deleting: bool) -> AttachmentView {
        AttachmentView { name: format!("csi-{node}"), uid: format!("u-{node}"), node: node.into(), is_deleting }
    }

    fn actions(pods: &[PodView], attachments: &[AttachmentView]) -> Vec<Action> {
        plan(&World { is_attachable: true, pods: pods.to_vec(), attachments: attachments.to_vec() }).actions
    }

    #[test]
    fn the_node_of_the_oldest_pod_gets_the_volume() {
        assert_eq!(actions(&[], &[]), []);
        let pods = [pod("new", "n2", 20), pod("old", "n1", 10)];
        assert_eq!(actions(&pods, &[]), [Action::Create { node: "n1".into() }]);
        assert_eq!(actions(&[pod("old", "n1", 10), pod("new", "n1", 20)], &[attachment("n1", false)]), []);
        let world = World { is_attachable: false, pods: pods.to_vec(), attachments: vec![] };
        assert_eq!(plan(&world).actions, [], "a volume that is being deleted is not attached");
    }

    #[test]
    fn a_second_node_waits_until_the_first_has_lost_it() {
        let report = |pod: &str| Action::ReportMultiAttach { pod: ObjectKey::new("ns", pod), node: "n1".into() };
        let delete = Action::Delete { name: "csi-n1".into(), uid: "u-n1".into() };
        let both = [pod("a", "n1", 10), pod("b", "n2", 20)];
        assert_eq!(actions(&both, &[attachment("n1", false)]), [report("b")]);
        assert_eq!(actions(&both[1..], &[attachment("n1", false)]), [delete, report("b")]);
        assert_eq!(actions(&both[1..], &[attachment("n1", true)]), [report("b")], "being detached is not detached");
        assert_eq!(actions(&both[1..], &[]), [Action::Create { node: "n2".into() }]);
    }

    #[test]
    fn an_attachment_that_is_being_deleted_is_not_replaced_before_it_is_gone() {
        assert_eq!(actions(&[pod("a", "n1", 10)], &[attachment("n1", true)]), []);
    }

    #[test]
    fn an_attachment_that_nobody_uses_goes_even_without_its_volume() {
        let world = World { is_attachable: false, pods: vec![], attachments: vec![attachment("n1", false)] };
        assert_eq!(plan(&world).actions, [Action::Delete { name: "csi-n1".into(), uid: "u-n1".into() }]);
    }
}
