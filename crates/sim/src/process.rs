//! Memory and CPU of a process, from `/proc`.

use std::{fs, time::Duration};

use anyhow::Context;

/// Clock ticks a second, as Linux tells them to programs.
const TICKS: f64 = 100.0;

#[derive(Clone, Copy, Debug)]
pub struct Process {
    pub id: u32,
}

impl Process {
    pub fn current() -> Self {
        Self { id: std::process::id() }
    }

    /// Resident memory, now and at its highest, in megabytes.
    pub fn memory(self) -> anyhow::Result<(f64, f64)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id)).context("read /proc/PID/status")?;
        let megabytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().trim_end_matches("kB").trim().parse::<f64>().ok().map(|kb| kb / 1024.0)
        };
        Ok((megabytes("VmRSS:").context("no VmRSS")?, megabytes("VmHWM:").context("no VmHWM")?))
    }

    /// CPU time used so far.
    pub fn cpu(self) -> anyhow::Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id)).context("read /proc/PID/stat")?;
        let behind_name = stat.rsplit_once(')').context("odd /proc/PID/stat")?.1;
        let mut fields = behind_name.split_whitespace().skip(11);
        let mut ticks = || fields.next().and_then(|text| text.parse::<f64>().ok()).context("odd /proc/PID/stat");
        Ok(Duration::from_secs_f64((ticks()? + ticks()?) / TICKS))
    }

    /// Percent of one core over the given time from now.
    pub async fn busy(self, time: Duration) -> anyhow::Result<f64> {
        let before = self.cpu()?;
        tokio::time::sleep(time).await;
        let used = self.cpu()?.saturating_sub(before);
        Ok(100.0 * used.as_secs_f64() / time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_process_has_memory_and_uses_cpu() {
        let own = Process::current();
        let (now, highest) = own.memory().unwrap();
        assert!(now > 0.5 && highest >= now * 0.9, "{now} {highest}");
        let before = own.cpu().unwrap();
        let mut sum = 0u64;
        while own.cpu().unwrap() < before + Duration::from_millis(20) {
            sum = sum.wrapping_add(std::hint::black_box(1));
        }
        assert!(sum > 0);
    }
}
