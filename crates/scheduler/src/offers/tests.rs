use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const TIMES: OfferTimes =
    OfferTimes { ttl: Duration::from_secs(5), linger: Duration::from_secs(120), refuse: Duration::from_secs(5) };

fn offers() -> OfferBoard<u32> {
    OfferBoard::new(TIMES)
}

#[test]
fn an_offer_is_good_for_its_time_from_receipt() {
    let (mut offers, now) = (offers(), Instant::now());
    assert_eq!(offers.receive("m", 1, None, now), OfferChange::New);
    assert_eq!(offers.viable("m", now + 4 * SECOND), Some(&1));
    assert_eq!(offers.viable("m", now + 5 * SECOND), None, "even before anybody took it down");
    assert_eq!(offers.next_expiry(), Some(now + 5 * SECOND));
    assert_eq!(offers.expire(now + 5 * SECOND), ["m"]);
    assert_eq!((offers.next_expiry(), offers.len()), (None, 0));
    assert_eq!(offers.receive("m", 1, Some(SECOND), now + 6 * SECOND), OfferChange::New);
    assert_eq!(offers.next_expiry(), Some(now + 7 * SECOND), "its own word counts");
}

#[test]
fn the_same_for_longer_is_no_news() {
    let (mut offers, now) = (offers(), Instant::now());
    offers.receive("m", 1, None, now);
    assert_eq!(offers.receive("m", 1, None, now + 3 * SECOND), OfferChange::Renewed);
    assert_eq!(offers.expire(now + 5 * SECOND), [""; 0]);
    assert_eq!(offers.receive("m", 2, None, now + 6 * SECOND), OfferChange::Changed);
    assert_eq!(offers.viable("m", now + 10 * SECOND), Some(&2));
}

#[test]
fn a_renewed_offer_is_good_for_its_own_time_from_then_and_an_expired_one_stays_expired() {
    let (mut offers, now) = (offers(), Instant::now());
    offers.receive("m", 1, Some(3 * SECOND), now);
    offers.renew("m", now + 2 * SECOND);
    offers.renew("unknown", now);
    assert_eq!(offers.viable("m", now + 4 * SECOND), Some(&1));
    assert_eq!(offers.next_expiry(), Some(now + 5 * SECOND));
    assert_eq!(offers.summaries(now + 3 * SECOND)[0].age, SECOND);
    offers.renew("m", now + 5 * SECOND);
    assert_eq!(offers.viable("m", now + 5 * SECOND), None);
    assert_eq!(offers.expire(now + 5 * SECOND), ["m"]);
    assert_eq!(offers.by_expiry.len(), 0);
}

#[test]
fn what_expired_is_remembered_for_a_while_and_no_longer() {
    let (mut offers, now) = (offers(), Instant::now());
    offers.receive("m", 1, None, now);
    assert!(!offers.has_expired("m", now) && !offers.has_expired("never", now));
    assert!(offers.has_expired("m", now + 5 * SECOND));
    offers.expire(now + 5 * SECOND);
    assert!(offers.has_expired("m", now + 124 * SECOND));
    assert!(!offers.has_expired("m", now + 125 * SECOND));
    offers.expire(now + 126 * SECOND);
    assert!(offers.expired.is_empty());
    offers.receive("m", 1, None, now + 127 * SECOND);
    assert!(!offers.has_expired("m", now + 127 * SECOND));
}

#[test]
fn what_is_withdrawn_is_gone_at_once_and_has_not_expired() {
    let (mut offers, now) = (offers(), Instant::now());
    offers.receive("m", 1, None, now);
    assert!(offers.withdraw("m") && !offers.withdraw("m"));
    assert_eq!((offers.viable("m", now), offers.next_expiry()), (None, None));
    assert!(!offers.has_expired("m", now + 6 * SECOND));
}

#[test]
fn a_refusal_stands_for_its_time() {
    let (mut offers, now) = (offers(), Instant::now());
    offers.record_refusal("p", "m", now);
    offers.record_refusal("p", "n", now + SECOND);
    offers.record_refusal("p", "m", now + 2 * SECOND);
    assert!(offers.is_refusing("p", "m") && !offers.is_refusing("q", "m"));
    let mut refusing_nodes: Vec<&str> = offers.refusing_nodes("p").collect();
    refusing_nodes.sort();
    assert_eq!(refusing_nodes, ["m", "n"]);
    assert_eq!(offers.next_expiry(), Some(now + 6 * SECOND));
    assert_eq!(offers.expire_refusals(now + 6 * SECOND), [("p".to_owned(), "n".to_owned())]);
    assert_eq!(offers.expire_refusals(now + 7 * SECOND), [("p".to_owned(), "m".to_owned())]);
    assert!(!offers.is_refusing("p", "m") && offers.next_expiry().is_none());
}

#[test]
fn people_see_what_is_offered() {
    let (mut offers, now) = (offers(), Instant::now());
    offers.receive("b", 2, None, now);
    offers.receive("a", 1, None, now + SECOND);
    offers.record_use("a");
    let summaries = offers.summaries(now + 2 * SECOND);
    let expected = OfferSummary { node: "a", offer: &1, age: SECOND, expires_in: 4 * SECOND, used: 1 };
    assert_eq!((summaries[0].clone(), summaries[1].node), (expected, "b"));
}

proptest! {
    /// Every offer is viable from receipt until the earlier of withdrawal and expiry, and no timer is left behind.
    #[test]
    fn offers_live_as_long_as_they_say(steps in prop::collection::vec((0..4u8, 0..4u32, 0..4_000u64), 1..100)) {
        let mut offers = offers();
        let mut model: HashMap<String, (u32, Instant)> = HashMap::new();
        let mut now = Instant::now();
        for (node, what, millis) in steps {
            let name = node.to_string();
            now += Duration::from_millis(millis);
            match what {
                0 => {
                    offers.withdraw(&name);
                    model.remove(&name);
                }
                1 => {
                    let mut expired_now = offers.expire(now);
                    expired_now.sort();
                    let mut expected: Vec<String> =
                        model.iter().filter(|(_, (_, at))| *at <= now).map(|(name, _)| name.clone()).collect();
                    expected.sort();
                    prop_assert_eq!(expired_now, expected);
                    model.retain(|_, (_, at)| *at > now);
                }
                offer => {
                    offers.receive(&name, offer, None, now);
                    model.insert(name.clone(), (offer, now + TIMES.ttl));
                }
            }
            for name in (0..4u8).map(|node| node.to_string()) {
                let expected = model.get(&name).filter(|(_, at)| *at > now).map(|(offer, _)| offer);
                prop_assert_eq!(offers.viable(&name, now), expected);
            }
            prop_assert_eq!(offers.by_expiry.len(), model.len());
            prop_assert_eq!(offers.next_expiry(), model.values().map(|(_, at)| *at).min());
        }
    }
}
