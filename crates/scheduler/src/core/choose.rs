//! Where a pod goes.
//!
//! A pod that nobody's neighbourhood matters to goes to the winner of its class's tournament. For others every
//! domain is judged once, and then the machines in one pass over plain arrays: its strength, and for each topology
//! key the judgement of its domain.

use super::{
    cluster::{ClassId, Cluster, Kind, MachineId, ProfileId, TallyId},
    index::score_of,
    near::Outlook,
    score::{FULL, NEIGHBOURS, SPREAD},
};

/// Weight of a required affinity of pods that are there already, in the score of one that joins them.
const REQUIRED_BY_OTHERS: i64 = 1;
const BARRED: i64 = i64::MIN / 4;
const UNCOUNTED: i64 = i64::MIN / 4;

/// What is thought of one domain.
#[derive(Clone, Copy, Debug, Default)]
struct Judgement {
    /// Of its pods as neighbours; [`BARRED`] if it must not be used.
    neighbours: i64,
    /// How crowded it is with pods to spread from; [`UNCOUNTED`] if it has no label to tell.
    crowd: i64,
}

/// The judgements of one key's domains.
struct Lane<'a> {
    key: usize,
    of: &'a [u32],
    domains: Vec<Judgement>,
}

#[derive(Default)]
struct Lanes<'a> {
    all: Vec<Lane<'a>>,
    neighbours: bool,
    crowd: bool,
}

impl Cluster {
    /// The best machine that fits.
    pub(super) fn choose(
        &mut self,
        (class, profile): (ClassId, ProfileId),
        refused: &[MachineId],
    ) -> Option<MachineId> {
        let best = self.index(class).best();
        if best == 0 {
            return None;
        }
        if refused.is_empty() && !self.is_sociable(class, profile) {
            return Some(self.machine_of(best));
        }
        let outlook = self.outlook(class, profile);
        let lanes = self.lanes(class, profile, &outlook);
        let strengths = self.index_of(class).strengths(self.machines.len());
        best_of(strengths, &lanes, refused)
    }

    /// Whether it matters who runs near.
    fn is_sociable(&self, class: ClassId, profile: ProfileId) -> bool {
        let rules = &self.classes[class];
        !(rules.near.is_empty()
            && rules.forbidden.is_empty()
            && rules.preferred.is_empty()
            && rules.spread.is_empty()
            && self.terms_about(profile).next().is_none())
    }

    fn lanes(&self, class: ClassId, profile: ProfileId, outlook: &Outlook) -> Lanes<'_> {
        let (rules, tallies) = (&self.classes[class], &self.topology.tallies);
        let mut lanes = Lanes::default();
        for (nth, spread) in rules.spread.iter().enumerate() {
            let (tally, lane) = (&tallies[spread.tally], lanes.on(self, spread.tally));
            if spread.hard {
                lane[0].neighbours = BARRED;
                bar(lane, &tally.pods, |pods| i64::from(pods) > outlook.most[nth]);
            } else {
                lane[0].crowd = UNCOUNTED;
                let weight = rarity(tally.domains);
                let slack = (spread.max_skew - 1) * 1024;
                let counted = lane.iter_mut().enumerate().skip(1);
                counted.for_each(|(at, d)| d.crowd += i64::from(tally.pods(at as u32)) * weight + slack);
                lanes.crowd = true;
            }
        }
        for tally in &rules.near {
            let lane = lanes.on(self, *tally);
            lane[0].neighbours = BARRED;
            if !outlook.first {
                let pods = &tallies[*tally].pods;
                let empty = |at: usize| pods.get(at).copied().unwrap_or(0) == 0;
                lane.iter_mut().enumerate().filter(|(at, _)| empty(*at)).for_each(|(_, d)| d.neighbours = BARRED);
            }
        }
        for tally in rules.forbidden.iter().copied().chain(self.keeping_away(profile)) {
            if tallies[tally].total > 0 {
                bar(lanes.on(self, tally), &tallies[tally].pods, |pods| pods > 0);
            }
        }
        let others = self.terms_about(profile).filter_map(|(kind, tally)| match kind {
            Kind::Prefer(weight) => Some((weight, tally)),
            Kind::Near => Some((REQUIRED_BY_OTHERS, tally)),
            Kind::Away => None,
        });
        for (weight, tally) in rules.preferred.iter().copied().chain(others) {
            if tallies[tally].total > 0 {
                let lane = lanes.on(self, tally);
                let counted = lane.iter_mut().zip(&tallies[tally].pods);
                counted.for_each(|(d, pods)| d.neighbours += weight * i64::from(*pods));
                lanes.neighbours = true;
            }
        }
        lanes
    }
}

