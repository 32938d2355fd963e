//! Where a pod goes.
//!
//! A pod that nobody's neighbourhood matters to goes to the winner of its class's tournament. If neighbours can only
//! forbid, the strongest are asked in turn until one will have it. If they are also liked more or less, every domain
//! is judged once, and then the machines in one pass over plain arrays: its strength, and for each topology key
//! the judgement of its domain.

use super::{
    cluster::{ClassId, Cluster, Kind, MachineId, ProfileId, TallyId},
    index::{First, score_of},
    near::Outlook,
    score::{FULL, NEIGHBOURS, SPREAD},
};

/// Weight of a required affinity of pods that are there already, in the score of one that joins them.
const REQUIRED_BY_OTHERS: i64 = 1;
const BARRED: i64 = i64::MIN / 1024;
const UNCOUNTED: i64 = i64::MIN / 1024;

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
        if !self.has_preferences(class, profile) {
            let right = |at| !refused.contains(&at) && self.is_welcome((class, profile), at, &outlook);
            match self.index_of(class).first(right) {
                First::Found(machine) => return Some(machine),
                First::None => return None,
                First::TooFar => {}
            }
        }
        let lanes = self.lanes(class, profile, &outlook);
        let strengths = self.index_of(class).strengths(self.machines.len());
        best_of(strengths, &lanes, refused)
    }

    fn is_welcome(&self, kind: (ClassId, ProfileId), at: MachineId, outlook: &Outlook) -> bool {
        let mut welcome = true;
        self.objections(kind, at, outlook, |_| welcome = false);
        welcome
    }

    /// Whether some neighbours are better than others.
    fn has_preferences(&self, class: ClassId, profile: ProfileId) -> bool {
        let rules = &self.classes[class];
        !rules.preferred.is_empty()
            || rules.spread.iter().any(|spread| !spread.hard)
            || self.terms_about(profile).any(|(kind, _)| kind != Kind::Away)
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

    fn scale(self) -> f64 {
        if self.most > self.least { FULL as f64 / (self.most - self.least) as f64 } else { 0.0 }
    }
}

fn best_of(strengths: &[u64], lanes: &Lanes<'_>, refused: &[MachineId]) -> Option<MachineId> {
    let (mut neighbours, mut crowd) = (Range::NONE, Range::NONE);
    let mut able = Vec::with_capacity(strengths.len());
    for (at, strength) in strengths.iter().copied().enumerate() {
        let judged = lanes.judge(at);
        if strength == 0 || judged.neighbours <= BARRED / 2 || refused.contains(&at) {
            continue;
        }
        neighbours.add(judged.neighbours);
        if judged.crowd >= 0 {
            crowd.add(judged.crowd);
        }
        able.push((at, strength, judged));
    }
    // Multiplied, not divided: it is done for every machine.
    let (near, sparse) = (neighbours.scale(), crowd.scale());
    let key = |(_, strength, judged): &(MachineId, u64, Judgement)| {
        let mut total = score_of(*strength);
        total += NEIGHBOURS * ((judged.neighbours - neighbours.least) as f64 * near) as i64;
        if lanes.crowd && judged.crowd >= 0 {
            total += SPREAD * (FULL - ((judged.crowd - crowd.least) as f64 * sparse) as i64);
        }
        (total, *strength as u32)
    };
    able.iter().max_by_key(|one| key(one)).map(|(at, _, _)| *at)
}
