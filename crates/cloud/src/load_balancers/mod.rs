//! Services of type LoadBalancer as Octavia load balancers.
//!
//! Every port of a Service is a listener with a pool whose members are the nodes at its node port, and a health monitor; where there is an external network,
//! a floating IP leads to it. The finalizer `service.kubernetes.io/load-balancer-cleanup` keeps the Service until the cloud shows neither of them; nothing
//! else than the end of the Service (or of its type) removes them. One change is made at a time, since Octavia refuses changes while another is under way;
//! each turn looks at what there is, so nothing stores a step.
//!
//! * [`plan`]: what is to be done next, decided purely; [`observe`]: what Octavia has; [`controller`]: carries it out

mod controller;
mod observe;
mod plan;

pub use self::controller::controller;
