//! The healing ladder and the restart budget: which cure, and how many at once.

use k8s_openapi::api::core::v1::Pod;
use mainstay_runtime::PodUid;

pub struct Healer {}

/// Why a container has to be started again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It ended by itself with this code.
    Crashed {
        exit_code: i32,
    },
    OutOfMemory,
    /// Its startup or liveness probe failed.
    Unhealthy {
        why: String,
    },
}

/// What is to be done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rung {
    /// Start the container again.
    Restart,
    /// Give up this incarnation: new sandbox, all containers anew.
    Recreate { why: String },
    /// The pod is deleted so that its owner makes another elsewhere.
    Move { why: String },
}

/// Whether an unhealthy container may be killed now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leave {
    Granted,
    /// Too many of its set are being restarted; it goes on running, degraded.
    Kept {
        why: String,
    },
}

impl Healer {
    /// A container failed; the answer is recorded, so each failure is told once.
    pub async fn failed(&self, _pod: &Pod, _container: &str, _attempt: u32, _cause: &Cause) -> Rung {
        todo!()
    }

    /// Asks the budget of the pod's set for leave to kill an unhealthy container. Held until `healthy` or
    /// until a time has passed.
    pub async fn may_kill(&self, _pod: &Pod, _container: &str, _attempt: u32) -> Leave {
        todo!()
    }

    /// All containers of the pod are ready.
    pub async fn healthy(&self, _pod: &Pod) {
        todo!()
    }

    pub fn forget(&self, _pod: &PodUid) {
        todo!()
    }
}
