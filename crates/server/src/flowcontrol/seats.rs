//! Seats of the server, who has them and who waits for them. Pure: no clock, no task, no lock.
//!
//! A level may use what is guaranteed to it (its nominal seats less what it lends), and beyond that what nobody is guaranteed and nobody
//! uses, up to what it may borrow. So the seats in use never exceed the total, and a level's guaranteed seats are never lent.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use super::config::{FlowConfig, PriorityLevel};

/// One flow may have this part of all seats, in percent.
const FLOW_PERCENT: usize = 25;
/// And may wait for as many times that. Upstream bounds the number of requests alone: a flood of long LISTs would wait there for minutes.
const WAITING_SHARES: usize = 4;
/// The most seats of one request, of its level's nominal ones, in percent.
const REQUEST_PERCENT: usize = 15;

/// Who wants seats.
#[derive(Clone, Debug)]
pub struct Claim {
    pub level: Arc<str>,
    /// A hash of FlowSchema and distinguisher.
    pub flow: u64,
    pub seats: usize,
}

/// Why a request is refused at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// Its level does not queue.
    ConcurrencyLimit,
    /// So does its queue.
    QueueFull,
}

/// What becomes of a claim.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission {
    /// It has its seats.
    Seated,
    Queued,
    Refused(RefusalReason),
}

struct Waiter<T> {
    claim: Claim,
    ticket: T,
}

struct Queue<T> {
    waiting: VecDeque<Waiter<T>>,
    /// Seats handed out to it so far, as a place in the order of all queues.
    virtual_start: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), virtual_start: 0 }
    }
}

struct Level<T> {
    spec: Arc<PriorityLevel>,
    nominal: usize,
    guaranteed: usize,
    most: usize,
    used: usize,
    executing: usize,
    flows: HashMap<u64, usize>,
    queues: Vec<Queue<T>>,
    /// Requests in all its queues.
    waiting: usize,
    /// The seats they want, by flow.
    waiting_seats: HashMap<u64, usize>,
    virtual_time: u64,
}

impl<T> Level<T> {
    fn push_back(&mut self, queue: usize, waiter: Waiter<T>) {
        self.waiting += 1;
        *self.waiting_seats.entry(waiter.claim.flow).or_default() += waiter.claim.seats;
        self.queues[queue].waiting.push_back(waiter);
    }

    fn pop_front(&mut self, queue: usize) -> Option<Waiter<T>> {
        let waiter = self.queues[queue].waiting.pop_front()?;
        self.forget(&waiter.claim);
        Some(waiter)
    }

    /// One of those that waited does not any more.
    fn forget(&mut self, claim: &Claim) {
        self.waiting -= 1;
        if let Some(seats) = self.waiting_seats.get_mut(&claim.flow) {
            *seats = seats.saturating_sub(claim.seats);
            if *seats == 0 {
                self.waiting_seats.remove(&claim.flow);
            }
        }
    }

    /// Takes those who have gone out of these queues.
    fn purge(&mut self, queues: &[usize], is_gone: impl Fn(&T) -> bool) {
        for queue in queues {
            let waiting = std::mem::take(&mut self.queues[*queue].waiting);
            let (gone, left) = waiting.into_iter().partition::<VecDeque<_>, _>(|waiter| is_gone(&waiter.ticket));
            self.queues[*queue].waiting = left;
            gone.iter().for_each(|waiter| self.forget(&waiter.claim));
        }
    }
}

/// All levels. `T` is what a waiting request is known by.
pub struct Seats<T> {
    total: usize,
    levels: BTreeMap<Arc<str>, Level<T>>,
    /// The level that is looked at first the next time, so that all get their turn at what is common.
    next: usize,
}

/// What a level looks like, for metrics and dumps.
pub struct LevelView {
    pub spec: Arc<PriorityLevel>,
    pub nominal: usize,
    pub used: usize,
    pub executing: usize,
    pub waiting: usize,
    /// Requests in each queue that has any.
    pub queues: Vec<(usize, usize)>,
}

