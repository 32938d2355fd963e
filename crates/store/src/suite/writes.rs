use super::tools::*;
use crate::{Expect, Op, Outcome, Revision, StoreError, TXN_BYTES, Txn};

pub async fn each_transaction_takes_the_next_revision(store: Any) {
    let before = store.revision().await.expect("revision");
    for n in 1..=3 {
        assert_eq!(put(&store, "/a", "v").await, Revision(before.0 + n));
    }
    assert_eq!(store.revision().await.expect("revision"), Revision(before.0 + 3));
}

pub async fn all_operations_of_a_transaction_share_a_revision(store: Any) {
    put(&store, "/gone", "v").await;
    let before = store.revision().await.expect("revision");
    let written = write(&store, vec![put_op("/a", "1"), delete_op("/gone"), put_op("/b", "2")]).await;
    assert_eq!(written, Revision(before.0 + 1));
    for key in ["/a", "/b"] {
        assert_eq!(get(&store, key).await.expect("the key").modified, written);
    }
    assert!(get(&store, "/gone").await.is_none());
}

pub async fn a_failed_compare_changes_nothing_and_returns_what_is(store: Any) {
    let first = put(&store, "/a", "1").await;
    let second = put(&store, "/a", "2").await;
    let compares = vec![
        compare("/b", Expect::Absent),
        compare("/a", Expect::ModifiedAt(first)),
        compare("/a", Expect::ModifiedAt(second)),
    ];
    let txn = Txn { compares, ops: vec![put_op("/a", "3"), put_op("/c", "3")] };
    let Outcome::Conflict { current } = store.commit(txn).await.expect("commit") else { panic!("expected a conflict") };
    let current: Vec<_> = current.iter().map(|e| e.as_ref().map(|e| text(e))).collect();
    assert_eq!(current, [None, Some("/a=2".to_owned()), Some("/a=2".to_owned())]);
    assert_eq!(text(&get(&store, "/a").await.expect("the key")), "/a=2");
    assert!(get(&store, "/c").await.is_none());
    assert_eq!(store.revision().await.expect("revision"), second);
}

pub async fn absent_is_refused_when_present(store: Any) {
    let create = || Txn { compares: vec![compare("/a", Expect::Absent)], ops: vec![put_op("/a", "new")] };
    assert!(matches!(store.commit(create()).await, Ok(Outcome::Committed(_))));
    assert!(matches!(store.commit(create()).await, Ok(Outcome::Conflict { .. })));
    delete(&store, "/a").await;
    assert!(matches!(store.commit(create()).await, Ok(Outcome::Committed(_))));
}

pub async fn modified_at_is_refused_when_absent(store: Any) {
    let written = put(&store, "/a", "1").await;
    delete(&store, "/a").await;
    let txn = Txn { compares: vec![compare("/a", Expect::ModifiedAt(written))], ops: vec![put_op("/a", "2")] };
    let Outcome::Conflict { current } = store.commit(txn).await.expect("commit") else { panic!("expected a conflict") };
    assert!(matches!(&current[..], [None]));
}

pub async fn an_update_keeps_created_and_moves_modified(store: Any) {
    let first = put(&store, "/a", "1").await;
    let txn = Txn { compares: vec![compare("/a", Expect::ModifiedAt(first))], ops: vec![put_op("/a", "2")] };
    let Outcome::Committed(second) = store.commit(txn).await.expect("commit") else { panic!("expected a commit") };
    let entry = get(&store, "/a").await.expect("the key");
    assert_eq!((entry.created, entry.modified, text(&entry)), (first, second, "/a=2".to_owned()));
}

pub async fn delete_removes(store: Any) {
    let written = put(&store, "/a", "1").await;
    let deleted = delete(&store, "/a").await;
    assert_eq!(deleted, Revision(written.0 + 1));
    assert!(get(&store, "/a").await.is_none());
    assert_eq!(store.revision().await.expect("revision"), deleted);
}

pub async fn deleting_nothing_takes_no_revision(store: Any) {
    let written = put(&store, "/a", "1").await;
    assert_eq!(write(&store, vec![delete_op("/b"), delete_op("/c")]).await, written);
    assert_eq!(store.revision().await.expect("revision"), written);
}

pub async fn a_transaction_without_operations_takes_no_revision(store: Any) {
    let written = put(&store, "/a", "1").await;
    let txn = Txn { compares: vec![compare("/a", Expect::ModifiedAt(written))], ops: vec![] };
    assert!(matches!(store.commit(txn).await, Ok(Outcome::Committed(at)) if at == written));
    assert_eq!(store.revision().await.expect("revision"), written);
}

pub async fn recreating_gives_a_new_created_revision(store: Any) {
    put(&store, "/a", "1").await;
    delete(&store, "/a").await;
    let again = put(&store, "/a", "1").await;
    let entry = get(&store, "/a").await.expect("the key");
    assert_eq!((entry.created, entry.modified), (again, again));
}

pub async fn a_compare_may_name_a_key_that_is_not_written(store: Any) {
    let guard = put(&store, "/guard", "1").await;
    let txn = |at| Txn { compares: vec![compare("/guard", Expect::ModifiedAt(at))], ops: vec![put_op("/a", "1")] };
    assert!(matches!(store.commit(txn(Revision(guard.0 + 1))).await, Ok(Outcome::Conflict { .. })));
    assert!(matches!(store.commit(txn(guard)).await, Ok(Outcome::Committed(_))));
}

pub async fn values_may_be_empty_or_binary(store: Any) {
    let binary: Vec<u8> = (0..=255).collect();
    let ops = vec![put_op("/empty", ""), Op::Put { key: "/binary".into(), value: binary.clone().into() }];
    write(&store, ops).await;
    assert_eq!(get(&store, "/empty").await.expect("the key").value.len(), 0);
    assert_eq!(get(&store, "/binary").await.expect("the key").value, binary);
}

pub async fn the_same_key_twice_in_a_transaction_is_refused(store: Any) {
    let before = store.revision().await.expect("revision");
    let txn = Txn { compares: vec![], ops: vec![put_op("/a", "1"), put_op("/a", "2")] };
    assert!(store.commit(txn).await.is_err());
    assert!(get(&store, "/a").await.is_none());
    assert_eq!(store.revision().await.expect("revision"), before);
}

pub async fn an_oversized_transaction_is_refused(store: Any) {
    let value = vec![7u8; TXN_BYTES + 1];
    let txn = Txn { compares: vec![], ops: vec![Op::Put { key: "/a".into(), value: value.into() }] };
    assert!(matches!(store.commit(txn).await, Err(StoreError::TooLarge { .. })));
    assert!(get(&store, "/a").await.is_none());
    put(&store, "/a", "small").await;
}
