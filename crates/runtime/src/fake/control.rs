//! The test's side of the fake. Containers are named by their name in the pod (the newest one, running
//! before others), as `pod/name`, or by id; a name that fits none is a mistake in the test and panics.

use std::{io::Write, sync::Arc};

use crate::{
    RuntimeError,
    fake::{Call, ExecResult, Fake, FakeImages, RecordedCall, ended},
    observed::{ContainerId, ContainerState, ContainerStats, ContainerStatus, SandboxStatus},
    spec::{ContainerSpec, Resources, SandboxSpec},
};

impl Fake {
    /// Its process ends with this code; above 128, by a signal.
    pub fn exit(&self, container: &str, code: i32) {
        self.end(container, code, false);
    }

    /// The kernel kills it for want of memory.
    pub fn oom(&self, container: &str) {
        self.end(container, 137, true);
    }

    fn end(&self, container: &str, code: i32, oom: bool) {
        self.change(|state, now| {
            let c = state.named(container).unwrap_or_else(|| panic!("no container {container}"));
            assert!(c.status.state.is_running(), "{container} does not run: {:?}", c.status.state);
            c.status.state = ended(&c.status.state, now, code, oom);
            c.status.pid = None;
            ((), Some(c.status.pod.uid.clone()))
        });
    }

    /// It ends on KILL only.
    pub fn ignore_stop_signal(&self, name: &str) {
        self.state.lock().stubborn.insert(name.to_owned());
    }

    /// Gone behind everyone's back, with all that is in it.
    pub fn lose_pod(&self, pod: &str) {
        self.change(|state, _| {
            let whose = state.sandboxes.values().find(|s| s.spec.pod.name == pod).map(|s| s.spec.pod.uid.clone());
            state.containers.retain(|_, c| c.status.pod.name != pod);
            state.sandboxes.retain(|_, s| s.spec.pod.name != pod);
            ((), whose)
        });
    }

    /// Gone behind everyone's back.
    pub fn lose_container(&self, container: &str) {
        self.change(|state, _| {
            let status = state.named(container).unwrap_or_else(|| panic!("no container {container}")).status.clone();
            state.containers.remove(&status.id);
            ((), Some(status.pod.uid))
        });
    }

    /// Its sandboxes are no longer ready, and what ran in them has ended.
    pub fn break_sandbox(&self, pod: &str) {
        self.change(|state, now| {
            let mut whose = None;
            for s in state.sandboxes.values_mut().filter(|s| s.spec.pod.name == pod) {
                s.status.ready = false;
                whose = Some(s.spec.pod.uid.clone());
            }
            for c in state.containers.values_mut().filter(|c| c.status.pod.name == pod) {
                if c.status.state.is_running() {
                    c.status.state = ended(&c.status.state, now, 137, false);
                }
            }
            ((), whose)
        });
    }

    pub fn set_state(&self, container: &str, to: ContainerState) {
        self.change(|state, _| {
            let c = state.named(container).unwrap_or_else(|| panic!("no container {container}"));
            c.status.state = to;
            ((), Some(c.status.pod.uid.clone()))
        });
    }

    /// The next call of this kind fails so; several are used up in order.
    pub fn fail_next(&self, call: Call, error: RuntimeError) {
        self.state.lock().failures.entry(call).or_default().push_back(error);
    }

    /// The next call of this kind panics, as a fault in the caller's own code would.
    pub fn panic_next(&self, call: Call) {
        self.state.lock().panicking.insert(call);
    }

    /// Calls of this kind do not return until [`Fake::release`].
    pub fn hang(&self, call: Call) {
        self.state.lock().hanging.insert(call);
    }

    pub fn release(&self, call: Call) {
        self.state.lock().hanging.remove(&call);
        self.changed.notify_waiters();
    }

    /// Every call fails as if the runtime were gone.
    pub fn unreachable(&self, unreachable: bool) {
        self.state.lock().unreachable = unreachable;
    }

    /// What execs do, given the container's name and the command. Stock: end at once with 0.
    pub fn on_exec(&self, f: impl Fn(&str, &[String]) -> Result<ExecResult, RuntimeError> + Send + Sync + 'static) {
        self.state.lock().on_exec = Some(Arc::new(f));
    }

    /// Stock: a zero for every running container.
    pub fn set_stats(&self, stats: Vec<ContainerStats>) {
        self.state.lock().stats = Some(stats);
    }

    pub fn image_store(&self) -> &FakeImages {
        &self.images
    }

    /// Appends a line to the container's log file as a runtime would.
    pub fn print(&self, container: &str, line: &str) {
        let path = self.container(container).unwrap_or_else(|| panic!("no container {container}")).log_path;
        std::fs::create_dir_all(path.parent().expect("a log file lies in a directory")).expect("make log directory");
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).expect("open log");
        writeln!(file, "{:.9} stdout F {line}", self.now()).expect("write log");
    }

    pub fn count(&self, call: Call) -> usize {
        self.state.lock().made.iter().filter(|made| made.call == call).count()
    }

    /// Everything asked so far, but for observing.
    pub fn recorded_calls(&self) -> Vec<RecordedCall> {
        self.state.lock().made.iter().filter(|made| made.call != Call::Observe).cloned().collect()
    }

    /// Forgets the calls made so far.
    pub fn forget_calls(&self) {
        self.state.lock().made.clear();
    }

    pub fn container(&self, container: &str) -> Option<ContainerStatus> {
        self.state.lock().named(container).map(|c| c.status.clone())
    }

    pub fn container_spec(&self, container: &str) -> Option<ContainerSpec> {
        self.state.lock().named(container).map(|c| c.spec.clone())
    }

    /// Its limits as last updated.
    pub fn container_resources(&self, container: &str) -> Option<Resources> {
        self.state.lock().named(container).map(|c| c.resources.clone())
    }

    /// The pod's limits as last updated.
    pub fn sandbox_resources(&self, pod: &str) -> Option<Resources> {
        self.state.lock().sandboxes.values().find(|s| s.spec.pod.name == pod).map(|s| s.resources.clone())
    }

    pub fn sandbox(&self, pod: &str) -> Option<(SandboxSpec, SandboxStatus)> {
        let state = self.state.lock();
        let of_pod = state.sandboxes.values().filter(|s| s.spec.pod.name == pod);
        of_pod.max_by_key(|s| s.status.attempt).map(|s| (s.spec.clone(), s.status.clone()))
    }

    /// All containers, oldest first.
    pub fn containers(&self) -> Vec<ContainerStatus> {
        self.state.lock().containers.values().map(|c| c.status.clone()).collect()
    }

    /// Returns once the container is there and satisfies the predicate. Bound it from outside.
    pub async fn wait_for(&self, container: &str, is: impl Fn(&ContainerStatus) -> bool) -> ContainerId {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(status) = self.container(container).filter(&is) {
                return status.id;
            }
            changed.await;
        }
    }
}
