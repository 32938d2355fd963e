//! The kind ServiceTable: which version of all EndpointSlices the packet rules of a node are at.
//!
//! The agent of a node writes one, named like its Node, at its start and whenever a change that removed a ready endpoint
//! is in force there. Once all of them are past that change, no node sends to the pod any longer and it may be stopped;
//! and no node routes to the pod range of a node that is gone, and another may get it.

use serde::{Deserialize, Serialize};

use crate::own_object::{DefinitionDoc, NodeObject, OwnKind};

pub type ServiceTable = NodeObject<ServiceTableSpec>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceTableSpec {
    /// The newest resourceVersion of an EndpointSlice change that is in force on the machine.
    pub endpoints: String,
    /// The newest resourceVersion of a change of Nodes that the machine's routes follow.
    pub nodes: String,
}

impl OwnKind for ServiceTableSpec {
    type Scope = k8s_openapi::ClusterResourceScope;
    const KIND: &'static str = "ServiceTable";
    const LIST_KIND: &'static str = "ServiceTableList";
    const PLURAL: &'static str = "servicetables";
    const ABOUT: &'static str = "ServiceTable says which changes of EndpointSlices and Nodes the Service rules of a \
                                 machine follow already. The agent of the machine writes it under the name of the \
                                 Node. A pod is stopped once no machine sends to it.";
    const SPEC_ABOUT: &'static str = "What is in force on the machine.";
    const STATUS_ABOUT: &'static str = "";
    const DEFINITIONS: &'static [DefinitionDoc] = &[DefinitionDoc {
        name: "ServiceTableSpec",
        about: "ServiceTableSpec says which changes are in force on a machine.",
        fields: &[
            (
                "endpoints",
                "The newest resourceVersion of a change of EndpointSlices that is in force: the machine sends to no \
                 pod that was taken out up to then.",
            ),
            ("nodes", "The newest resourceVersion of a change of Nodes that the machine's routes follow."),
        ],
    }];
}