impl<T> Seats<T> {
    pub fn new(total: usize) -> Self {
        Self { total, levels: BTreeMap::new(), next: 0 }
    }

    /// Takes over a configuration. Who sits or waits goes on; a level that is gone keeps nothing of its own.
    pub fn configure(&mut self, config: &FlowConfig) {
        let shares: u64 = config.levels.values().map(|level| level.shares).sum::<u64>().max(1);
        for spec in config.levels.values() {
            let nominal = (self.total as u64 * spec.shares).div_ceil(shares) as usize;
            let guaranteed = if spec.is_exempt { 0 } else { nominal - nominal * spec.lendable_percent as usize / 100 };
            let borrowed = spec.borrowing_limit_percent.map(|percent| nominal * percent as usize / 100);
            let most = borrowed.map_or(usize::MAX, |borrowed| nominal + borrowed);
            let level = self.levels.entry(spec.name.clone()).or_insert_with(|| Level {
                spec: spec.clone(),
                nominal,
                guaranteed,
                most,
                used: 0,
                executing: 0,
                flows: HashMap::new(),
                queues: Vec::new(),
                waiting: 0,
                waiting_seats: HashMap::new(),
                virtual_time: 0,
            });
            let queues = spec.queuing.map_or(0, |queuing| queuing.queues);
            // Queues that are in use stay.
            if level.queues.len() < queues {
                level.queues.resize_with(queues, Queue::default);
            }
            (level.spec, level.nominal, level.guaranteed, level.most) = (spec.clone(), nominal, guaranteed, most);
        }
        for (name, level) in &mut self.levels {
            if !config.levels.contains_key(&**name) {
                (level.nominal, level.guaranteed) = (0, 0);
            }
        }
        self.levels.retain(|name, level| config.levels.contains_key(&**name) || level.used > 0 || level.waiting > 0);
        // Rounding up must not hand out more than there is.
        let guaranteed: usize = self.levels.values().map(|level| level.guaranteed).sum();
        if guaranteed > self.total {
            for level in self.levels.values_mut() {
                level.guaranteed = level.guaranteed * self.total / guaranteed;
            }
        }
    }

    /// The seats a request of a level takes at most.
    pub fn bounded(&self, level: &str, seats: usize) -> usize {
        let nominal = self.levels.get(level).map_or(1, |level| level.nominal);
        seats.clamp(1, (nominal * REQUEST_PERCENT).div_ceil(100).max(1))
    }

    /// Seats a request, or lets it wait.
    pub fn claim(&mut self, claim: &Claim, ticket: impl FnOnce() -> T, is_gone: impl Fn(&T) -> bool) -> Admission {
        if self.fits(claim) && !self.someone_waits_before(claim) {
            self.seat(claim);
            return Admission::Seated;
        }
        let most_waiting = self.seats_per_flow() * WAITING_SHARES;
        let Some(level) = self.levels.get_mut(&claim.level) else {
            return Admission::Refused(RefusalReason::ConcurrencyLimit);
        };
        let Some(queuing) = level.spec.queuing else {
            return Admission::Refused(RefusalReason::ConcurrencyLimit);
        };
        let hand = deal(claim.flow, queuing.queues.min(level.queues.len()), queuing.hand_size);
        let place = |level: &Level<T>| {
            let of_flow = level.waiting_seats.get(&claim.flow).copied().unwrap_or(0);
            let has_share = of_flow == 0 || of_flow + claim.seats <= most_waiting;
            let chosen = shortest(&level.queues, &hand).filter(|_| has_share)?;
            (level.queues[chosen].waiting.len() < queuing.queue_length_limit).then_some(chosen)
        };
        let chosen = place(level).or_else(|| {
            level.purge(&hand, is_gone);
            place(level)
        });
        let Some(chosen) = chosen else { return Admission::Refused(RefusalReason::QueueFull) };
        let virtual_time = level.virtual_time;
        let queue = &mut level.queues[chosen];
        if queue.waiting.is_empty() {
            queue.virtual_start = queue.virtual_start.max(virtual_time);
        }
        level.push_back(chosen, Waiter { claim: claim.clone(), ticket: ticket() });
        Admission::Queued
    }

