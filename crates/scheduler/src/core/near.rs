//! What runs where already, against what the pod and those pods say of each other: affinity both ways, spreading.

use super::cluster::{ClassId, Cluster, Kind, MachineId, ProfileId, TallyId};

/// What a machine's neighbours have against the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objection {
    /// The nth spreading rule needs a label that the machine lacks.
    SpreadLabel(usize),
    Spread(usize),
    Affinity(TallyId),
    AntiAffinity(TallyId),
    OthersAntiAffinity(TallyId),
}

/// What holds for all machines alike.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// For each spreading rule: how many pods a domain may have already.
    pub most: Vec<i64>,
    /// Nothing it wants to be near exists, and it would be the first of its own kind.
    pub first: bool,
}

impl Cluster {
    pub(super) fn outlook(&self, class: ClassId, profile: ProfileId) -> Outlook {
        let (rules, profile) = (&self.classes[class], &self.topology.profiles[profile]);
        let tallies = &self.topology.tallies;
        let most = rules.spread.iter().map(|spread| {
            if !spread.hard {
                return i64::MAX;
            }
            let tally = &tallies[spread.tally];
            let fewest = if tally.domains < spread.min_domains { 0 } else { tally.fewest() };
            spread.max_skew + i64::from(fewest) - i64::from(profile.is_in(spread.sel))
        });
        let own_kind = rules.near_all.is_some_and(|all| profile.is_in(all));
        let first = own_kind && rules.near.iter().all(|tally| tallies[*tally].total == 0);
        Outlook { most: most.collect(), first }
    }

    /// Every objection on one machine.
    pub(super) fn objections(
        &self,
        (class, profile): (ClassId, ProfileId),
        machine: MachineId,
        outlook: &Outlook,
        mut found: impl FnMut(Objection),
    ) {
        let (rules, topology) = (&self.classes[class], &self.topology);
        let domain = |tally: TallyId| topology.domain(&topology.tallies[tally], machine);
        let pods = |tally: TallyId| topology.tallies[tally].pods(domain(tally));
        for (nth, spread) in rules.spread.iter().enumerate().filter(|(_, spread)| spread.hard) {
            if domain(spread.tally) == 0 {
                found(Objection::SpreadLabel(nth));
            } else if i64::from(pods(spread.tally)) > outlook.most[nth] {
                found(Objection::Spread(nth));
            }
        }
        for tally in rules.near.iter().copied() {
            if domain(tally) == 0 || (pods(tally) == 0 && !outlook.first) {
                found(Objection::Affinity(tally));
            }
        }
        for tally in rules.forbidden.iter().copied().filter(|tally| pods(*tally) > 0) {
            found(Objection::AntiAffinity(tally));
        }
        for tally in self.keeping_away(profile).filter(|tally| pods(*tally) > 0) {
            found(Objection::OthersAntiAffinity(tally));
        }
    }

    /// Where pods are that must not have such a pod near.
    pub(super) fn keeping_away(&self, profile: ProfileId) -> impl Iterator<Item = TallyId> {
        self.terms_about(profile).filter(|(kind, _)| *kind == Kind::Away).map(|(_, tally)| tally)
    }

    /// Rules carried by pods that exist, about pods of this profile.
    pub(super) fn terms_about(&self, profile: ProfileId) -> impl Iterator<Item = (Kind, TallyId)> {
        let topology = &self.topology;
        let selections = topology.profiles[profile].selections.iter();
        let terms = selections.flat_map(|selection| &topology.selections[*selection].terms);
        let terms = terms.map(|term| (topology.terms[*term].kind, topology.terms[*term].tally));
        terms.filter(|(_, tally)| topology.tallies[*tally].total > 0)
    }
}
