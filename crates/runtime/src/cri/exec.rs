//! Runs a command in a container and returns its output (`ExecSync`).

use std::time::Duration;

use super::{
    Inner,
    call::{CallContext, with_timeout},
    container::begins_processes,
    proto,
};
use crate::{error::RuntimeError, observed::ContainerId, port::Result, session::ExecOutput};

/// What a runtime may take to notice that time is up.
const LENIENCE: Duration = Duration::from_secs(5);

impl Inner {
    pub(super) async fn exec(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
        limit: usize,
    ) -> Result<ExecOutput> {
        // CRI counts whole seconds, and none of them means for ever.
        let seconds =
            timeout.map_or(0, |timeout| timeout.as_secs().saturating_add(u64::from(timeout.subsec_nanos() > 0)).max(1));
        let request = proto::ExecSyncRequest {
            container_id: id.0.clone(),
            cmd: command.to_vec(),
            timeout: seconds.try_into().unwrap_or(i64::MAX),
        };
        let context = CallContext { doing: "run a command", what: "container", id: &id.0 };
        // The runtime ends the command, but may wait for ever for what the command has begun and left behind.
        let patience = timeout.map_or(Duration::MAX, |timeout| timeout.saturating_add(LENIENCE));
        match with_timeout(patience, context, self.client.runtime().exec_sync(request)).await {
            Ok(mut done) => {
                done.stdout.truncate(limit);
                done.stderr.truncate(limit);
                Ok(ExecOutput { exit_code: done.exit_code, stdout: done.stdout, stderr: done.stderr })
            }
            Err(RuntimeError::Timeout { .. }) => {
                Err(RuntimeError::Timeout { doing: format!("command {command:?}"), after: timeout.unwrap_or_default() })
            }
            Err(RuntimeError::Failed { why, .. }) if begins_processes(&why) => Err(RuntimeError::Start { why }),
            Err(error) => Err(error),
        }
    }
}
