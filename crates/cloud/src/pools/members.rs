//! Which servers are members of a pool, and what each of them is doing.
//!
//! Members are told by their exact names: `kks-KLUSTER-POOL-` and five random characters, or the same without `kks-`, as older ones have it. A server with a
//! longer or shorter name belongs to somebody else, however alike it looks.

const PREFIX: &str = "kks-";
/// Letters and digits that form no words, as Kubernetes takes them for names.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const RANDOM_LENGTH: usize = 5;

/// What a server does, as its states in Nova tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberState {
    Starting,
    Running,
    Stopping,
    /// Nova gave it up.
    Errored,
    /// Shut off, paused, and the like.
    Other,
}

/// A server, as decisions see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerView {
    pub id: String,
    pub name: String,
    pub state: MemberState,
    /// Volumes that are not deleted with it.
    pub volumes: Vec<String>,
    pub addresses: Vec<String>,
}

/// A Node of the kluster, as decisions see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    pub name: String,
    pub uid: String,
    pub unschedulable: bool,
    pub ready: bool,
}

impl MemberState {
    /// From `task_state` (empty if there is none), `vm_state` and `power_state`.
    pub fn from_nova(task_state: &str, vm_state: &str, power_state: i64) -> Self {
        match task_state {
            "spawning" | "scheduling" | "networking" | "block_device_mapping" => Self::Starting,
            "" if vm_state == "building" => Self::Starting,
            "" | "image_uploading" | "rebooting" | "reboot_started" => match vm_state {
                "active" if power_state <= 1 => Self::Running,
                "error" => Self::Errored,
                _ => Self::Other,
            },
            _ => Self::Stopping,
        }
    }

    /// Whether it is one of those that a pool's size counts.
    pub fn counts(self) -> bool {
        matches!(self, Self::Starting | Self::Running)
    }
}

/// The name of a new member; `random` gives numbers below its argument.
pub fn new_member_name(kluster: &str, pool: &str, mut random: impl FnMut(usize) -> usize) -> String {
    let suffix: String =
        (0..RANDOM_LENGTH).map(|_| char::from(ALPHABET[random(ALPHABET.len()) % ALPHABET.len()])).collect();
    format!("{PREFIX}{kluster}-{pool}-{suffix}")
}

/// Whether a server or Node of this name is a member of the pool.
pub fn is_member(name: &str, kluster: &str, pool: &str) -> bool {
    let old = format!("{kluster}-{pool}-");
    let suffix = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(&old)).or_else(|| name.strip_prefix(&old));
    suffix.is_some_and(|suffix| {
        suffix.len() == RANDOM_LENGTH && suffix.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_told_by_exact_names() {
        for (name, expected) in [
            ("kks-kate-small-ab2cd", true),
            ("kate-small-ab2cd", true),
            ("kks-kate-small-ab2cd2", false),
            ("kks-kate-small-ab2c", false),
            ("kks-kate-small-2-ab2cd", false),
            ("kks-kate2-small-ab2cd", false),
            ("kks-kate-small-a-2cd", false),
            ("xkks-kate-small-ab2cd", false),
            ("kks-kate-small-", false),
            ("", false),
        ] {
            assert_eq!(is_member(name, "kate", "small"), expected, "{name}");
        }
    }

    #[test]
    fn a_new_name_is_a_members_name() {
        let mut next = 0;
        let name = new_member_name("kate", "a.b", |below| {
            next += 7;
            next % below
        });
        assert!(is_member(&name, "kate", "a.b"), "{name}");
        assert!(!is_member(&name, "kate", "a"), "{name}");
    }

    #[test]
    fn states_follow_the_table() {
        use MemberState::{Errored, Other, Running, Starting, Stopping};
        for (task, vm, power, expected) in [
            ("spawning", "building", 0, Starting),
            ("scheduling", "building", 0, Starting),
            ("networking", "building", 0, Starting),
            ("block_device_mapping", "building", 0, Starting),
            ("", "building", 0, Starting),
            ("", "active", 1, Running),
            ("", "active", 0, Running),
            ("", "active", 4, Other),
            ("", "stopped", 4, Other),
            ("", "error", 0, Errored),
            ("image_uploading", "active", 1, Running),
            ("rebooting", "active", 1, Running),
            ("reboot_started", "active", 1, Running),
            ("deleting", "active", 1, Stopping),
            ("deleting", "error", 0, Stopping),
            ("powering-off", "active", 1, Stopping),
            ("reboot_pending", "active", 1, Stopping),
        ] {
            assert_eq!(MemberState::from_nova(task, vm, power), expected, "{task:?} {vm} {power}");
        }
    }
}
