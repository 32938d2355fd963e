//! How much of each pool a pod takes: the one function by which the scheduler and the machine decide alike.

/// So much of a resource, taken from a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take<P, R> {
    pub pool: P,
    pub resource: R,
    pub amount: i64,
}

/// What is taken from which pool, and what is lacking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedOut<P, R> {
    pub takes: Vec<Take<P, R>>,
    /// By how much all pools together fall short, for resources that they have too little of.
    pub lacking: Vec<(R, i64)>,
}

/// Takes what is requested from `pools`, which are those of the pod's roles, in its order. Of each resource as much as was
/// recorded when the pod was bound is taken from the same pool again, and the rest from the first pools that have some left.
/// Pools and resources are whatever the caller calls them by.
pub fn share_out<P: Copy, R: Copy>(
    pools: &[P],
    requests: impl IntoIterator<Item = (R, i64)>,
    free: impl Fn(P, R) -> i64,
    recorded: impl Fn(P, R) -> i64,
) -> SharedOut<P, R> {
    let mut shared = SharedOut { takes: Vec::new(), lacking: Vec::new() };
    for (resource, requested) in requests {
        let mut left = requested.max(0);
        let mut amounts = vec![0; pools.len()];
        for by_record in [true, false] {
            for (amount, pool) in amounts.iter_mut().zip(pools) {
                let room = free(*pool, resource).max(0) - *amount;
                let wanted = if by_record { recorded(*pool, resource).max(0) } else { left };
                let taken = wanted.min(left).min(room);
                *amount += taken;
                left -= taken;
            }
        }
        let taken = pools.iter().zip(amounts).filter(|(_, amount)| *amount > 0);
        shared.takes.extend(taken.map(|(pool, amount)| Take { pool: *pool, resource, amount }));
        if left > 0 {
            shared.lacking.push((resource, left));
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn amounts(free: &[i64], order: &[usize], requested: i64, recorded: &[i64]) -> (Vec<(usize, i64)>, i64) {
        let recorded = |pool: usize, (): ()| recorded.get(pool).copied().unwrap_or(0);
        let shared = share_out(order, [((), requested)], |pool, ()| free[pool], recorded);
        let takes = shared.takes.iter().map(|take| (take.pool, take.amount)).collect();
        (takes, shared.lacking.first().map_or(0, |(_, lacking)| *lacking))
    }

    #[test]
    fn one_resource_may_come_from_several_pools_in_the_order_of_the_roles() {
        assert_eq!(amounts(&[500, 2000], &[0, 1], 2000, &[]), (vec![(0, 500), (1, 1500)], 0), "cpu of * and public");
        assert_eq!(amounts(&[500, 2000], &[1, 0], 2000, &[]), (vec![(1, 2000)], 0));
        assert_eq!(amounts(&[500, 2000], &[1], 2500, &[]), (vec![(1, 2000)], 500));
        assert_eq!(amounts(&[500, 2000], &[], 1, &[]), (vec![], 1));
        assert_eq!(amounts(&[-300, 2000], &[0, 1], 1000, &[]), (vec![(1, 1000)], 0), "never from what is overdrawn");
        assert_eq!(amounts(&[500], &[0], 0, &[]), (vec![], 0));
    }

    #[test]
    fn what_was_recorded_is_taken_from_the_same_pool_again() {
        assert_eq!(amounts(&[2000, 2000], &[0, 1], 2000, &[500, 1500]), (vec![(0, 500), (1, 1500)], 0));
        assert_eq!(amounts(&[2000, 2000], &[0, 1], 3000, &[500, 1500]), (vec![(0, 1500), (1, 1500)], 0), "it grew");
        assert_eq!(amounts(&[2000, 2000], &[0, 1], 1000, &[500, 1500]), (vec![(0, 500), (1, 500)], 0), "it shrank");
        assert_eq!(amounts(&[2000, 200], &[0, 1], 2000, &[500, 1500]), (vec![(0, 1800), (1, 200)], 0), "less is there");
        assert_eq!(amounts(&[2000, 2000], &[0], 1000, &[0, 1000]), (vec![(0, 1000)], 0), "not a role of the pod's");
    }

    proptest! {
        /// Nothing is taken that is not there, nothing twice, and something is lacking only if all pools are used up.
        #[test]
        fn all_that_is_requested_is_taken_or_lacking(
            free in prop::collection::vec(-5..50_i64, 1..5), requested in 0..150_i64, recorded in prop::collection::vec(0..60_i64, 5),
        ) {
            let order: Vec<usize> = (0..free.len()).rev().collect();
            let (takes, lacking) = amounts(&free, &order, requested, &recorded);
            prop_assert!(takes.iter().all(|(pool, amount)| *amount > 0 && *amount <= free[*pool]));
            let taken: i64 = takes.iter().map(|(_, amount)| amount).sum();
            prop_assert_eq!(taken + lacking, requested);
            let all: i64 = free.iter().map(|free| free.max(&0)).sum();
            prop_assert_eq!(lacking, (requested - all).max(0));
        }
    }
}
