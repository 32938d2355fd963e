//! Roles: parts of a machine that are kept for pods which name them.
//!
//! A machine reserves amounts and host ports for roles ([`RoleReservation`]); what is left is the role [`ANY_ROLE`]. A pod names the
//! roles that it may use, in the order of its preference ([`PodRoles`]), and takes what it asks for from their pools in this order,
//! parts of one resource from several pools if need be ([`share_out`]). How much it took from each is written on the pod when it is
//! bound ([`RoleShares`]), so that it is the same for the scheduler and for the machine, whatever came and went in between.
//!
//! Pods are counted per machine, not per role: a reservation is about what pods use, not about how many there are.

mod pod_roles;
mod pools;
mod reservation;
mod share_out;
mod shares;

pub use self::{
    pod_roles::PodRoles,
    pools::{PoolCapacity, ReservationExceeds, split_machine},
    reservation::{RoleReservation, RoleReservationError},
    share_out::{SharedOut, Take, share_out},
    shares::RoleShares,
};
use crate::resources::PODS;

/// The role of everything that is not reserved for another.
pub const ANY_ROLE: &str = "*";

/// Whether a resource is divided among roles.
pub fn is_pooled(resource: &str) -> bool {
    resource != PODS
}

/// Whether a text can be the name of a role that machines reserve for.
pub fn is_role_name(text: &str) -> bool {
    crate::validation::names::dns1123_label(text).is_empty()
}
