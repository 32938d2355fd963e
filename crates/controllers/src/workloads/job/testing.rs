//! Jobs and pods for tests.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::JobStatus;

use super::{
    policy::FailureAction,
    view::{Desired, Life, View, World},
};

pub fn at_second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// Two at once, four in all.
pub fn desired() -> Desired {
    Desired {
        name: "j".into(),
        uid: "job".into(),
        parallelism: 2,
        completions: Some(4),
        indexed: false,
        backoff_limit: 6,
        backoff_limit_per_index: None,
        max_failed_indexes: None,
        success: None,
        replace_ended_only: false,
        deadline: None,
        suspended: false,
        leaving: false,
        restarts_count: false,
    }
}

pub fn indexed() -> Desired {
    Desired { indexed: true, ..desired() }
}

pub fn world(want: Desired, pods: Vec<View>) -> World {
    let status = JobStatus::default();
    World {
        want,
        version: "1".into(),
        status,
        pods,
        claims: vec![],
        foreign: vec![],
        used_numbers: Default::default(),
        predecessors: Default::default(),
    }
}

/// Its name is its uid, and a number at the end its index.
pub fn running(name: &str) -> View {
    View {
        name: name.into(),
        uid: name.into(),
        version: "7".into(),
        index: name.rsplit('-').next().and_then(|index| index.parse().ok()),
        index_failures: 0,
        index_ignored: 0,
        life: Life::Running,
        leaving: false,
        tracked: true,
        placed: true,
        ready: true,
        restarts: 0,
        created: at_second(0),
        finished: at_second(0),
        ruling: FailureAction::Count,
    }
}

pub fn succeeded(name: &str, finished: i64) -> View {
    View { life: Life::Succeeded, ready: false, finished: at_second(finished), ..running(name) }
}

pub fn failed(name: &str, finished: i64) -> View {
    View { life: Life::Failed, ready: false, finished: at_second(finished), ..running(name) }
}

pub fn leaving(name: &str) -> View {
    View { leaving: true, ..running(name) }
}

pub fn released(pod: View) -> View {
    View { tracked: false, ..pod }
}
