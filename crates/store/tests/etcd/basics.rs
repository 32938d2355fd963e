//! Reads and transactions.

use mainstay_store::{Expect, List, Outcome, Revision, Store, StoreError, Txn};

use crate::{
    claims, client, delete, expect, put,
    server::{Server, Version},
    write,
};

claims! {
    a_written_key_is_read_back_with_its_revisions,
    a_list_of_many_pages_is_one_listing,
    a_list_resumes_where_the_last_one_ended,
    a_list_at_a_revision_sees_what_was_then,
    a_conflict_reports_what_the_compared_keys_hold,
    a_transaction_that_changes_nothing_reports_the_revision_it_looked_at,
    what_is_too_large_is_refused_as_such,
    a_full_store_says_so,
    refused_transactions_name_the_reason,
}

async fn a_written_key_is_read_back_with_its_revisions(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    let first = write(&store, vec![put("/r/a", "1")]).await;
    let second = write(&store, vec![put("/r/a", "2")]).await;
    assert_eq!(second, Revision(first.0 + 1));
    let (entry, at) = store.get("/r/a").await.expect("get");
    let entry = entry.expect("there");
    assert_eq!((&*entry.key, &*entry.value), ("/r/a", &b"2"[..]));
    assert_eq!((entry.created, entry.modified, at), (first, second, second));
    assert_eq!(store.revision().await.expect("revision"), second);
    let (none, at) = store.get("/r/b").await.expect("get");
    assert!(none.is_none());
    assert_eq!(at, second);
}

async fn a_list_of_many_pages_is_one_listing(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    for chunk in 0..13 {
        let keys = (0..100).map(|key| put(&format!("/r/{:05}", chunk * 100 + key), "x"));
        write(&store, keys.collect()).await;
    }
    write(&store, vec![put("/s", "behind"), put("/q", "before")]).await;
    let listing = store.list(List { prefix: "/r/", ..List::default() }).await.expect("list");
    let keys: Vec<_> = listing.entries.iter().map(|entry| entry.key.to_string()).collect();
    assert_eq!(keys, (0..1300).map(|key| format!("/r/{key:05}")).collect::<Vec<_>>());
    assert_eq!((listing.remaining, listing.revision), (0, store.revision().await.expect("revision")));

    let all = store.list(List::default()).await.expect("list");
    assert_eq!(all.entries.len(), 1302);
    let none = store.list(List { prefix: "/r/", limit: Some(0), ..List::default() }).await.expect("list");
    assert_eq!((none.entries.len(), none.remaining), (0, 1300));
    let many = store.list(List { prefix: "/r/", limit: Some(1001), ..List::default() }).await.expect("list");
    assert_eq!((many.entries.len(), many.remaining), (1001, 299));
}

async fn a_list_resumes_where_the_last_one_ended(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    write(&store, "abcde".chars().map(|key| put(&format!("/r/{key}"), "x")).collect()).await;
    let page = |start, limit| {
        let store = &store;
        async move {
            let listing = store.list(List { prefix: "/r/", start, limit, at: None }).await.expect("list");
            (listing.entries.iter().map(|entry| entry.key[3..].to_owned()).collect::<String>(), listing.remaining)
        }
    };
    assert_eq!(page(None, Some(2)).await, ("ab".into(), 3));
    assert_eq!(page(Some("/r/b\0"), Some(2)).await, ("cd".into(), 1));
    assert_eq!(page(Some("/r/d\0"), Some(2)).await, ("e".into(), 0));
    assert_eq!(page(Some("/r/z"), None).await, (String::new(), 0));
}

