//! Names of others, from resolvers that behave and that do not.

use std::time::Duration;

use hickory_proto::{op::ResponseCode, rr::Record};
use mainstay_network::catalogue::ServiceKind;
use tokio::time::Instant;

use crate::{
    support::{PATIENCE, Running, question},
    upstream::{Mode, Upstream},
};

/// An upstream in this mode, and a server that asks it.
async fn with(mode: Mode) -> (Upstream, Running) {
    let upstream = Upstream::start(mode).await;
    let dns = Running::start(vec![upstream.address]).await;
    (upstream, dns)
}

/// Code, addresses or names, and the shortest TTL.
async fn ask(dns: &Running, name: &str) -> (ResponseCode, Vec<String>, u32) {
    let answer = dns.send(&question(9, name), PATIENCE).await.expect("an answer");
    let ttl = answer.answers.iter().chain(&answer.authorities).map(|record: &Record| record.ttl).min();
    let output = answer.answers.iter().map(|record| record.data.to_string()).collect();
    (answer.metadata.response_code, output, ttl.unwrap_or(0))
}

/// Asks until the answer is as wanted.
async fn until(
    dns: &Running,
    name: &str,
    wanted: impl Fn(&(ResponseCode, Vec<String>, u32)) -> bool,
) -> (ResponseCode, Vec<String>, u32) {
    let begin = Instant::now();
    loop {
        let answer = ask(dns, name).await;
        if wanted(&answer) {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "still {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_cached_and_its_ttl_counts_down() {
    let (upstream, dns) = with(Mode::Well(60)).await;
    assert_eq!(dns.short("www.example").await, ["192.0.2.1"]);
    assert_eq!(dns.short("WWW.Example").await, ["192.0.2.1"]);
    assert_eq!(dns.short("+tcp www.example").await, ["192.0.2.1"]);
    let aged = until(&dns, "www.example", |(_, _, ttl)| *ttl < 60).await;
    assert!(aged.2 >= 50);
    assert_eq!(upstream.query_counts(), (1, 0));
    let letters = dns.dig("wWw.eXample").await;
    assert!(letters.contains("wWw.eXample. ") && letters.contains("flags: qr rd ra;"), "{letters}");
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_answer_is_queried_again() {
    let (upstream, dns) = with(Mode::Well(1)).await;
    ask(&dns, "www.example").await;
    let begin = Instant::now();
    while upstream.query_counts().0 < 2 {
        assert_eq!(ask(&dns, "www.example").await.1, ["192.0.2.1"]);
        assert!(begin.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(begin.elapsed() > Duration::from_millis(800));
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn negative_answers_are_cached_only_with_an_soa() {
    let (upstream, dns) = with(Mode::Well(60)).await;
    for _ in 0..3 {
        assert_eq!(ask(&dns, "none.example").await.0, ResponseCode::NXDomain);
        assert_eq!(ask(&dns, "empty.example").await, (ResponseCode::NoError, Vec::new(), 60));
    }
    assert_eq!(upstream.query_counts(), (2, 0));
    for _ in 0..2 {
        assert_eq!(ask(&dns, "unsaid.example").await.0, ResponseCode::NXDomain);
    }
    assert_eq!(upstream.query_counts(), (4, 0));
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_answers_are_served_when_no_upstream_answers() {
    let (upstream, dns) = with(Mode::Well(1)).await;
    ask(&dns, "www.example").await;
    drop(upstream);
    let stale = until(&dns, "www.example", |(_, _, ttl)| *ttl == 30).await;
    assert_eq!((stale.0, stale.1), (ResponseCode::NoError, vec!["192.0.2.1".into()]));
    // What was not known is not invented.
    assert_eq!(ask(&dns, "other.example").await.0, ResponseCode::ServFail);
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_answer_is_served_when_the_upstream_is_slow() {
    let (upstream, dns) = with(Mode::Well(1)).await;
    ask(&dns, "www.example").await;
    upstream.set(Mode::Silent);
    let begin = Instant::now();
    let stale = until(&dns, "www.example", |(_, _, ttl)| *ttl == 30).await;
    assert_eq!(stale.1, ["192.0.2.1"]);
    let waited = begin.elapsed();
    assert!(waited > Duration::from_millis(1800), "{waited:?}");
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn identical_queries_in_flight_are_sent_once() {
    let (upstream, dns) = with(Mode::Late(Duration::from_millis(300))).await;
    let answers = futures::future::join_all((0..50).map(|_| ask(&dns, "www.example"))).await;
    assert!(answers.iter().all(|(_, output, _)| *output == ["192.0.2.1"]));
    assert_eq!(upstream.query_counts(), (1, 0));
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn truncated_responses_are_fetched_over_tcp() {
    let (upstream, dns) = with(Mode::Well(60)).await;
    let cut = dns.send(&question(1, "big.example"), PATIENCE).await.unwrap();
    assert!(cut.metadata.truncation && cut.answers.len() < 100);
    assert_eq!(upstream.query_counts(), (1, 1));
    assert_eq!(dns.short("big.example").await.len(), 100);
    assert_eq!(upstream.query_counts(), (1, 1));
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_upstream_is_queried_when_one_fails() {
    let (gone, failing, well) = (
        Upstream::start(Mode::Well(1)).await,
        Upstream::start(Mode::Failing).await,
        Upstream::start(Mode::Well(60)).await,
    );
    let dead = gone.address;
    drop(gone);
    let dns = Running::start(vec![dead, failing.address, well.address]).await;
    assert_eq!(ask(&dns, "www.example").await.1, ["192.0.2.1"]);
    assert_eq!((failing.query_counts(), well.query_counts()), ((1, 0), (1, 0)));
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn spoofed_responses_are_ignored() {
    let (upstream, dns) = with(Mode::Spoofed).await;
    assert_eq!(ask(&dns, "www.example").await.1, ["192.0.2.1"]);
    assert_eq!(upstream.query_counts(), (1, 0));
    let names: std::collections::HashSet<_> = futures::future::join_all((0..20).map(|number| {
        let dns = &dns;
        async move { ask(dns, &format!("a-long-name-with-letters-{number}.example")).await }
    }))
    .await
    .into_iter()
    .flat_map(|_| upstream.names())
    .map(|name| name.replace(|letter: char| !letter.is_ascii_alphabetic(), ""))
    .collect();
    assert!(names.len() > 10, "letters are chance: {names:?}");
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upstreams_without_0x20_or_edns_are_queried_otherwise() {
    let (upstream, dns) = with(Mode::LosesLetters).await;
    assert_eq!(ask(&dns, "a-long-name-with-letters.example").await.1, ["192.0.2.1"]);
    assert_eq!(upstream.query_counts(), (1, 1));
    upstream.set(Mode::Old);
    assert_eq!(ask(&dns, "another.example").await.1, ["192.0.2.1"]);
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn our_cnames_to_other_zones_are_followed() {
    let (_upstream, dns) = with(Mode::Well(60)).await;
    dns.add("out", ServiceKind::ExternalName("alias.example".into()), []);
    for _ in 0..2 {
        let output = dns.short("out.default.svc.cluster.local").await;
        assert_eq!(output, ["192.0.2.9", "alias.example.", "target.example."]);
    }
    assert_eq!(dns.short("-t txt text.example").await, ["\"Some Text\""]);
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_in_our_zones_are_never_forwarded() {
    let (upstream, dns) = with(Mode::Well(60)).await;
    for name in ["none.default.svc.cluster.local", "cluster.local", "x.consul", "none.service.dc2.consul"] {
        assert_eq!(ask(&dns, name).await.1, [""; 0], "{name}");
    }
    assert_eq!(upstream.query_counts(), (0, 0));
    assert_eq!(ask(&dns, "9.9.9.9.in-addr.arpa").await.0, ResponseCode::NoError);
    assert_eq!(upstream.query_counts(), (1, 0));
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_upstream_the_answer_is_servfail() {
    let dns = Running::start(Vec::new()).await;
    assert_eq!(ask(&dns, "www.example").await.0, ResponseCode::ServFail);
    dns.upstreams.set(vec![dns.address]);
    assert_eq!(ask(&dns, "other.example").await.0, ResponseCode::ServFail);
    let upstream = Upstream::start(Mode::Well(60)).await;
    dns.upstreams.set(vec![dns.address, upstream.address]);
    assert_eq!(ask(&dns, "third.example").await.1, ["192.0.2.1"]);
    dns.stop().await;
}
