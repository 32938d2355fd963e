//! CPU and memory usage of the machine, from `/proc`.

use super::Usage;

/// Ticks of `/proc/stat` per second, the same on every Linux machine.
const TICKS: u64 = 100;

pub fn usage() -> Usage {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let (total, available, free) = memory(&read("/proc/meminfo"));
    Usage {
        cpu_nanos: busy(&read("/proc/stat")) * (1_000_000_000 / TICKS),
        nano_cores: None,
        working_set: total.saturating_sub(available),
        memory: total.saturating_sub(free),
        rss: total.saturating_sub(available),
        available: Some(available),
        rootfs: 0,
    }
}

/// Ticks in which any cpu did something.
fn busy(stat: &str) -> u64 {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    let ticks: Vec<u64> = all.unwrap_or_default().split_whitespace().map(|n| n.parse().unwrap_or(0)).collect();
    // user, nice, system, (idle, iowait,) irq, softirq, steal
    [0, 1, 2, 5, 6, 7].iter().filter_map(|index| ticks.get(*index)).sum()
}

/// Total, available and free memory in bytes.
fn memory(info: &str) -> (u64, u64, u64) {
    let of = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
    };
    (of("MemTotal"), of("MemAvailable"), of("MemFree"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        assert_eq!(busy("cpu  1 2 3 400 50 6 7 8 0 0\ncpu0 1 2 3 4\n"), 27);
        assert_eq!(memory("MemTotal:  100 kB\nMemFree: 10 kB\nMemAvailable:   60 kB\n"), (102_400, 61_440, 10_240));
        let now = usage();
        assert!(now.cpu_nanos > 0 && now.working_set > 0);
    }
}
