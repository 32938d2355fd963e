//! Dependencies between workloads ([`mainstay_api::needs`]), as far as nodes cannot judge them.
//!
//! * [`object_needs`]: tells pods whether the workloads and objects they need are there, in a condition that nodes read
//! * [`cycles`]: finds workloads that wait for each other to be ready, and says so on every pod of them

pub mod cycles;
mod existing_objects;
pub mod object_needs;

use mainstay_api::needs::Needs;

use crate::objects::pod::Pod;

/// The needs of a pod that is neither finished nor being deleted.
fn needs_of(pod: &Pod) -> Option<Needs> {
    Some(Needs::from_annotations(&pod.metadata.annotations)).filter(|needs| pod.is_active() && !needs.is_empty())
}
