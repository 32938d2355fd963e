//! A scope for background tasks: whoever owns it ends all of them together.

use std::future::Future;

use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Tasks run until they are done or the scope is closed; none outlives it.
#[derive(Clone, Debug, Default)]
pub struct TaskScope {
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl TaskScope {
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let closing = self.closing.clone();
        self.tasks.spawn(async move {
            closing.run_until_cancelled(task).await;
        });
    }

    /// Cancels what still runs and waits until it has ended.
    pub async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn closing_ends_a_task_that_would_never_end() {
        let (alive, mut ended) = tokio::sync::mpsc::channel::<()>(1);
        let scope = TaskScope::default();
        scope.spawn(async move {
            let _alive = alive;
            std::future::pending().await
        });
        scope.close().await;
        assert_eq!(ended.recv().await, None);
    }
}
