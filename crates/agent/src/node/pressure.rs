//! Pressure conditions: whether memory, disk or pids are below their eviction thresholds, and for how long. Pure.

use crate::settings::Eviction;

/// What is left of what, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeMeasurement {
    pub memory: Amount,
    /// Of the filesystem that pods write to.
    pub disk: Amount,
    pub inodes: Amount,
    pub pids: Amount,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Zero if it is not known, or not limited.
    pub capacity: u64,
    pub available: u64,
}

/// Something there is too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    Memory,
    Disk,
    Inodes,
    Pids,
}

/// Less is left than there should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub signal: Signal,
    pub threshold: u64,
    pub available: u64,
}

impl Signal {
    /// As eviction messages name the resource.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        }
    }

    /// The node's condition that tells of it.
    pub fn condition(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk | Self::Inodes => "DiskPressure",
            Self::Pids => "PIDPressure",
        }
    }
}

impl NodeMeasurement {
    /// What is short, the most urgent first.
    pub fn shortages(&self, limits: &Eviction) -> Vec<Shortage> {
        let part = |amount: Amount, percent: u8| amount.capacity / 100 * u64::from(percent.min(100));
        let checks = [
            (Signal::Memory, self.memory, limits.memory_available),
            (Signal::Disk, self.disk, part(self.disk, limits.disk_available)),
            (Signal::Inodes, self.inodes, part(self.inodes, limits.inodes_available)),
            (Signal::Pids, self.pids, part(self.pids, limits.pids_available)),
        ];
        let short = checks.into_iter().filter(|(_, amount, threshold)| {
            amount.capacity > 0 && *threshold < amount.capacity && amount.available < *threshold
        });
        short.map(|(signal, amount, threshold)| Shortage { signal, threshold, available: amount.available }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLENTY: Amount = Amount { capacity: 1000, available: 900 };

    fn measured() -> NodeMeasurement {
        NodeMeasurement {
            memory: Amount { capacity: 8 << 30, available: 4 << 30 },
            disk: PLENTY,
            inodes: PLENTY,
            pids: PLENTY,
        }
    }

    fn signals(measured: NodeMeasurement) -> Vec<Signal> {
        measured.shortages(&Eviction::default()).iter().map(|shortage| shortage.signal).collect()
    }

    #[test]
    fn a_machine_with_room_is_under_no_pressure() {
        assert_eq!(signals(measured()), []);
    }

    #[test]
    fn each_resource_has_its_threshold() {
        let short = |available| Amount { capacity: 1000, available };
        let memory = Amount { available: (100 << 20) - 1, ..measured().memory };
        assert_eq!(signals(NodeMeasurement { memory, ..measured() }), [Signal::Memory]);
        assert_eq!(signals(NodeMeasurement { disk: short(99), ..measured() }), [Signal::Disk]);
        assert_eq!(signals(NodeMeasurement { disk: short(100), ..measured() }), []);
        assert_eq!(signals(NodeMeasurement { inodes: short(49), ..measured() }), [Signal::Inodes]);
        assert_eq!(
            signals(NodeMeasurement { pids: short(49), disk: short(0), ..measured() }),
            [Signal::Disk, Signal::Pids]
        );
    }

    #[test]
    fn what_is_unknown_or_unlimited_is_not_short() {
        let inodes = Amount { capacity: 0, available: 0 }; // btrfs counts none
        assert_eq!(signals(NodeMeasurement { inodes, ..measured() }), []);
        let tiny = Amount { capacity: 64 << 20, available: 60 << 20 };
        assert_eq!(signals(NodeMeasurement { memory: tiny, ..measured() }), [], "a machine smaller than the threshold");
    }
}
