//! Service tables: how far a machine has come in sending where Services now end.
//!
//! The agent of a machine writes one, named like its Node, at its start and whenever a change that took a ready
//! endpoint away has come into force there. From all of them together follows that nobody sends to a pod any
//! longer, and that it may be stopped; and that nobody routes to the addresses of a machine that is gone, and
//! that they may be given to another.

use serde::{Deserialize, Serialize};

use crate::own::{Own, Said};

pub type ServiceTable = Own<ServiceTableSpec>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceTableSpec {
    /// The newest resourceVersion of an EndpointSlice change that is in force on the machine.
    pub endpoints: String,
    /// The newest resourceVersion of a change of Nodes that the machine's routes follow.
    pub nodes: String,
}

impl Said for ServiceTableSpec {
    const KIND: &'static str = "ServiceTable";
    const LIST_KIND: &'static str = "ServiceTableList";
    const PLURAL: &'static str = "servicetables";
    const WORDS: [&'static str; 3] = [
        "ServiceTable is how far a machine has come in sending where Services now end. The agent of the machine writes \
         it under the name of the Node. A pod is stopped once no machine sends to it.",
        "What is in force on the machine.",
        "ServiceTableSpec says which changes are in force on a machine.",
    ];
    const FIELDS: &'static [(&'static str, &'static str, &'static str)] = &[
        (
            "endpoints",
            "string",
            "The newest resourceVersion of a change of EndpointSlices that is in force: the machine sends to no pod \
             that was taken out up to then.",
        ),
        ("nodes", "string", "The newest resourceVersion of a change of Nodes that the machine's routes follow."),
    ];
}
