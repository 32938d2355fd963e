//! Shares of a set, as a number or in percent.

/// A number of members, or a share of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Count(usize),
    Percent(u8),
}

impl Amount {
    pub const ZERO: Self = Self::Count(0);
    pub const ONE: Self = Self::Count(1);

    /// How many of a set of this size: never more than all, and a percentage is rounded up.
    pub fn resolve(self, total: usize) -> usize {
        match self {
            Self::Count(count) => count.min(total),
            Self::Percent(percent) => (total * usize::from(percent.min(100))).div_ceil(100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_up_and_never_more_than_all() {
        let resolved = |amount: Amount| [0, 1, 3, 10, 10_000].map(|total| amount.resolve(total));
        assert_eq!(resolved(Amount::Count(4)), [0, 1, 3, 4, 4]);
        assert_eq!(resolved(Amount::Percent(5)), [0, 1, 1, 1, 500]);
        assert_eq!(resolved(Amount::Percent(34)), [0, 1, 2, 4, 3_400]);
        assert_eq!(resolved(Amount::Percent(200)), [0, 1, 3, 10, 10_000]);
        assert_eq!(resolved(Amount::ZERO), [0; 5]);
    }
}