    fn seats_per_flow(&self) -> usize {
        (self.total * FLOW_PERCENT / 100).max(1)
    }

    /// Gives seats back.
    pub fn release(&mut self, claim: &Claim) {
        let Some(level) = self.levels.get_mut(&claim.level) else { return };
        level.used = level.used.saturating_sub(claim.seats);
        level.executing = level.executing.saturating_sub(1);
        if let Some(used) = level.flows.get_mut(&claim.flow) {
            *used = used.saturating_sub(claim.seats);
            if *used == 0 {
                level.flows.remove(&claim.flow);
            }
        }
    }

    /// Seats whoever can be seated now, and returns their tickets. Who has gone is skipped.
    pub fn dispatch(&mut self, is_gone: impl Fn(&T) -> bool) -> Vec<(Claim, T)> {
        let mut seated = Vec::new();
        if self.levels.values().all(|level| level.waiting == 0) {
            return seated;
        }
        let waiting = self.levels.iter().filter(|(_, level)| level.waiting > 0);
        let names: Vec<Arc<str>> = waiting.map(|(name, _)| name.clone()).collect();
        let mut idle = 0;
        while idle < names.len() {
            self.next = (self.next + 1) % names.len().max(1);
            match self.dispatch_one(&names[self.next], &is_gone) {
                Some(one) => {
                    seated.push(one);
                    idle = 0;
                }
                None => idle += 1,
            }
        }
        seated
    }

    fn dispatch_one(&mut self, name: &Arc<str>, is_gone: &impl Fn(&T) -> bool) -> Option<(Claim, T)> {
        let level = self.levels.get_mut(name)?;
        for queue in 0..level.queues.len() {
            while level.queues[queue].waiting.front().is_some_and(|waiter| is_gone(&waiter.ticket)) {
                level.pop_front(queue);
            }
        }
        // The queue served least, of those whose first request has room: a flow with its share keeps nobody else waiting.
        let mut order: Vec<usize> =
            (0..level.queues.len()).filter(|queue| !level.queues[*queue].waiting.is_empty()).collect();
        order.sort_by_key(|queue| (level.queues[*queue].virtual_start, *queue));
        let firsts: Vec<(usize, Claim)> = order
            .iter()
            .filter_map(|queue| Some((*queue, level.queues[*queue].waiting.front()?.claim.clone())))
            .collect();
        let (chosen, claim) = firsts.into_iter().find(|(_, claim)| self.fits(claim))?;
        let level = self.levels.get_mut(name)?;
        let queue = level.queues.get_mut(chosen)?;
        level.virtual_time = level.virtual_time.max(queue.virtual_start);
        queue.virtual_start += claim.seats as u64;
        let waiter = level.pop_front(chosen)?;
        self.seat(&claim);
        Some((claim, waiter.ticket))
    }

    fn fits(&self, claim: &Claim) -> bool {
        let Some(level) = self.levels.get(&claim.level) else { return false };
        if level.spec.is_exempt {
            return true;
        }
        let per_flow = self.seats_per_flow();
        let of_flow = level.flows.get(&claim.flow).copied().unwrap_or(0);
        if of_flow > 0 && of_flow + claim.seats > per_flow {
            return false;
        }
        if level.used + claim.seats > level.most {
            return false;
        }
        // Exempt requests run beside the others, so that they take nothing from them.
        let limited = || self.levels.values().filter(|level| !level.spec.is_exempt);
        let spoken_for: usize = limited().map(|level| level.used.max(level.guaranteed)).sum();
        let own = level.guaranteed.saturating_sub(level.used);
        let is_alone = limited().all(|level| level.used == 0);
        claim.seats <= own + self.total.saturating_sub(spoken_for) || is_alone
    }

    fn someone_waits_before(&self, claim: &Claim) -> bool {
        let Some(level) = self.levels.get(&claim.level) else { return false };
        !level.spec.is_exempt && level.waiting > 0
    }

