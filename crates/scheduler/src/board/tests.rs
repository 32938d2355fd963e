use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const TIMES: Times =
    Times { ttl: Duration::from_secs(5), linger: Duration::from_secs(120), refuse: Duration::from_secs(5) };

fn board() -> Board<u32> {
    Board::new(TIMES)
}

#[test]
fn an_offer_is_good_for_its_time_from_receipt() {
    let (mut board, now) = (board(), Instant::now());
    assert_eq!(board.receive("m", 1, None, now), Received::New);
    assert_eq!(board.viable("m", now + 4 * SECOND), Some(&1));
    assert_eq!(board.viable("m", now + 5 * SECOND), None, "even before anybody took it down");
    assert_eq!(board.next(), Some(now + 5 * SECOND));
    assert_eq!(board.expire(now + 5 * SECOND), ["m"]);
    assert_eq!((board.next(), board.len()), (None, 0));
    assert_eq!(board.receive("m", 1, Some(SECOND), now + 6 * SECOND), Received::New);
    assert_eq!(board.next(), Some(now + 7 * SECOND), "its own word counts");
}

#[test]
fn the_same_for_longer_is_no_news() {
    let (mut board, now) = (board(), Instant::now());
    board.receive("m", 1, None, now);
    assert_eq!(board.receive("m", 1, None, now + 3 * SECOND), Received::Renewed);
    assert_eq!(board.expire(now + 5 * SECOND), [""; 0]);
    assert_eq!(board.receive("m", 2, None, now + 6 * SECOND), Received::Changed);
    assert_eq!(board.viable("m", now + 10 * SECOND), Some(&2));
}

#[test]
fn what_expired_is_remembered_for_a_while_and_no_longer() {
    let (mut board, now) = (board(), Instant::now());
    board.receive("m", 1, None, now);
    assert!(!board.has_expired("m", now) && !board.has_expired("never", now));
    assert!(board.has_expired("m", now + 5 * SECOND));
    board.expire(now + 5 * SECOND);
    assert!(board.has_expired("m", now + 124 * SECOND));
    assert!(!board.has_expired("m", now + 125 * SECOND));
    board.expire(now + 126 * SECOND);
    assert!(board.expired.is_empty());
    board.receive("m", 1, None, now + 127 * SECOND);
    assert!(!board.has_expired("m", now + 127 * SECOND));
}

#[test]
fn what_is_withdrawn_is_gone_at_once_and_has_not_expired() {
    let (mut board, now) = (board(), Instant::now());
    board.receive("m", 1, None, now);
    assert!(board.withdraw("m") && !board.withdraw("m"));
    assert_eq!((board.viable("m", now), board.next()), (None, None));
    assert!(!board.has_expired("m", now + 6 * SECOND));
}

#[test]
fn a_refusal_stands_for_its_time() {
    let (mut board, now) = (board(), Instant::now());
    board.refused("p", "m", now);
    board.refused("p", "n", now + SECOND);
    board.refused("p", "m", now + 2 * SECOND);
    assert!(board.stands_refused("p", "m") && !board.stands_refused("q", "m"));
    let mut refusing: Vec<&str> = board.refusing("p").collect();
    refusing.sort();
    assert_eq!(refusing, ["m", "n"]);
    assert_eq!(board.next(), Some(now + 6 * SECOND));
    assert_eq!(board.forgive(now + 6 * SECOND), [("p".to_owned(), "n".to_owned())]);
    assert_eq!(board.forgive(now + 7 * SECOND), [("p".to_owned(), "m".to_owned())]);
    assert!(!board.stands_refused("p", "m") && board.next().is_none());
}

#[test]
fn people_see_what_is_offered() {
    let (mut board, now) = (board(), Instant::now());
    board.receive("b", 2, None, now);
    board.receive("a", 1, None, now + SECOND);
    board.used("a");
    let told = board.told(now + 2 * SECOND);
    let expected = Told { machine: "a", terms: &1, age: SECOND, expires_in: 4 * SECOND, used: 1 };
    assert_eq!((told[0].clone(), told[1].machine), (expected, "b"));
}

proptest! {
    /// Every offer is viable from receipt until the earlier of withdrawal and expiry, and no timer is left behind.
    #[test]
    fn offers_live_as_long_as_they_say(steps in prop::collection::vec((0..4u8, 0..4u32, 0..4_000u64), 1..100)) {
        let mut board = board();
        let mut model: HashMap<String, (u32, Instant)> = HashMap::new();
        let mut now = Instant::now();
        for (machine, what, millis) in steps {
            let name = machine.to_string();
            now += Duration::from_millis(millis);
            match what {
                0 => {
                    board.withdraw(&name);
                    model.remove(&name);
                }
                1 => {
                    let mut over = board.expire(now);
                    over.sort();
                    let mut expected: Vec<String> =
                        model.iter().filter(|(_, (_, at))| *at <= now).map(|(name, _)| name.clone()).collect();
                    expected.sort();
                    prop_assert_eq!(over, expected);
                    model.retain(|_, (_, at)| *at > now);
                }
                terms => {
                    board.receive(&name, terms, None, now);
                    model.insert(name.clone(), (terms, now + TIMES.ttl));
                }
            }
            for name in (0..4u8).map(|machine| machine.to_string()) {
                let expected = model.get(&name).filter(|(_, at)| *at > now).map(|(terms, _)| terms);
                prop_assert_eq!(board.viable(&name, now), expected);
            }
            prop_assert_eq!(board.by_expiry.len(), model.len());
            prop_assert_eq!(board.next(), model.values().map(|(_, at)| *at).min());
        }
    }
}