/// A crowd weighs more where there are more domains to go to: `1024 * ln(domains + 2)`.
fn rarity(domains: usize) -> i64 {
    ((domains as f64 + 2.0).ln() * 1024.0) as i64
}

fn bar(lane: &mut [Judgement], pods: &[u32], too_many: impl Fn(u32) -> bool) {
    let domains = lane.iter_mut().zip(pods).skip(1);
    domains.filter(|(_, pods)| too_many(**pods)).for_each(|(domain, _)| domain.neighbours = BARRED);
}

impl<'a> Lanes<'a> {
    fn on(&mut self, cluster: &'a Cluster, tally: TallyId) -> &mut [Judgement] {
        let key = cluster.topology.tallies[tally].key;
        let at = self.all.iter().position(|lane| lane.key == key).unwrap_or_else(|| {
            let key_of = &cluster.topology.keys[key];
            let domains = vec![Judgement::default(); key_of.names.len()];
            self.all.push(Lane { key, of: &key_of.of, domains });
            self.all.len() - 1
        });
        &mut self.all[at].domains
    }

    fn judge(&self, machine: MachineId) -> Judgement {
        let mut sum = Judgement::default();
        for lane in &self.all {
            let domain = lane.domains[lane.of[machine] as usize];
            sum.neighbours += domain.neighbours;
            sum.crowd += domain.crowd;
        }
        sum
    }
}

/// A range of what was found, to bring it to 0..=[`FULL`].
#[derive(Clone, Copy)]
struct Range {
    least: i64,
    most: i64,
}

impl Range {
    const NONE: Self = Self { least: i64::MAX, most: i64::MIN };

    fn add(&mut self, value: i64) {
        self.least = self.least.min(value);
        self.most = self.most.max(value);
    }

    fn share(self, value: i64) -> i64 {
        if self.most > self.least { (value - self.least) * FULL / (self.most - self.least) } else { 0 }
    }
}

fn best_of(strengths: &[u64], lanes: &Lanes<'_>, refused: &[MachineId]) -> Option<MachineId> {
    let able = || {
        let able =
            strengths.iter().copied().enumerate().filter(|(at, strength)| *strength > 0 && !refused.contains(at));
        able.map(|(at, strength)| (at, strength, lanes.judge(at)))
            .filter(|(_, _, judged)| judged.neighbours > BARRED / 2)
    };
    if !lanes.neighbours && !lanes.crowd {
        return able().max_by_key(|(_, strength, _)| *strength).map(|(at, _, _)| at);
    }
    let (mut neighbours, mut crowd) = (Range::NONE, Range::NONE);
    for (_, _, judged) in able() {
        neighbours.add(judged.neighbours);
        if judged.crowd >= 0 {
            crowd.add(judged.crowd);
        }
    }
    let total = |strength: u64, judged: Judgement| {
        let sparse = if judged.crowd < 0 { 0 } else { FULL - crowd.share(judged.crowd) };
        let spread = if lanes.crowd { SPREAD * sparse } else { 0 };
        score_of(strength) + NEIGHBOURS * neighbours.share(judged.neighbours) + spread
    };
    let key = |(_, strength, judged): &(MachineId, u64, Judgement)| (total(*strength, *judged), *strength as u32);
    able().max_by_key(key).map(|(at, _, _)| at)
}