    fn seat(&mut self, claim: &Claim) {
        if let Some(level) = self.levels.get_mut(&claim.level) {
            level.used += claim.seats;
            level.executing += 1;
            *level.flows.entry(claim.flow).or_default() += claim.seats;
        }
    }

    pub fn views(&self) -> Vec<LevelView> {
        let view = |level: &Level<T>| {
            let queues = level.queues.iter().enumerate().map(|(index, queue)| (index, queue.waiting.len()));
            let queues: Vec<(usize, usize)> = queues.filter(|(_, waiting)| *waiting > 0).collect();
            LevelView {
                spec: level.spec.clone(),
                nominal: level.nominal,
                used: level.used,
                executing: level.executing,
                waiting: level.waiting,
                queues,
            }
        };
        self.levels.values().map(view).collect()
    }
}

/// The shortest of the queues that a flow is dealt.
fn shortest<T>(queues: &[Queue<T>], hand: &[usize]) -> Option<usize> {
    let waiting = |queue: &usize| queues[*queue].waiting.iter().map(|waiter| waiter.claim.seats).sum::<usize>();
    hand.iter().copied().min_by_key(waiting)
}

/// Shuffle sharding: a hand of different queues that follows from the flow alone.
fn deal(flow: u64, count: usize, hand_size: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..count).collect();
    let mut hash = flow;
    let mut hand = Vec::new();
    for _ in 0..hand_size.min(count) {
        hand.push(left.swap_remove((hash % left.len() as u64) as usize));
        // Another part of the hash for every card.
        hash = hash.rotate_right(11).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    hand
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn seats() -> Seats<u32> {
        let mut seats = Seats::new(600);
        seats.configure(&FlowConfig::new(Vec::new(), Vec::new()));
        seats
    }

    fn claim(level: &str, flow: u64, seats: usize) -> Claim {
        Claim { level: level.into(), flow, seats }
    }

    fn never(_: &u32) -> bool {
        false
    }

    #[test]
    fn nominal_seats_follow_from_the_shares_and_exempt_ones_are_never_refused() {
        let mut seats = seats();
        let nominal: BTreeMap<String, usize> =
            seats.views().iter().map(|level| (level.spec.name.to_string(), level.nominal)).collect();
        assert_eq!((nominal["workload-low"], nominal["node-high"], nominal["exempt"]), (245, 98, 0));
        for _ in 0..5000 {
            assert_eq!(seats.claim(&claim("exempt", 1, 10), || 0, never), Admission::Seated);
        }
        assert_eq!(seats.claim(&claim("node-high", 1, 1), || 0, never), Admission::Seated, "they take nothing away");
    }

    #[test]
    fn a_flood_waits_and_is_refused_while_others_of_its_level_and_other_levels_are_seated() {
        let mut seats = seats();
        let flood = claim("workload-low", 7, 10);
        let mut outcomes = BTreeMap::new();
        for ticket in 0..1000 {
            let outcome = format!("{:?}", seats.claim(&flood, || ticket, never));
            *outcomes.entry(outcome).or_insert(0) += 1;
        }
        assert_eq!(outcomes["Seated"], 15, "a quarter of all seats");
        assert_eq!(outcomes["Queued"], 60, "four times as much again");
        assert_eq!(outcomes["Refused(QueueFull)"], 925);
        // Another flow of the level queues for its turn, and that comes before the flood's.
        assert_eq!(seats.claim(&claim("workload-low", 8, 1), || 9999, never), Admission::Queued);
        let seated = seats.dispatch(never);
        assert_eq!(seated.iter().map(|(_, ticket)| *ticket).collect::<Vec<_>>(), [9999]);
        assert_eq!(seats.claim(&claim("node-high", 1, 1), || 0, never), Admission::Seated);
    }

    #[test]
    fn of_cheap_requests_as_many_wait_as_the_queues_of_a_flow_take() {
        let mut seats = seats();
        let outcomes: Vec<Admission> =
            (0..1000).map(|ticket| seats.claim(&claim("workload-low", 7, 1), || ticket, never)).collect();
        let count = |wanted: Admission| outcomes.iter().filter(|outcome| **outcome == wanted).count();
        assert_eq!((count(Admission::Seated), count(Admission::Queued)), (150, 300), "six queues of fifty");
    }

    #[test]
    fn a_level_that_does_not_queue_refuses_and_one_lends_only_what_it_may() {
        let mut seats = seats();
        let mut admitted = 0;
        while seats.claim(&claim("catch-all", admitted, 1), || 0, never) == Admission::Seated {
            admitted += 1;
        }
        let common: usize = 600
            - seats
                .views()
                .iter()
                .map(|l| l.nominal - l.nominal * l.spec.lendable_percent as usize / 100)
                .sum::<usize>();
        assert_eq!(admitted as usize, common + 13, "its own and what is lent");
        let refused = seats.claim(&claim("catch-all", 1, 1), || 0, never);
        assert_eq!(refused, Admission::Refused(RefusalReason::ConcurrencyLimit));
        for _ in 0..25 {
            assert_eq!(seats.claim(&claim("leader-election", 1, 1), || 0, never), Admission::Seated, "lends nothing");
        }
    }

    #[test]
    fn who_has_gone_is_skipped_and_takes_no_place() {
        let mut seats = seats();
        let mut ticket = 0;
        while seats.claim(&claim("workload-low", 7, 10), || ticket, never)
            != Admission::Refused(RefusalReason::QueueFull)
        {
            ticket += 1;
        }
        assert_eq!(
            seats.claim(&claim("workload-low", 7, 10), || 5000, |_| true),
            Admission::Queued,
            "all before it left"
        );
        seats.release(&claim("workload-low", 7, 10));
        let seated = seats.dispatch(|ticket| *ticket != 5000);
        assert_eq!(seated.len(), 1);
        assert_eq!(seated[0].1, 5000);
    }

    #[test]
    fn hands_are_of_different_queues_and_differ_between_flows() {
        let hands: BTreeSet<Vec<usize>> = (0..200u64)
            .map(|flow| deal(flow.wrapping_mul(0x9e37_79b9_7f4a_7c15), 64, 6))
            .inspect(|hand| assert_eq!(hand.iter().collect::<BTreeSet<_>>().len(), 6))
            .collect();
        assert!(hands.len() > 190, "{}", hands.len());
    }

    proptest! {
        #[test]
        fn never_more_than_all_seats_and_nobody_waits_while_there_is_room(
            steps in proptest::collection::vec((0..6usize, 0..5u64, 1..12usize, any::<bool>()), 0..300),
        ) {
            let names = ["node-high", "system", "leader-election", "workload-high", "workload-low", "global-default"];
            let mut seats = seats();
            let mut sitting: Vec<Claim> = Vec::new();
            for (level, flow, amount, leaves) in steps {
                if leaves && !sitting.is_empty() {
                    let claim = sitting.swap_remove(amount % sitting.len());
                    seats.release(&claim);
                    sitting.extend(seats.dispatch(never).into_iter().map(|(claim, _)| claim));
                } else {
                    let claim = claim(names[level], flow, amount);
                    if seats.claim(&claim, || 0, never) == Admission::Seated {
                        sitting.push(claim);
                    }
                }
                let used: usize = sitting.iter().map(|claim| claim.seats).sum();
                prop_assert!(used <= 600, "{used}");
                prop_assert_eq!(used, seats.views().iter().map(|level| level.used).sum::<usize>());
            }
            while let Some(claim) = sitting.pop() {
                seats.release(&claim);
                sitting.extend(seats.dispatch(never).into_iter().map(|(claim, _)| claim));
            }
            prop_assert!(seats.views().iter().all(|level| level.used == 0 && level.waiting == 0), "all get their turn");
            prop_assert!(seats.levels.values().all(|level| level.waiting_seats.is_empty()));
        }
    }
}
