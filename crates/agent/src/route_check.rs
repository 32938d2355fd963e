//! Measures whether the router of a cloud routes to this node's pods, for its condition `RouteBroken`.
//!
//! A router's routes can be right in the cloud's API and missing on the device. So the node asks the device itself, once a minute: by the ICMP
//! redirect that the router sends for the node's own range, or, where routers send none, by echo requests to the bridges of other nodes.
//! A node that was fine is asked three times before it is called broken. Nothing is said while it cannot be measured: no range yet, no
//! interface with the node's address, no other nodes.

use std::{collections::BTreeMap, io, net::Ipv4Addr, sync::Arc, time::Duration};

use mainstay_api::pod_range_routes::route_broken;
use mainstay_network::{Range, route_probe};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    node::NodeReporter,
    pod_routes::RoutedNode,
    settings::{RouteCheck, Settings},
};

/// Between two measurements, and up to half as much again.
const PERIOD: Duration = Duration::from_secs(60);
/// How long an answer may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Before the second try; doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const TRIES_IF_FINE: u32 = 3;
/// So many other nodes are asked at most.
const MOST_PEERS: usize = 5;

/// What was measured last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteMeasurement {
    pub is_broken: bool,
    pub reason: &'static str,
    pub message: String,
}

/// Shared with what reports the Node.
#[derive(Clone, Default)]
pub struct RouteCheckResult(Arc<Mutex<Option<RouteMeasurement>>>);

impl RouteCheckResult {
    pub fn get(&self) -> Option<RouteMeasurement> {
        self.0.lock().clone()
    }

    /// Whether that is something else than before.
    fn replace(&self, measured: Option<RouteMeasurement>) -> bool {
        let before = std::mem::replace(&mut *self.0.lock(), measured.clone());
        before != measured
    }
}

/// The pod ranges of this node and of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRanges {
    pub own: Option<Range>,
    pub others: Vec<Range>,
}

impl NodeRanges {
    pub fn from_nodes(nodes: &BTreeMap<String, RoutedNode>, own: &str) -> Self {
        let others = nodes.iter().filter(|(name, _)| *name != own).filter_map(|(_, node)| node.range).collect();
        Self { own: nodes.get(own).and_then(|node| node.range), others }
    }
}

pub struct RouteChecker {
    check: RouteCheck,
    /// By which others, and the router, reach this node.
    address: Option<Ipv4Addr>,
    ranges: watch::Receiver<NodeRanges>,
    result: RouteCheckResult,
    reporter: Arc<NodeReporter>,
}

impl RouteChecker {
    pub fn new(
        settings: &Settings,
        ranges: watch::Receiver<NodeRanges>,
        result: RouteCheckResult,
        reporter: Arc<NodeReporter>,
    ) -> Self {
        let address = settings.addresses.iter().find_map(|address| match address {
            std::net::IpAddr::V4(address) => Some(*address),
            std::net::IpAddr::V6(_) => None,
        });
        Self { check: settings.route_check, address, ranges, result, reporter }
    }

    pub async fn run(self, stop: CancellationToken) {
        if self.check == RouteCheck::Off {
            return;
        }
        stop.run_until_cancelled(async {
            loop {
                self.measure().await;
                tokio::time::sleep(PERIOD.mul_f64(1.0 + fastrand::f64() / 2.0)).await;
            }
        })
        .await;
    }

    async fn measure(&self) {
        let was_fine = self.result.get().is_some_and(|last| !last.is_broken);
        let mut measured = self.measure_once().await;
        let mut pause = FIRST_PAUSE;
        for _ in 1..tries(was_fine) {
            if !measured.as_ref().is_some_and(|measured| measured.is_broken) {
                break;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
            measured = self.measure_once().await;
        }
        if self.result.replace(measured) {
            self.reporter.look_again();
        }
    }

    async fn measure_once(&self) -> Option<RouteMeasurement> {
        let NodeRanges { own, others } = self.ranges.borrow().clone();
        match self.check {
            RouteCheck::Off => None,
            RouteCheck::Redirect => {
                let (address, target) = (self.address?, own?.gateway());
                let gateway = tokio::task::spawn_blocking(move || ask_router(address, target)).await.ok()?;
                judge_redirect(address, gateway)
            }
            RouteCheck::Peers => {
                let targets = choose_peers(others, fastrand::shuffle);
                let asked = targets.into_iter().map(|range| {
                    let target = range.gateway();
                    tokio::task::spawn_blocking(move || route_probe::answers_echo(target, ANSWER_LIMIT))
                });
                let answers = futures::future::join_all(asked).await.into_iter().map(|answer| answer.ok()?.ok());
                judge_peers(&answers.collect::<Vec<_>>())
            }
        }
    }
}

/// The gateway that the router names for an address of our own.
fn ask_router(address: Ipv4Addr, target: Ipv4Addr) -> io::Result<Option<Ipv4Addr>> {
    let Some(uplink) = route_probe::interface_with_address(address.into())? else {
        return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, format!("no interface has the address {address}")));
    };
    route_probe::ask_for_redirect(&uplink, target, ANSWER_LIMIT)
}

