//! What every backend must do, as claims to run against it.
//!
//! A claim is a function that takes an empty store. [`store_suite!`](crate::store_suite) turns all of them
//! into tests of one backend; [`run`] goes through them in one test. Claims assume nothing of the first
//! revision, only of the order of those they cause. Where a choice was open, etcd's behaviour decides: one revision per transaction, none for a
//! transaction that changes nothing, reads at the compacted revision allowed.

mod concurrency;
mod history;
mod reads;
mod tools;
mod watches;
mod writes;

use std::{pin::Pin, sync::Arc};

use crate::Store;

/// A claim's name and what runs it.
pub type Claim = (&'static str, fn(Arc<dyn Store>) -> Pin<Box<dyn Future<Output = ()> + Send>>);

/// Hands the list of claims to one of the macros below, together with what that macro was given.
#[doc(hidden)]
#[macro_export]
macro_rules! store_claims {
    ([$($with:tt)*] $($given:tt)*) => {
        $($with)* ! {
            [$($given)*]
            reads get_of_an_absent_key_is_none,
            reads put_then_get_returns_it,
            reads list_returns_keys_below_the_prefix_in_order,
            reads list_of_nothing_is_empty_and_has_a_revision,
            reads limit_cuts_and_counts_what_remains,
            reads start_continues_where_the_last_page_ended,
            reads a_prefix_is_a_string_prefix_not_a_folder,
            reads paging_at_a_revision_ignores_later_writes,
            writes each_transaction_takes_the_next_revision,
            writes all_operations_of_a_transaction_share_a_revision,
            writes a_failed_compare_changes_nothing_and_returns_what_is,
            writes absent_is_refused_when_present,
            writes modified_at_is_refused_when_absent,
            writes an_update_keeps_created_and_moves_modified,
            writes delete_removes,
            writes deleting_nothing_takes_no_revision,
            writes a_transaction_without_operations_takes_no_revision,
            writes recreating_gives_a_new_created_revision,
            writes a_compare_may_name_a_key_that_is_not_written,
            writes values_may_be_empty_or_binary,
            writes the_same_key_twice_in_a_transaction_is_refused,
            writes an_oversized_transaction_is_refused,
            history list_at_a_past_revision_sees_the_past,
            history list_at_a_past_revision_sees_deleted_keys,
            history list_in_the_future_is_refused,
            history list_before_the_compacted_revision_is_refused,
            history list_at_the_compacted_revision_works,
            history compaction_keeps_what_is_current,
            history compacting_twice_at_one_revision_is_refused,
            history compacting_the_future_is_refused,
            history a_watch_from_before_the_compacted_revision_is_refused,
            history a_watch_from_the_compacted_revision_works,
            watches a_watch_sees_changes_after_its_revision_in_order,
            watches a_watch_sees_nothing_outside_its_prefix,
            watches a_watch_with_an_odd_prefix_sees_what_starts_with_it,
            watches changes_carry_previous_values,
            watches a_watch_resumes_at_every_revision,
            watches a_transaction_arrives_in_one_notice,
            watches a_transaction_is_cut_to_the_prefix,
            watches a_watch_of_the_future_is_refused,
            watches progress_is_given_when_asked_for,
            watches progress_comes_after_the_changes_it_covers,
            watches many_watches_of_one_prefix_all_see_a_change,
            watches a_dropped_next_loses_nothing,
            watches a_slow_watch_misses_nothing,
            concurrency of_racing_creators_one_wins,
            concurrency increments_are_not_lost,
            concurrency a_watcher_sees_each_write_of_concurrent_writers_once_in_order,
            concurrency list_then_watch_has_no_gap,
        }
    };
}

/// Makes a test of every claim for one backend, given an async function from nothing to an empty store.
#[macro_export]
macro_rules! store_suite {
    ($make:expr) => {
        $crate::store_claims! { [$crate::store_claim_tests] $make }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! store_claim_tests {
    ([$make:expr] $($module:ident $name:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::suite::run_one(stringify!($name), $make).await;
            }
        )*
    };
}

macro_rules! claim_table {
    ([] $($module:ident $name:ident,)*) => {
        /// Every claim.
        pub const CLAIMS: &[Claim] = &[$((stringify!($name), |store| Box::pin($module::$name(store)))),*];
    };
}

crate::store_claims! { [claim_table] }

/// Runs one claim by name on a fresh store.
pub async fn run_one<S: Store>(name: &str, make: impl AsyncFnOnce() -> S) {
    let claim = CLAIMS.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no claim is called {name}"));
    claim.1(Arc::new(make().await)).await;
}

/// Runs every claim, each on a fresh store.
pub async fn run<S: Store>(make: impl AsyncFn() -> S) {
    for (name, claim) in CLAIMS {
        tracing::info!(name, "claim");
        claim(Arc::new(make().await)).await;
    }
}
