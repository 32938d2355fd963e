//! Routes to nodes' pod ranges on the router of a cluster, and the collection of stale ones.
//!
//! Two controllers act on a router, and both only ever take away what is known to be the cluster's own:
//!
//! * [`node_routes`]: keeps a route to the pod range of every Node, and the range among the addresses that the Node's port may use; decided
//!   by [`plan`], reported by [`condition`]
//! * [`collection`]: route collection (`routegc`): removes routes whose next hop no server has ([`orphans`])
//!
//! * [`view`]: routes, nodes and ports as far as these decisions need them
//! * [`range_routes`]: the ConfigMap by which the server's allocator of pod ranges learns which ranges still have a route
//! * [`nudge`]: when a device that lost routes is asked to take them in anew
//! * [`router`]: the calls; [`records`]: what the ledger has of them
//! * [`cluster`]: whose router and whose nodes; [`controllers`]: starts both for this cluster and all Klusters; [`metrics`]: what was done

pub mod cluster;
pub mod collection;
pub mod condition;
pub mod controllers;
pub mod metrics;
pub mod node_routes;
pub mod nudge;
pub mod orphans;
pub mod plan;
pub mod range_routes;
pub mod records;
pub mod router;
pub mod view;
