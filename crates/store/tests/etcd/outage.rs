//! Outages: etcd stopped, unresponsive, or without a member.

use std::time::Duration;

use mainstay_store::{Etcd, EtcdConfig, EtcdConnectError, List, Revision, Store, StoreError, Txn, WatchEvent};

use crate::{
    PATIENCE, changes, claims, client, put,
    server::{Server, Version},
    within, write,
};

claims! {
    connecting_to_nobody_ends_at_the_deadline_and_names_the_endpoints,
    connecting_waits_for_an_etcd_that_is_on_its_way,
    a_killed_etcd_fails_calls_in_time_and_everything_resumes_on_the_same_data,
    a_deaf_etcd_fails_calls_in_time_and_everything_resumes_when_it_listens,
    a_watch_that_missed_compacted_history_says_so_after_the_outage,
    a_watch_ends_when_history_is_shorter_than_what_it_saw,
    three_members_lose_one_without_losing_anything,
    a_deaf_member_of_three_costs_a_read_less_than_its_deadline,
    a_watch_leaves_a_deaf_member_for_another,
    an_election_is_waited_out,
}

fn hasty(url: &str) -> EtcdConfig {
    EtcdConfig {
        call_deadline: Duration::from_secs(2),
        connect_deadline: Duration::from_secs(1),
        ..EtcdConfig::new(url)
    }
}

fn is_outage(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { .. } | StoreError::Timeout { .. })
}

