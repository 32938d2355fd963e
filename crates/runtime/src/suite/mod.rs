//! What every runtime must do, as claims to run against it.
//!
//! A claim is a function that takes a [`Bench`] around a runtime. [`runtime_suite!`](crate::runtime_suite) makes a
//! test of each, on a subject of its own; [`run`] goes through groups of them on a shared one, which is right for
//! subjects that are slow to start. So a claim looks at its own pods only, and assumes nothing about others. Programs are
//! run from a static `busybox` that is mounted into each container: the image does not matter, except where images are the point.

mod bench;
pub mod containerd;
mod containers;
pub mod image;
mod limits;
mod logs;
mod pods;
mod processes;
mod sandboxes;
mod security;
mod streams;
mod terminals;

use std::{panic::AssertUnwindSafe, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{FutureExt, StreamExt};

use crate::port::Runtime;
pub use bench::{Bench, sandbox_spec};

/// A runtime under test, and what it stands on. Dropping it must leave nothing behind.
#[async_trait]
pub trait Subject: Send + Sync + 'static {
    fn runtime(&self) -> Arc<dyn Runtime>;

    /// Another instance over the same state, as after a restart of the agent.
    async fn reopen(&self) -> Arc<dyn Runtime>;

    /// An image that is present, whatever is in it.
    fn image(&self) -> String;

    /// Whether it holds what [`image::write`] makes.
    fn has_configured_image(&self) -> bool {
        true
    }

    /// A directory for logs and mounts that containers can be given.
    fn scratch(&self) -> PathBuf;
}

/// Its group, its name and what runs it.
pub type Claim = (&'static str, &'static str, fn(Arc<Bench>) -> Pin<Box<dyn Future<Output = ()>>>);

/// Hands the list of claims to one of the macros below, together with what that macro was given.
#[doc(hidden)]
#[macro_export]
macro_rules! runtime_claims {
    ([$($with:tt)*] $($given:tt)*) => {
        $($with)* ! {
            [$($given)*]
            sandboxes a_sandbox_is_observed_as_it_was_asked_for,
            sandboxes making_it_again_answers_the_same,
            sandboxes a_new_attempt_is_another_sandbox,
            sandboxes sandboxes_have_addresses_of_their_own,
            sandboxes host_network_has_no_address,
            sandboxes removing_it_leaves_nothing_and_may_be_repeated,
            sandboxes removing_it_removes_what_runs_in_it,
            sandboxes observing_one_pod_shows_no_other,
            sandboxes a_reopened_runtime_finds_everything,
            containers a_created_container_does_not_run,
            containers creating_it_again_answers_the_same,
            containers starting_it_again_is_not_an_error,
            containers stopping_and_removing_may_be_repeated,
            containers a_running_container_is_not_removed,
            containers what_ran_once_is_not_started_again,
            containers an_attempt_is_a_fresh_container,
            containers what_is_not_there_is_not_found,
            containers an_absent_image_is_named,
            containers an_end_wakes_the_watcher,
            processes exit_codes_are_true,
            processes death_by_signal_is_128_and_the_signal,
            processes the_stop_signal_is_honoured,
            processes the_stop_signal_of_the_spec_wins,
            processes what_ignores_the_stop_signal_is_killed_after_its_grace,
            processes no_grace_kills_at_once,
            processes a_missing_program_is_a_failed_start,
            processes a_file_that_is_no_program_is_a_failed_start,
            processes the_environment_is_as_asked,
            processes the_working_directory_is_as_asked,
            processes the_image_says_what_the_spec_leaves_open,
            processes a_command_replaces_entrypoint_and_arguments,
            processes arguments_alone_keep_the_entrypoint,
            processes the_first_process_is_number_one_and_known_outside,
            processes children_left_behind_are_killed_with_the_container,
            processes an_exit_while_nobody_watches_is_reported_later,
            pods containers_share_network_and_host_name,
            pods containers_share_loopback,
            pods containers_share_ipc_but_not_the_machines,
            pods containers_see_their_own_processes_only,
            pods a_shared_pid_namespace_shows_all,
            pods the_machines_pid_namespace_can_be_asked_for,
            pods the_machines_network_can_be_asked_for,
            pods the_host_name_is_as_asked,
            pods sysctls_are_set_in_the_pod_only,
            pods mounts_are_shared_and_honour_read_only,
            pods a_single_file_can_be_mounted,
            pods root_filesystems_are_private,
            security users_and_groups_are_as_asked,
            security a_read_only_root_refuses_writes,
            security capabilities_are_the_usual_ones,
            security capabilities_are_added_and_dropped,
            security privileged_has_everything,
            security new_privileges_can_be_refused,
            security system_calls_are_filtered_unless_unconfined,
            security kernel_files_are_masked_and_read_only,
            logs lines_have_the_usual_format,
            logs long_lines_come_in_parts,
            logs a_last_line_without_end_is_kept,
            logs a_reopened_log_goes_on_in_a_new_file,
            logs a_flood_is_kept_whole,
            logs a_full_log_is_set_aside,
            streams exec_answers_output_and_code,
            streams exec_keeps_no_more_than_its_limit,
            streams exec_is_killed_after_its_timeout,
            streams exec_of_a_missing_program_fails,
            streams exec_in_what_does_not_run_is_refused,
            streams exec_has_the_containers_environment_and_user,
            streams a_session_streams_both_ways,
            streams a_session_keeps_the_streams_apart,
            streams a_session_ends_with_the_exit_code,
            streams a_lot_of_output_arrives_whole,
            streams attach_reaches_the_containers_own_streams,
            streams attach_without_input_sees_output,
            streams standard_input_ends_once_the_first_has_left,
            streams a_port_of_the_pod_can_be_reached,
            streams a_port_on_which_nobody_listens_is_refused,
            terminals a_terminal_is_one,
            terminals a_terminal_is_resized,
            terminals a_container_can_have_a_terminal,
            limits memory_and_cpu_limits_are_in_the_cgroup,
            limits the_pods_limits_are_in_its_cgroup,
            limits limits_are_updated_in_place,
            limits want_of_memory_is_distinguished_from_other_kills,
            limits forks_stop_at_the_pids_limit,
            limits stats_report_what_is_used,
            limits no_cgroup_is_left_behind,
            limits the_oom_score_is_as_asked,
        }
    };
}

