use super::tools::*;
use crate::{List, Revision};

pub async fn get_of_an_absent_key_is_none(store: Any) {
    let before = store.revision().await.expect("revision");
    let (entry, at) = store.get("/a").await.expect("get");
    assert!(entry.is_none());
    assert_eq!(at, before);
}

pub async fn put_then_get_returns_it(store: Any) {
    let written = put(&store, "/a", "1").await;
    let (entry, at) = store.get("/a").await.expect("get");
    let entry = entry.expect("the key");
    assert_eq!(text(&entry), "/a=1");
    assert_eq!((entry.created, entry.modified), (written, written));
    assert!(at >= written);
    assert!(store.revision().await.expect("revision") >= written);
}

pub async fn list_returns_keys_below_the_prefix_in_order(store: Any) {
    for key in ["/p/c", "/p/a", "/q/x", "/o/z", "/p/b/d"] {
        put(&store, key, "v").await;
    }
    let found = list(&store, List { prefix: "/p/", ..List::default() }).await;
    assert_eq!(found, ["/p/a=v", "/p/b/d=v", "/p/c=v"]);
    let all = list(&store, List { prefix: "/", ..List::default() }).await;
    assert_eq!(all, ["/o/z=v", "/p/a=v", "/p/b/d=v", "/p/c=v", "/q/x=v"]);
}

pub async fn list_of_nothing_is_empty_and_has_a_revision(store: Any) {
    let written = put(&store, "/q/x", "v").await;
    let listing = store.list(List { prefix: "/p/", ..List::default() }).await.expect("list");
    assert!(listing.entries.is_empty());
    assert_eq!((listing.revision, listing.remaining), (written, 0));
}

pub async fn limit_cuts_and_counts_what_remains(store: Any) {
    for n in 0..7 {
        put(&store, &format!("/p/{n}"), "v").await;
    }
    put(&store, "/q/0", "v").await;
    let page = |limit| List { prefix: "/p/", limit: Some(limit), ..List::default() };
    for (limit, returned, remaining) in [(1, 1, 6), (3, 3, 4), (7, 7, 0), (100, 7, 0)] {
        let listing = store.list(page(limit)).await.expect("list");
        assert_eq!((listing.entries.len(), listing.remaining), (returned, remaining), "limit {limit}");
    }
}

pub async fn start_continues_where_the_last_page_ended(store: Any) {
    for n in 0..7 {
        put(&store, &format!("/p/{n}"), "v").await;
    }
    put(&store, "/q/0", "v").await;
    let mut start: Option<String> = None;
    let mut observed = Vec::new();
    loop {
        let query = List { prefix: "/p/", start: start.as_deref(), limit: Some(3), at: None };
        let listing = store.list(query).await.expect("list");
        observed.extend(listing.entries.iter().map(|e| e.key.to_string()));
        assert_eq!(listing.remaining as usize, 7 - observed.len());
        if listing.remaining == 0 {
            break;
        }
        start = observed.last().map(|last| format!("{last}\0"));
    }
    assert_eq!(observed, (0..7).map(|n| format!("/p/{n}")).collect::<Vec<_>>());
    let inclusive = List { prefix: "/p/", start: Some("/p/5"), ..List::default() };
    assert_eq!(list(&store, inclusive).await, ["/p/5=v", "/p/6=v"]);
}

pub async fn a_prefix_is_a_string_prefix_not_a_folder(store: Any) {
    for key in ["/pods", "/pods/a", "/podsecurity/b", "/pod/c"] {
        put(&store, key, "v").await;
    }
    let found = list(&store, List { prefix: "/pods", ..List::default() }).await;
    assert_eq!(found, ["/pods=v", "/pods/a=v", "/podsecurity/b=v"]);
}

pub async fn paging_at_a_revision_ignores_later_writes(store: Any) {
    let mut last = Revision(0);
    for n in 0..5 {
        last = put(&store, &format!("/p/{n}"), "old").await;
    }
    put(&store, "/p/3", "new").await;
    delete(&store, "/p/4").await;
    put(&store, "/p/5", "new").await;
    let query = List { prefix: "/p/", start: Some("/p/2"), limit: Some(2), at: Some(last) };
    let listing = store.list(query).await.expect("list");
    assert_eq!(listing.entries.iter().map(|e| text(e)).collect::<Vec<_>>(), ["/p/2=old", "/p/3=old"]);
    assert_eq!((listing.revision, listing.remaining), (last, 1));
}
