//! The ConfigMap that lists which pod ranges have routes on the router, for the server that hands out ranges.
//!
//! A range that goes to a new Node while the router still routes it elsewhere would be broken from the start. The allocator
//! (`server/src/admission/pod_ranges.rs`) knows nothing of clouds; it skips ranges that this ConfigMap names. Routes are listed before they are
//! created and struck off after they were seen gone, so that there is no moment at which the list lacks one.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use mainstay_api::pod_range_routes;

use super::view::Route;

/// The data of the ConfigMap for these routes: next hops by range. Routes outside of the cluster's range are nobody's business here.
pub fn data<'a>(routes: impl IntoIterator<Item = &'a Route>, cluster: &IpNet) -> BTreeMap<String, String> {
    let mut hops: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for route in routes.into_iter().filter(|route| route.overlaps(cluster)) {
        let Some(range) = route.range() else { continue };
        let key = pod_range_routes::key_for_range(&range.trunc().to_string());
        hops.entry(key).or_default().insert(&route.next_hop);
    }
    hops.into_iter().map(|(key, hops)| (key, hops.into_iter().collect::<Vec<_>>().join(","))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_listed_with_all_their_next_hops() {
        let routes = [
            Route::new("10.244.1.0/24", "10.0.0.7"),
            Route::new("10.244.1.0/24", "10.0.0.5"),
            Route::new("10.240.0.0/12", "10.0.0.8"),
            Route::new("192.168.0.0/24", "10.0.0.9"),
            Route::new("nonsense", "10.0.0.9"),
        ];
        let expected = [("10.240.0.0_12", "10.0.0.8"), ("10.244.1.0_24", "10.0.0.5,10.0.0.7")];
        let listed = data(&routes, &"10.244.0.0/16".parse().unwrap());
        assert_eq!(listed, expected.map(|(range, hops)| (range.to_owned(), hops.to_owned())).into());
    }
}
