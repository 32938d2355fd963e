//! The kind Offer: what a node can still take.
//!
//! An agent publishes one per machine, named like its Node, and writes it anew when it changes. While it stays the same
//! the heartbeats of the Node renew it: its Lease names the version of the offer that it renews
//! ([`RENEWED_OFFER`](crate::wellknown::mainstay::RENEWED_OFFER)). Who places pods believes an offer for its time to live
//! *from when it or its last renewal was received*, so that clocks need not agree, and subtracts from it what was bound to
//! the machine after [`OfferSpec::seen`].

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::MicroTime};
use serde::{Deserialize, Serialize};

use crate::own_object::{DefinitionDoc, NodeObject, OwnKind};

/// More roles than anybody reserves for on one machine.
pub const MOST_POOLS: usize = 64;

pub type Offer = NodeObject<OfferSpec>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OfferSpec {
    /// What is free: `cpu`, `memory`, `ephemeral-storage`, `pods` and extended resources.
    pub free: BTreeMap<String, Quantity>,
    /// Ports for pods that ask for any, free ones only: `["31000-31007", "31009-32000"]`.
    pub automatic_ports: Vec<String>,
    /// Where ports that pods ask for by number may lie, taken or not: `["1-65535"]`.
    pub explicit_ports: Vec<String>,
    /// What each role has of it, the rest of the machine (`*`) included; none if nothing is reserved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<OfferPool>,
    /// How long the offer is good for after it was received or renewed.
    pub ttl_seconds: i32,
    /// When the machine made it, by the machine's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_time: Option<MicroTime>,
    /// The newest version of a pod on the machine that this takes into account.
    pub seen: String,
}

/// What a machine has for one role, and what is left of it. Pods are counted for the machine as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OfferPool {
    pub role: String,
    /// What the role has in all.
    pub capacity: BTreeMap<String, Quantity>,
    pub free: BTreeMap<String, Quantity>,
    pub automatic_ports: Vec<String>,
    pub explicit_ports: Vec<String>,
}

impl OwnKind for OfferSpec {
    type Scope = k8s_openapi::ClusterResourceScope;
    const KIND: &'static str = "Offer";
    const LIST_KIND: &'static str = "OfferList";
    const PLURAL: &'static str = "offers";
    const ABOUT: &'static str = "Offer is what a machine can take right now, in its own words. The agent of the \
                                 machine publishes it under the name of the Node and writes it anew whenever it \
                                 changes; heartbeats of the Node renew it meanwhile.";
    const SPEC_ABOUT: &'static str = "What is offered, and for how long.";
    const STATUS_ABOUT: &'static str = "";
    const DEFINITIONS: &'static [DefinitionDoc] = &[DefinitionDoc {
        name: "OfferSpec",
        about: "OfferSpec says what is free on a machine.",
        fields: &[
            (
                "automaticPorts",
                "Ranges of host ports that are free for pods that ask for any port, of all roles: 31000-31999.",
            ),
            ("explicitPorts", "Ranges in which host ports that pods ask for by number may lie, taken or not."),
            (
                "free",
                "What is free: cpu, memory, ephemeral-storage, pods and extended resources. It is what the machine has \
                 for pods less what the pods it holds ask for.",
            ),
            (
                "pools",
                "What each role has: its role, capacity, free, automaticPorts and explicitPorts. The rest of the \
                 machine is the role *. None if the machine reserves nothing.",
            ),
            ("renewTime", "When the machine made the offer, by its own clock."),
            (
                "seen",
                "The newest resourceVersion of the machine's pods that the offer takes into account. What was placed \
                 there later is to be subtracted from what is free.",
            ),
            (
                "ttlSeconds",
                "How long the offer is good for, counted from when it or its last renewal is received. A machine \
                 without a good offer gets no new pods.",
            ),
        ],
    }];
}
