//! Decides whether the controllers of a Kluster may act while none of its machines is heard of.

use jiff::{SignedDuration, Timestamp};
use mainstay_api::cloud::kluster::KlusterPhase;

/// When even the newest heartbeat is older, all machines are cut off together.
pub const SILENCE: SignedDuration = SignedDuration::from_secs(20);
/// How often heartbeats are looked at, at least; a third more at most, by chance.
pub const POLL: SignedDuration = SignedDuration::from_secs(10);
pub const ANNOTATION: &str = "kubernikus.cloud.sap/hammertime";

#[derive(Clone, Debug, PartialEq)]
pub struct HammertimeWorld {
    pub phase: KlusterPhase,
    /// The Kluster's annotation, if it has one.
    pub annotation: Option<String>,
    /// The sum of its pools' sizes.
    pub wanted_nodes: i64,
    /// The heartbeat of every Node; nothing if they cannot be read.
    pub heartbeats: Option<Vec<Timestamp>>,
    /// Present replicas of the controllers' Deployment; nothing if there is none.
    pub replicas: Option<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    pub replicas: i32,
    pub why: ScaleReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleReason {
    AllNodesSilent,
    NodesHeard,
    SwitchedOff,
}

/// What to do; nothing if it is so already, or if it is none of hammertime's business.
pub fn plan(world: &HammertimeWorld, now: Timestamp) -> Option<Scale> {
    let present = world.replicas?;
    let wanted = match world.phase {
        KlusterPhase::Pending | KlusterPhase::Creating => return None,
        KlusterPhase::Upgrading | KlusterPhase::Terminating => Scale { replicas: 1, why: ScaleReason::SwitchedOff },
        KlusterPhase::Running => judge(world, now)?,
    };
    (wanted.replicas != present.min(1)).then_some(wanted)
}

fn judge(world: &HammertimeWorld, now: Timestamp) -> Option<Scale> {
    let off = Scale { replicas: 1, why: ScaleReason::SwitchedOff };
    if world.annotation.as_deref().is_some_and(is_disabled) || world.wanted_nodes < 2 {
        return Some(off);
    }
    // Whether the machines are silent is not known: what is so stays so.
    let heartbeats = world.heartbeats.as_ref()?;
    if heartbeats.len() < 2 {
        return Some(off);
    }
    let newest = heartbeats.iter().max()?;
    let is_silent = now.duration_since(*newest) > SILENCE;
    Some(if is_silent {
        Scale { replicas: 0, why: ScaleReason::AllNodesSilent }
    } else {
        Scale { replicas: 1, why: ScaleReason::NodesHeard }
    })
}

/// Whether the value of an annotation switches something off.
pub fn is_disabled(value: &str) -> bool {
    matches!(
        value.trim().to_ascii_lowercase().as_str(),
        "false" | "off" | "disabled" | "disable" | "no" | "n" | "f" | "0"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time_at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn world(replicas: i32, heartbeats: &[i64]) -> HammertimeWorld {
        HammertimeWorld {
            phase: KlusterPhase::Running,
            annotation: None,
            wanted_nodes: 2,
            heartbeats: Some(heartbeats.iter().map(|seconds| time_at(*seconds)).collect()),
            replicas: Some(replicas),
        }
    }

    fn replicas(world: &HammertimeWorld, now: i64) -> Option<i32> {
        plan(world, time_at(now)).map(|scale| scale.replicas)
    }

    #[test]
    fn controllers_stop_when_all_nodes_are_silent_and_go_on_when_one_is_heard() {
        assert_eq!(replicas(&world(1, &[0, -100]), 20), None);
        assert_eq!(replicas(&world(1, &[0, -100]), 21), Some(0));
        assert_eq!(replicas(&world(0, &[0, -100]), 21), None);
        assert_eq!(replicas(&world(0, &[25, -100]), 30), Some(1));
        assert_eq!(replicas(&world(1, &[25, -100]), 30), None);
    }

    #[test]
    fn every_way_of_switching_it_off_lets_the_controllers_run() {
        let silent = || world(0, &[-100, -100]);
        for (name, off) in [
            ("one node", world(0, &[-100])),
            ("no node", world(0, &[])),
            ("small", HammertimeWorld { wanted_nodes: 1, ..silent() }),
            ("annotation", HammertimeWorld { annotation: Some("off".to_owned()), ..silent() }),
            ("terminating", HammertimeWorld { phase: KlusterPhase::Terminating, ..silent() }),
            ("upgrading", HammertimeWorld { phase: KlusterPhase::Upgrading, ..silent() }),
        ] {
            assert_eq!(replicas(&off, 0), Some(1), "{name}");
            assert_eq!(replicas(&HammertimeWorld { replicas: Some(1), ..off }, 0), None, "{name}");
        }
        for phase in [KlusterPhase::Pending, KlusterPhase::Creating] {
            assert_eq!(replicas(&HammertimeWorld { phase, ..silent() }, 0), None);
        }
    }

    #[test]
    fn nothing_changes_while_nodes_cannot_be_read_or_there_is_nothing_to_scale() {
        for present in [0, 1] {
            let unknown = HammertimeWorld { heartbeats: None, ..world(present, &[]) };
            assert_eq!(replicas(&unknown, 0), None);
        }
        let none = HammertimeWorld { replicas: None, ..world(1, &[-100, -100]) };
        assert_eq!(replicas(&none, 0), None);
    }

    #[test]
    fn words_that_switch_off() {
        for (word, expected) in [
            ("false", true),
            ("OFF", true),
            ("disabled", true),
            ("no", true),
            ("", false),
            ("true", false),
            ("on", false),
        ] {
            assert_eq!(is_disabled(word), expected, "{word}");
        }
    }
}