/// Writes until it works again.
async fn write_again(store: &Etcd, key: &str, value: &str) -> Revision {
    within("etcd's return", async {
        loop {
            match store.commit(Txn { compares: vec![], ops: vec![put(key, value)] }).await {
                Ok(mainstay_store::Outcome::Committed(at)) => return at,
                Ok(conflict) => panic!("{conflict:?}"),
                Err(error) => assert!(is_outage(&error), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

async fn client_of_all(servers: &[Server; 3]) -> Etcd {
    let urls = servers.each_ref().map(|server| format!("127.0.0.1:{}", server.client_port));
    Etcd::connect(&EtcdConfig::new(format!("etcd://{}", urls.join(",")))).await.expect("connect")
}

/// Every kind of call fails as an outage.
async fn assert_down(store: &Etcd) {
    let calls = async {
        tokio::join!(
            store.get("/r/a"),
            store.list(List { prefix: "/r/", ..List::default() }),
            store.commit(Txn { compares: vec![], ops: vec![put("/r/lost", "x")] }),
            store.watch("/r/", Revision(1)),
            store.compact(Revision(1)),
            store.revision(),
        )
    };
    let (get, list, commit, watch, compact, revision) = within("calls that nobody answers", calls).await;
    let errors = [get.err(), list.err(), commit.err(), watch.err(), compact.err(), revision.err()];
    for error in errors {
        let error = error.expect("nobody is there to answer");
        assert!(is_outage(&error), "{error}");
        assert!(error.to_string().contains("127.0.0.1:"), "{error}");
    }
}

async fn connecting_to_nobody_ends_at_the_deadline_and_names_the_endpoints(version: Version) {
    let mut server = Server::start(version);
    server.kill();
    match within("connecting to nobody", Etcd::connect(&hasty(&server.url()))).await {
        Err(EtcdConnectError::Store(error)) => {
            assert!(is_outage(&error), "{error}");
            assert!(error.to_string().contains(&server.client_port.to_string()), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

async fn connecting_waits_for_an_etcd_that_is_on_its_way(version: Version) {
    let mut server = Server::start(version);
    server.kill();
    let config = EtcdConfig { connect_deadline: PATIENCE, ..EtcdConfig::new(server.url()) };
    let connecting = tokio::spawn(async move { Etcd::connect(&config).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!connecting.is_finished());
    server.launch();
    within("connecting", connecting).await.expect("no panic").expect("connected");
}

async fn a_killed_etcd_fails_calls_in_time_and_everything_resumes_on_the_same_data(version: Version) {
    let mut server = Server::start(version);
    client(&server).await;
    let store = Etcd::lazy(&hasty(&server.url())).expect("config");
    let start = write(&store, vec![put("/r/a", "1")]).await;
    let mut watch = store.watch("/r/", start).await.expect("watch");
    write(&store, vec![put("/r/a", "2")]).await;
    assert_eq!(changes(&mut *watch, 1).await, ["3 /r/a 1>2"]);
    for round in 3..6 {
        server.kill();
        assert_down(&store).await;
        watch.request_progress();
        server.launch();
        let at = write_again(&store, "/r/a", &round.to_string()).await;
        assert_eq!(at, Revision(round + 1), "nothing was lost or applied twice");
        let mut reported = Revision(0);
        let mut lines = Vec::new();
        while lines.is_empty() || reported == Revision(0) {
            match within("the watch", watch.next()).await.expect("watch goes on") {
                WatchEvent::Changes(changes) => lines.extend(changes.iter().map(crate::line)),
                WatchEvent::Progress(at) => reported = at,
            }
        }
        assert_eq!(lines, [format!("{at} /r/a {}>{round}", round - 1)]);
    }
}

async fn a_deaf_etcd_fails_calls_in_time_and_everything_resumes_when_it_listens(version: Version) {
    let server = Server::start(version);
    client(&server).await;
    let store = Etcd::lazy(&hasty(&server.url())).expect("config");
    let start = write(&store, vec![put("/r/a", "1")]).await;
    let mut watch = store.watch("/r/", start).await.expect("watch");
    server.signal("STOP");
    assert_down(&store).await;
    server.signal("CONT");
    write_again(&store, "/r/a", "2").await;
    let last = write(&store, vec![put("/r/last", "x")]).await;
    // The write that went unanswered may have happened; no other may, and none twice.
    let mut lines = Vec::new();
    while !lines.last().is_some_and(|line: &String| line.contains("/r/last")) {
        lines.extend(changes(&mut *watch, 1).await);
    }
    assert!(lines.iter().filter(|line| line.contains("/r/lost")).count() <= 1, "{lines:?}");
    lines.retain(|line| !line.contains("/r/lost"));
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].ends_with("/r/a 1>2") && lines[1] == format!("{last} /r/last ->x"), "{lines:?}");
}

async fn a_watch_that_missed_compacted_history_says_so_after_the_outage(version: Version) {
    let mut server = Server::start(version);
    let store = client(&server).await;
    let start = write(&store, vec![put("/r/a", "1")]).await;
    let mut watch = store.watch("/r/", start).await.expect("watch");
    // To the watch etcd is down, while others find it at another port.
    server.kill();
    let port = server.listen_at(None);
    server.launch();
    let other = client(&server).await;
    write(&other, vec![put("/r/a", "2")]).await;
    let oldest = write(&other, vec![put("/r/a", "3")]).await;
    other.compact(oldest).await.expect("compact");
    server.kill();
    server.listen_at(Some(port));
    server.launch();
    match within("the watch", watch.next()).await {
        Err(StoreError::Compacted { requested, oldest: reported }) => {
            assert_eq!((requested, reported), (start, oldest))
        }
        other => panic!("{other:?}"),
    }
}

async fn a_watch_ends_when_history_is_shorter_than_what_it_saw(version: Version) {
    let mut server = Server::start(version);
    let store = client(&server).await;
    for _ in 0..5 {
        write(&store, vec![put("/r/a", "1")]).await;
    }
    let start = store.revision().await.expect("revision");
    let mut watch = store.watch("/r/", start).await.expect("watch");
    server.kill();
    server.forget();
    server.launch();
    match within("the watch", watch.next()).await {
        Err(StoreError::Future { requested, newest }) => assert_eq!((requested, newest), (start, Revision(1))),
        other => panic!("{other:?}"),
    }
}

async fn three_members_lose_one_without_losing_anything(version: Version) {
    let mut servers = Server::start_three(version);
    let store = client_of_all(&servers).await;
    let start = write_again(&store, "/r/a", "0").await;
    let mut watch = store.watch("/r/", start).await.expect("watch");
    let mut expected = Vec::new();
    for (round, lost) in [0, 1, 2].into_iter().enumerate() {
        servers[lost].kill();
        for number in 0..10 {
            let value = format!("{round}.{number}");
            let at = write_again(&store, "/r/a", &value).await;
            let (entry, _) = within("a read", async {
                loop {
                    match store.get("/r/a").await {
                        Ok(found) => return found,
                        Err(error) => assert!(is_outage(&error), "{error}"),
                    }
                }
            })
            .await;
            assert_eq!(entry.expect("there").modified, at);
            expected.push(format!(">{value}"));
        }
        servers[lost].launch();
        // The cluster must be whole again before it can spare the next one.
        let alone = EtcdConfig { connect_deadline: PATIENCE, ..EtcdConfig::new(servers[lost].url()) };
        Etcd::connect(&alone).await.expect("the member is back");
    }
    // A write whose answer was lost with its member was repeated by `write_again`, so a value may
    // come twice in a row; none is missing and none is out of order.
    let mut values = Vec::new();
    while values.len() < expected.len() {
        for line in changes(&mut *watch, 1).await {
            let value = format!(">{}", line.rsplit_once('>').expect("a change").1);
            if values.last() != Some(&value) {
                values.push(value);
            }
        }
    }
    assert_eq!(values, expected);
}

async fn a_deaf_member_of_three_costs_a_read_less_than_its_deadline(version: Version) {
    let servers = Server::start_three(version);
    let store = client_of_all(&servers).await;
    write_again(&store, "/r/a", "0").await;
    for deaf in &servers {
        deaf.signal("STOP");
        // The others may have to elect a leader first, hence not only the first read.
        within("a read", async { while store.get("/r/a").await.is_err() {} }).await;
        store.get("/r/a").await.expect("the others answer before the deadline of the call");
        deaf.signal("CONT");
        let alone = EtcdConfig { connect_deadline: PATIENCE, ..EtcdConfig::new(deaf.url()) };
        Etcd::connect(&alone).await.expect("it listens again");
    }
}

async fn a_watch_leaves_a_deaf_member_for_another(version: Version) {
    let servers = Server::start_three(version);
    client(&servers[0]).await;
    let store = client_of_all(&servers).await;
    let start = write_again(&store, "/r/a", "0").await;
    let mut watch = store.watch("/r/", start).await.expect("watch");
    write(&store, vec![put("/r/a", "1")]).await;
    assert_eq!(changes(&mut *watch, 1).await.len(), 1);
    // The first that was asked, so the one that the watch is at.
    servers[0].signal("STOP");
    write_again(&store, "/r/b", "2").await;
    let reported = changes(&mut *watch, 1).await;
    assert!(reported[0].ends_with("/r/b ->2"), "{reported:?}");
}

async fn an_election_is_waited_out(version: Version) {
    let mut servers = Server::start_three(version);
    let patient = EtcdConfig { call_deadline: PATIENCE, ..EtcdConfig::new(servers[2].url()) };
    let patient = Etcd::connect(&patient).await.expect("connect");
    let hasty = Etcd::lazy(&hasty(&servers[2].url())).expect("config");
    let before = write_again(&hasty, "/r/a", "0").await;
    servers[0].kill();
    servers[1].kill();
    within("the member to miss its leader", async {
        while !hasty.revision().await.is_err_and(|error| error.to_string().contains("no leader")) {}
    })
    .await;
    let writing = tokio::spawn(async move { write(&patient, vec![put("/r/a", "1")]).await });
    servers[0].launch();
    servers[1].launch();
    let at = within("the election", writing).await.expect("one attempt is enough");
    assert_eq!(at, Revision(before.0 + 1));
}
