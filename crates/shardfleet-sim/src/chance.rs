//! The one source of chance of a run. Everything random is drawn from it, or from a fork of it, so a seed decides everything.

/// A small random number generator (the `SplitMix64` recurrence). Good enough to choose faults, not to keep secrets.
#[derive(Clone, Debug)]
pub(crate) struct Chance {
    state: u64,
}

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        let mut chance = Self { state: seed };
        // Neighbouring seeds begin alike: the first numbers are not used.
        chance.next();
        chance.state ^= chance.next().rotate_left(17);
        chance
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A generator of its own, which later draws from this one do not disturb.
    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.next())
    }

    /// A number from 0 to `bound`, which it does not reach; 0 for an empty range.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// A number from `low` to `high`, both inclusive.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// From 0 to 1, which it does not reach.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Yes, `per_mille` times in a thousand.
    pub(crate) fn happens(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.index(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_its_neighbour_differs() {
        let draw = |seed| {
            let mut chance = Chance::new(seed);
            (0..8).map(|_| chance.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn draws_stay_in_their_ranges() {
        let mut chance = Chance::new(1);
        let mut seen = [0_u32; 6];
        for _ in 0..6000 {
            let drawn = usize::try_from(chance.between(2, 7)).expect("small") - 2;
            seen[drawn] += 1;
            assert!((0.0..1.0).contains(&chance.unit()));
        }
        assert!(seen.iter().all(|count| *count > 800), "{seen:?}");
        assert_eq!(chance.below(0), 0);
    }
}
