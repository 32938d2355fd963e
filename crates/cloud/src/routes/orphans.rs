//! Orphaned routes: routes to pod ranges whose next hop no server has.
//!
//! A route is an orphan if its destination's first and last address lie in the cluster's range and its next hop is no address, on any
//! network, fixed or floating, of any server of the project, whatever that server's state. Everything else belongs to somebody: routes out of
//! the range or partly out of it, routes to servers that exist, and what cannot be parsed.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

use super::view::Route;

pub fn is_orphan(route: &Route, cluster: &IpNet, server_addresses: &BTreeSet<IpAddr>) -> bool {
    match route.next_hop() {
        Some(next_hop) => route.is_within(cluster) && !server_addresses.contains(&next_hop),
        None => false,
    }
}

/// Those of `routes` that are orphans, in their order.
pub fn find_orphans(routes: &[Route], cluster: &IpNet, server_addresses: &BTreeSet<IpAddr>) -> Vec<Route> {
    routes.iter().filter(|route| is_orphan(route, cluster, server_addresses)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_routes_in_the_range_to_no_server_are_orphans() {
        let cluster: IpNet = "100.100.0.0/16".parse().unwrap();
        let live = BTreeSet::from(["10.0.0.5".parse().unwrap(), "203.0.113.9".parse().unwrap()]);
        let table = [
            ("100.100.1.0/24", "10.0.0.9", true, "in range, dead"),
            ("100.100.1.0/24", "10.0.0.5", false, "in range, alive"),
            ("100.100.1.0/24", "203.0.113.9", false, "in range, a floating address"),
            ("100.100.0.0/16", "10.0.0.9", true, "the whole range, dead"),
            ("100.101.1.0/24", "10.0.0.9", false, "out of range, dead"),
            ("100.96.0.0/11", "10.0.0.9", false, "contains the range"),
            ("0.0.0.0/0", "10.0.0.9", false, "the default route"),
            ("100.100.1.0", "10.0.0.9", false, "no range"),
            ("nonsense", "10.0.0.9", false, "unparsable destination"),
            ("100.100.1.0/24", "nonsense", false, "unparsable next hop"),
            ("100.100.1.0/99", "10.0.0.9", false, "unparsable prefix"),
            ("fd00::/64", "fd01::1", false, "another family"),
        ];
        for (destination, next_hop, expected, case) in table {
            assert_eq!(is_orphan(&Route::new(destination, next_hop), &cluster, &live), expected, "{case}");
        }
    }

    #[test]
    fn they_keep_their_order() {
        let cluster: IpNet = "10.244.0.0/16".parse().unwrap();
        let routes = [Route::new("10.244.9.0/24", "10.0.0.9"), Route::new("10.244.1.0/24", "10.0.0.1")];
        assert_eq!(find_orphans(&routes, &cluster, &BTreeSet::new()), routes);
    }
}