async fn a_list_at_a_revision_sees_what_was_then(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    let then = write(&store, vec![put("/r/a", "1"), put("/r/b", "1")]).await;
    write(&store, vec![put("/r/a", "2"), delete("/r/b")]).await;
    let at = |at| store.list(List { prefix: "/r/", at: Some(at), ..List::default() });
    let listing = at(then).await.expect("list");
    assert_eq!(listing.entries.iter().map(|entry| &*entry.value).collect::<Vec<_>>(), [b"1", b"1"]);
    assert_eq!(listing.revision, then);
    assert_eq!(at(Revision(0)).await.expect("before everything").entries.len(), 0);
    let newest = store.revision().await.expect("revision");
    match at(Revision(newest.0 + 1)).await {
        Err(StoreError::Future { requested, newest: reported }) => {
            assert_eq!((requested, reported), (Revision(newest.0 + 1), newest));
        }
        other => panic!("{other:?}"),
    }
}

async fn a_conflict_reports_what_the_compared_keys_hold(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    let at = write(&store, vec![put("/r/a", "1")]).await;
    let attempt = |compares| store.commit(Txn { compares, ops: vec![put("/r/c", "x")] });
    let compares =
        vec![expect("/r/a", Expect::Absent), expect("/r/b", Expect::Absent), expect("/r/a", Expect::ModifiedAt(at))];
    let Outcome::Conflict { current } = attempt(compares).await.expect("commit") else { panic!("committed") };
    let held: Vec<_> = current.iter().map(|entry| entry.as_ref().map(|entry| entry.modified)).collect();
    assert_eq!(held, [Some(at), None, Some(at)]);
    let never = attempt(vec![expect("/r/b", Expect::ModifiedAt(Revision(0)))]).await.expect("commit");
    assert!(matches!(never, Outcome::Conflict { .. }), "an absent key was never modified");
    assert!(store.get("/r/c").await.expect("get").0.is_none());

    let compares = vec![expect("/r/a", Expect::ModifiedAt(at)), expect("/r/b", Expect::Absent)];
    let Outcome::Committed(then) = attempt(compares).await.expect("commit") else { panic!("conflict") };
    assert_eq!(then, Revision(at.0 + 1));
}

async fn a_transaction_that_changes_nothing_reports_the_revision_it_looked_at(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    let at = write(&store, vec![put("/r/a", "1")]).await;
    assert_eq!(write(&store, vec![delete("/r/none")]).await, at);
    assert_eq!(write(&store, vec![]).await, at);
}

async fn what_is_too_large_is_refused_as_such(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    for size in [(3 << 19) + 1, 8 << 20] {
        let txn = Txn { compares: vec![], ops: vec![put("/r/big", &"x".repeat(size))] };
        match store.commit(txn).await {
            Err(StoreError::TooLarge { size: reported, limit }) => {
                assert!(reported > size && limit < reported, "{reported} {limit}")
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(store.revision().await.expect("revision"), Revision(1));
}

async fn a_full_store_says_so(version: Version) {
    let server = Server::start_with(version, "http", &["--quota-backend-bytes".into(), "65536".into()]);
    let store = client(&server).await;
    let mut refused = None;
    for number in 0..100 {
        let txn = Txn { compares: vec![], ops: vec![put(&format!("/r/{number}"), &"x".repeat(100_000))] };
        if let Err(error) = store.commit(txn).await {
            refused = Some(error);
            break;
        }
    }
    assert!(matches!(refused, Some(StoreError::NoSpace)), "{refused:?}");
    store.list(List::default()).await.expect("reads still work");
}

async fn refused_transactions_name_the_reason(version: Version) {
    let server = Server::start(version);
    let store = client(&server).await;
    let refused = |ops| {
        let store = &store;
        async move {
            match store.commit(Txn { compares: vec![], ops }).await {
                Err(StoreError::Failed { why }) => why,
                other => panic!("{other:?}"),
            }
        }
    };
    let twice = refused(vec![put("/r/a", "1"), delete("/r/a")]).await;
    assert!(twice.contains("/r/a"), "{twice}");
    let many = refused((0..200).map(|key| put(&format!("/r/{key}"), "x")).collect()).await;
    assert!(many.contains("--max-txn-ops"), "{many}");
    let empty = refused(vec![put("", "x")]).await;
    assert!(empty.contains("key is not provided"), "{empty}");
}