/// Makes a test of every claim for one runtime, given an async function from nothing to a [`Subject`].
#[macro_export]
macro_rules! runtime_suite {
    ($make:expr) => {
        $crate::runtime_claims! { [$crate::runtime_claim_tests] $make }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! runtime_claim_tests {
    ([$make:expr] $($group:ident $name:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::suite::run_one(stringify!($name), $make).await;
            }
        )*
    };
}

macro_rules! claim_table {
    ([] $($group:ident $name:ident,)*) => {
        /// Every claim.
        pub const CLAIMS: &[Claim] = &[$((stringify!($group), stringify!($name), |b| Box::pin($group::$name(b)))),*];
    };
}

crate::runtime_claims! { [claim_table] }

/// Longer than any claim may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs one claim by name on a subject of its own.
pub async fn run_one<S: Subject>(name: &str, make: impl AsyncFnOnce() -> S) {
    let claim = CLAIMS.iter().find(|(_, n, _)| *n == name).unwrap_or_else(|| panic!("no claim is called {name}"));
    if let Err(why) = check(Arc::new(make().await), claim).await {
        panic!("{name}: {why}");
    }
}

/// Runs all claims of these groups on one subject, some at a time, and tells of all that do not hold.
pub async fn run<S: Subject>(subject: S, groups: &[&str]) {
    let subject: Arc<dyn Subject> = Arc::new(subject);
    let claims = CLAIMS.iter().filter(|(group, _, _)| groups.contains(group));
    let broken: Vec<String> = futures::stream::iter(claims)
        .map(|claim| {
            let subject = subject.clone();
            async move { check(subject, claim).await.err().map(|why| format!("{}: {why}", claim.1)) }
        })
        .buffer_unordered(4)
        .filter_map(std::future::ready)
        .collect()
        .await;
    assert!(broken.is_empty(), "these do not hold:\n{}", broken.join("\n"));
}

async fn check(subject: Arc<dyn Subject>, claim: &Claim) -> Result<(), String> {
    let bench = Arc::new(Bench::new(subject, claim.1));
    let held = tokio::time::timeout(PATIENCE, AssertUnwindSafe(claim.2(bench.clone())).catch_unwind()).await;
    let cleared = tokio::time::timeout(PATIENCE, bench.clear()).await;
    match held {
        Ok(Ok(())) => {}
        Ok(Err(panic)) => return Err(words(panic.as_ref())),
        Err(_) => return Err(format!("did not end within {PATIENCE:?}")),
    }
    cleared.map_err(|_| "its pods could not be removed in time".to_owned())
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|t| (*t).to_owned())).unwrap_or_else(|| "panicked".to_owned())
}
