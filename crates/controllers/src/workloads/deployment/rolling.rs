//! Rolling updates: the next size of each ReplicaSet. Pure.
//!
//! Numbers only: every function takes what is there and answers with new sizes. A rolling update
//! first lets the new set grow as far as the surge allows, then takes from the old ones what is
//! above the minimum: pods that are not available first, since nobody misses them. Both bounds hold
//! for the pods that really are there, not only for the sizes asked for: a set that has not
//! answered its last change is waited for.

use super::view::{Desired, Set};

/// A set and the size it should get.
pub type Resize<'s> = (&'s Set, i32);

/// How large the new set may be now.
pub fn room(want: &Desired, sets: &[&Set], new: i32) -> i32 {
    if want.recreate {
        return want.replicas;
    }
    if sets.iter().any(|set| !set.observed) {
        return new; // how many it still has, nobody can tell
    }
    let total: i32 = sets.iter().map(|set| set.replicas.max(set.seen.replicas)).sum();
    let free = want.max_replicas() - total;
    if free <= 0 { new } else { new + free.min(want.replicas - new) }
}

/// The next step of a rolling update; nothing if there is none now.
pub fn roll<'s>(want: &Desired, new: &'s Set, old: &[&'s Set]) -> Vec<Resize<'s>> {
    let all: Vec<&Set> = old.iter().copied().chain([new]).collect();
    let size = if new.replicas > want.replicas { want.replicas } else { room(want, &all, new.replicas) };
    if new.replicas != want.replicas && size != new.replicas {
        return vec![(new, size)];
    }
    shrink(want, new, old)
}

/// Takes from the old sets what may be taken. Nobody can tell while a set has not answered its last change.
fn shrink<'s>(want: &Desired, new: &Set, old: &[&'s Set]) -> Vec<Resize<'s>> {
    if old.iter().copied().chain([new]).any(|set| !set.observed) {
        return Vec::new();
    }
    // A status may still be that of a larger set.
    let available = |set: &Set| set.seen.available.min(set.replicas);
    let total: i32 = old.iter().map(|set| set.replicas).sum::<i32>() + new.replicas;
    let pending = new.replicas - available(new);
    let mut spare = total - want.min_available() - pending;
    let mut sizes: Vec<Resize<'s>> = old.iter().map(|set| (*set, set.replicas)).collect();
    for (set, size) in &mut sizes {
        let broken = (*size - available(set)).clamp(0, spare.max(0));
        *size -= broken;
        spare -= broken;
    }
    let serving: i32 = old.iter().map(|set| available(set)).sum::<i32>() + available(new);
    let mut excess = (serving - want.min_available()).min(spare);
    for (_, size) in &mut sizes {
        let taken = (*size).clamp(0, excess.max(0));
        *size -= taken;
        excess -= taken;
    }
    sizes.retain(|(set, size)| set.replicas != *size);
    sizes
}

/// Sizes after the wished number changed, or while an update is paused: every set keeps its share.
pub fn rescale<'s>(want: &Desired, new: Option<&'s Set>, old: &[&'s Set], reported: i32) -> Vec<Resize<'s>> {
    let active: Vec<&Set> = old.iter().copied().chain(new).filter(|set| set.replicas > 0).collect();
    match active[..] {
        [] => new.or(old.last().copied()).map(|set| (set, want.replicas)).into_iter().collect(),
        [only] => vec![(only, want.replicas)],
        _ if new.is_some_and(|new| is_saturated(want, new)) => {
            old.iter().filter(|set| set.replicas > 0).map(|set| (*set, 0)).collect()
        }
        _ if want.recreate => Vec::new(),
        _ => proportional(want, active, reported),
    }
}

fn is_saturated(want: &Desired, new: &Set) -> bool {
    let desired = new.number::<i32>(super::view::DESIRED);
    new.replicas == want.replicas && desired == Some(want.replicas) && new.seen.available == want.replicas
}

fn proportional<'s>(want: &Desired, mut active: Vec<&'s Set>, reported: i32) -> Vec<Resize<'s>> {
    let total: i32 = active.iter().map(|set| set.replicas).sum();
    let allowed = if want.replicas > 0 { want.max_replicas() } else { 0 };
    let change = allowed - total;
    // The largest first; among equals the newest grows, the oldest shrinks.
    active.sort_by(|a, b| {
        let newer = b.born.cmp(&a.born).then(b.name.cmp(&a.name));
        b.replicas.cmp(&a.replicas).then(if change > 0 { newer } else { newer.reverse() })
    });
    let mut left = change;
    let mut sizes = Vec::new();
    for set in active {
        let share = share(want, set, reported);
        let share = if change > 0 { share.clamp(0, left) } else { share.clamp(left, 0) };
        left -= share;
        sizes.push((set, set.replicas + share));
    }
    if let Some((_, size)) = sizes.first_mut() {
        *size = (*size + left).max(0); // what rounding left over
    }
    sizes
}

/// By how much a set changes so that it keeps its part of the whole.
fn share(want: &Desired, set: &Set, reported: i32) -> i32 {
    if want.replicas == 0 {
        return -set.replicas;
    }
    let before = set.number::<i32>(super::view::MAX).filter(|max| *max > 0).unwrap_or(reported);
    if before <= 0 {
        return 0;
    }
    let exact = f64::from(set.replicas) * f64::from(want.max_replicas()) / f64::from(before);
    exact.round() as i32 - set.replicas
}

/// Of the old sets, those beyond what is to be remembered, least recent first.
pub fn forgettable<'s>(want: &Desired, old: &[&'s Set]) -> Vec<&'s Set> {
    let Some(limit) = want.history_limit else { return Vec::new() };
    let mut old: Vec<&Set> = old.iter().copied().filter(|set| !set.leaving).collect();
    old.sort_by(|a, b| a.revision().cmp(&b.revision()).then(a.born.cmp(&b.born)));
    let surplus = old.len().saturating_sub(limit);
    let idle = |set: &&Set| set.replicas == 0 && set.seen.replicas == 0 && set.observed;
    old.into_iter().take(surplus).filter(idle).collect()
}
