//! When the device behind a router is asked to take in its routes anew (a nudge).
//!
//! Some devices lose routes that Neutron lists, after a failover say, and take them in again with the next change of the router; there is no
//! call for that. So a route to an address of documentation is added and taken away at once. It is done only while a node measures that
//! the router does not route to it although the router lists its route, and not more often than every ten minutes.

use jiff::{SignedDuration, Timestamp};

use super::view::Route;

/// Nudges of one router are at least so far apart.
pub const LEAST_PAUSE: SignedDuration = SignedDuration::from_mins(10);
/// The destination of the passing route: an address of documentation (RFC 5737), which nobody uses.
pub const DESTINATION: &str = "192.0.2.254/32";

/// The route to add and to take away, if it is time. `broken_routes` are routes that the router lists and whose nodes say that it does not route to them.
pub fn decide_nudge<'a>(
    broken_routes: impl IntoIterator<Item = &'a Route>,
    last: Option<Timestamp>,
    has_room: bool,
    now: Timestamp,
) -> Option<Route> {
    let next_hop = broken_routes.into_iter().next()?.next_hop.clone();
    // A time that lies ahead is a clock that was set back, and no reason to wait for ever.
    let is_due = last.is_none_or(|last| now.duration_since(last).abs() >= LEAST_PAUSE);
    (is_due && has_room).then(|| Route::new(DESTINATION, next_hop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_rare_and_only_for_broken_routes() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let ago = |minutes: i64| Some(now - SignedDuration::from_mins(minutes));
        let broken = [Route::new("10.244.1.0/24", "10.0.0.1")];
        let nudge = Some(Route::new(DESTINATION, "10.0.0.1"));
        assert_eq!(decide_nudge(&[], None, true, now), None, "nobody complains");
        assert_eq!(decide_nudge(&broken, None, true, now), nudge);
        assert_eq!(decide_nudge(&broken, ago(9), true, now), None);
        assert_eq!(decide_nudge(&broken, ago(10), true, now), nudge);
        assert_eq!(decide_nudge(&broken, ago(-60), true, now), nudge, "the clock was set back");
        assert_eq!(decide_nudge(&broken, None, false, now), None, "the router takes no further route");
    }
}
