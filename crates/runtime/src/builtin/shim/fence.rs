//! The fence of a unique pod, as its shim keeps it: stops all containers when the time in the fence file is up.
//!
//! The file is read again when the time is up that it held last, and before every start. Once containers were asked to stop they are
//! killed soon after, whatever the file says by then: a pod is stopped whole or not at all.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::sys::{
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};

use crate::fence::{FenceLimit, GRACE, boot_time};

/// How often what does not end is killed again: a process that forks may have got away.
const KILL_AGAIN: Duration = Duration::from_millis(100);

pub struct Fence {
    file: PathBuf,
    timer: TimerFd,
    /// When containers that were asked to stop are killed.
    kill_at: Option<Duration>,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceStep {
    Nothing,
    /// Give up what is being started, and ask all containers to stop.
    Stop,
    Kill,
}

impl Fence {
    pub fn new(file: PathBuf) -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        Ok(Self { file, timer: TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?, kill_at: None })
    }

    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Whether a container may be started now.
    pub fn permits_start(&self) -> bool {
        self.kill_at.is_none() && self.limit().permits(boot_time())
    }

    fn limit(&self) -> FenceLimit {
        FenceLimit::read(&self.file).unwrap_or(FenceLimit::Until(Duration::ZERO))
    }

    /// Looks at the file and the time. `is_running` tells whether any container runs or starts.
    pub fn evaluate(&mut self, now: Duration, is_running: bool) -> FenceStep {
        let (step, wake_at) = decide(self.limit(), &mut self.kill_at, now, is_running);
        let _ = self.timer.wait(); // it may not have fired
        let set = match wake_at {
            Some(at) => {
                // Zero would disarm it.
                let at = Expiration::OneShot(TimeSpec::from_duration(at.max(Duration::from_nanos(1))));
                self.timer.set(at, TimerSetTimeFlags::TFD_TIMER_ABSTIME)
            }
            None => self.timer.unset(),
        };
        match set {
            Ok(()) => step,
            // Without a timer nobody would stop the pod later.
            Err(_) => FenceStep::Kill,
        }
    }
}

impl AsFd for Fence {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// What is to be done, and when to look again.
fn decide(
    limit: FenceLimit,
    kill_at: &mut Option<Duration>,
    now: Duration,
    is_running: bool,
) -> (FenceStep, Option<Duration>) {
    if !is_running {
        *kill_at = None;
    }
    match (*kill_at, limit) {
        (Some(at), _) if now < at => (FenceStep::Nothing, Some(at)),
        (Some(_), _) => (FenceStep::Kill, Some(now + KILL_AGAIN)),
        (None, FenceLimit::None) => (FenceStep::Nothing, None),
        (None, FenceLimit::Until(until)) if now < until => (FenceStep::Nothing, Some(until)),
        (None, FenceLimit::Until(_)) if !is_running => (FenceStep::Nothing, None),
        (None, FenceLimit::Until(until)) => {
            // A shim that was held up has no more time than one that was not.
            let at = until + GRACE;
            *kill_at = Some(at);
            if now < at { (FenceStep::Stop, Some(at)) } else { (FenceStep::Kill, Some(now + KILL_AGAIN)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_pod_runs_until_its_time_is_up_then_is_asked_to_stop_and_then_killed() {
        let (mut kill_at, until) = (None, FenceLimit::Until(seconds(10)));
        assert_eq!(decide(until, &mut kill_at, seconds(9), true), (FenceStep::Nothing, Some(seconds(10))));
        assert_eq!(decide(until, &mut kill_at, seconds(10), true), (FenceStep::Stop, Some(seconds(10) + GRACE)));
        assert_eq!(decide(until, &mut kill_at, seconds(11), true), (FenceStep::Nothing, Some(seconds(10) + GRACE)));
        let killed = decide(until, &mut kill_at, seconds(12), true);
        assert_eq!(killed, (FenceStep::Kill, Some(seconds(12) + KILL_AGAIN)));
        assert_eq!(decide(until, &mut kill_at, seconds(13), false), (FenceStep::Nothing, None));
        assert_eq!(kill_at, None, "what starts later has its own time");
    }

    #[test]
    fn a_pod_that_was_asked_to_stop_is_killed_although_the_time_was_extended() {
        let mut kill_at = None;
        decide(FenceLimit::Until(seconds(10)), &mut kill_at, seconds(10), true);
        let extended = FenceLimit::Until(seconds(60));
        assert_eq!(decide(extended, &mut kill_at, seconds(12), true).0, FenceStep::Kill);
        assert_eq!(decide(extended, &mut kill_at, seconds(12), false), (FenceStep::Nothing, Some(seconds(60))));
    }

    #[test]
    fn a_shim_that_looks_late_kills_at_once() {
        assert_eq!(decide(FenceLimit::Until(seconds(10)), &mut None, seconds(30), true).0, FenceStep::Kill);
    }

    #[test]
    fn without_a_limit_nothing_ever_stops() {
        assert_eq!(decide(FenceLimit::None, &mut None, seconds(u64::MAX / 2), true), (FenceStep::Nothing, None));
    }

    #[test]
    fn the_timer_fires_when_the_time_is_up() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("fence.json");
        let now = boot_time();
        FenceLimit::Until(now + Duration::from_millis(50)).write(&file).unwrap();
        let mut fence = Fence::new(file.clone()).unwrap();
        assert!(fence.permits_start());
        assert_eq!(fence.evaluate(boot_time().min(now), true), FenceStep::Nothing);
        let mut fds = [nix::poll::PollFd::new(fence.as_fd(), nix::poll::PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut fds, 10_000u16).unwrap(), 1);
        assert!(boot_time() >= now + Duration::from_millis(49), "the file counts in milliseconds, rounded down");
        assert!(!fence.permits_start());
        assert_ne!(fence.evaluate(boot_time(), true), FenceStep::Nothing);
        std::fs::remove_file(file).unwrap();
        assert!(!fence.permits_start(), "what cannot be read permits nothing");
    }
}
