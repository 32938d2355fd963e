//! The claims that every backend must meet.

use std::sync::Arc;

use mainstay_store::{Etcd, List, Store, suite::CLAIMS};

use crate::{
    claims, client, delete,
    server::{Server, Version},
    write,
};

claims! { every_claim_holds }

/// One server for all of them: claims want an empty store, not a young one.
async fn every_claim_holds(version: Version) {
    let server = Server::start(version);
    for (name, claim) in CLAIMS {
        eprintln!("claim: {name}");
        let store = client(&server).await;
        empty(&store).await;
        claim(Arc::new(store)).await;
    }
}

async fn empty(store: &Etcd) {
    let listing = store.list(List::default()).await.expect("list");
    for some in listing.entries.chunks(100) {
        write(store, some.iter().map(|entry| delete(&entry.key)).collect()).await;
    }
}