fn tries(was_fine: bool) -> u32 {
    if was_fine { TRIES_IF_FINE } else { 1 }
}

fn choose_peers(mut others: Vec<Range>, shuffle: impl FnOnce(&mut [Range])) -> Vec<Range> {
    shuffle(&mut others);
    others.truncate(MOST_PEERS);
    others
}

fn judge_redirect(own: Ipv4Addr, gateway: io::Result<Option<Ipv4Addr>>) -> Option<RouteMeasurement> {
    let failed = |message: String| RouteMeasurement { is_broken: true, reason: route_broken::REDIRECT_FAILED, message };
    match gateway {
        Ok(Some(gateway)) if gateway == own => Some(RouteMeasurement {
            is_broken: false,
            reason: route_broken::REDIRECT_OK,
            message: "the router routes to this node".to_owned(),
        }),
        Ok(Some(gateway)) => Some(failed(format!("the router routes packets for this node's pods to {gateway}"))),
        Ok(None) => Some(failed("the router sends no redirect for this node's pods".to_owned())),
        Err(error) => {
            tracing::debug!(%error, "cannot measure the route to this node's pods");
            None
        }
    }
}

/// Each entry is whether a peer answered; nothing if it could not be asked.
fn judge_peers(answers: &[Option<bool>]) -> Option<RouteMeasurement> {
    let asked = answers.iter().flatten().count();
    let answered = answers.iter().flatten().filter(|answered| **answered).count();
    match (asked, answered) {
        (0, _) => None,
        (_, 0) => Some(RouteMeasurement {
            is_broken: true,
            reason: route_broken::PEERS_UNREACHABLE,
            message: format!("none of {asked} other nodes' bridges answers"),
        }),
        (_, _) => Some(RouteMeasurement {
            is_broken: false,
            reason: route_broken::PEERS_REACHABLE,
            message: "other nodes' bridges answer".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_to_this_node_is_fine_and_everything_else_is_broken() {
        let own = Ipv4Addr::new(10, 0, 0, 2);
        let judged = |gateway| judge_redirect(own, gateway).map(|measured| (measured.is_broken, measured.reason));
        assert_eq!(judged(Ok(Some(own))), Some((false, "RedirectOK")));
        assert_eq!(judged(Ok(Some(Ipv4Addr::new(10, 0, 0, 3)))), Some((true, "RedirectFailed")));
        assert_eq!(judged(Ok(None)), Some((true, "RedirectFailed")));
        assert_eq!(judged(Err(io::ErrorKind::PermissionDenied.into())), None, "not measured");
    }

    #[test]
    fn peers_are_unreachable_if_none_of_those_asked_answers() {
        let judged = |answers: &[Option<bool>]| judge_peers(answers).map(|measured| measured.is_broken);
        assert_eq!(judged(&[]), None);
        assert_eq!(judged(&[None, None]), None, "nobody was asked");
        assert_eq!(judged(&[Some(false), None]), Some(true));
        assert_eq!(judged(&[Some(false), Some(true)]), Some(false));
    }

    #[test]
    fn a_node_that_was_fine_is_asked_three_times() {
        assert_eq!((tries(true), tries(false)), (3, 1));
    }

    #[test]
    fn a_few_peers_are_enough() {
        let others: Vec<Range> = (0..9).map(|n| format!("10.244.{n}.0/24").parse().unwrap()).collect();
        let chosen = choose_peers(others, <[Range]>::reverse);
        assert_eq!(chosen.len(), MOST_PEERS);
        assert_eq!(chosen[0], "10.244.8.0/24".parse().unwrap());
    }

    #[test]
    fn ranges_of_others_are_told_from_ones_own() {
        let node = |range: &str| RoutedNode { range: range.parse().ok(), ..RoutedNode::default() };
        let nodes = BTreeMap::from([
            ("a".to_owned(), node("10.244.0.0/24")),
            ("b".to_owned(), node("10.244.1.0/24")),
            ("new".to_owned(), node("")),
        ]);
        let ranges = NodeRanges::from_nodes(&nodes, "a");
        assert_eq!(ranges.own, "10.244.0.0/24".parse().ok());
        assert_eq!(ranges.others, ["10.244.1.0/24".parse().unwrap()]);
    }
}
