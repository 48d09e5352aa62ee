//! Hash key ranges: which partition keys belong to a shard.

use std::fmt;
use std::str::FromStr;

use md5::{Digest, Md5};

/// An inclusive range of hash keys. A stream's open shards cover 0 to 2^128 − 1 without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HashKeyRange {
    start: u128,
    end: u128,
}

/// Why two numbers are no hash key range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HashKeyRangeError {
    /// The text is not a decimal number from 0 to 2^128 − 1.
    #[error("hash key {0:?} is not a decimal number from 0 to 340282366920938463463374607431768211455")]
    NotANumber(String),
    /// The range ends before it starts.
    #[error("hash key range starts at {start} and ends before that, at {end}")]
    Reversed {
        /// The start as given.
        start: u128,
        /// The end as given.
        end: u128,
    },
}

impl HashKeyRange {
    /// The whole space: 0 to 2^128 − 1.
    pub const FULL: Self = Self {
        start: 0,
        end: u128::MAX,
    };

    /// A range from `start` to `end`, both inclusive.
    ///
    /// # Errors
    /// [`HashKeyRangeError::Reversed`] when `end` is below `start`.
    pub fn new(start: u128, end: u128) -> Result<Self, HashKeyRangeError> {
        if end < start {
            return Err(HashKeyRangeError::Reversed { start, end });
        }
        Ok(Self { start, end })
    }

    /// Reads the two decimal texts in which the service and the lease table hold a range.
    pub fn parse(start: &str, end: &str) -> Result<Self, HashKeyRangeError> {
        Self::new(parse_hash_key(start)?, parse_hash_key(end)?)
    }

    /// The first hash key inside.
    pub fn start(&self) -> u128 {
        self.start
    }

    /// The last hash key inside.
    pub fn end(&self) -> u128 {
        self.end
    }

    /// Whether `hash_key` lies inside; both ends do.
    pub fn contains(&self, hash_key: u128) -> bool {
        self.start <= hash_key && hash_key <= self.end
    }
}

impl fmt::Display for HashKeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..={}", self.start, self.end)
    }
}

fn parse_hash_key(text: &str) -> Result<u128, HashKeyRangeError> {
    // `u128::from_str` takes a leading plus, which neither the service nor the Java KCL writes.
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(HashKeyRangeError::NotANumber(text.to_owned()));
    }
    u128::from_str(text).map_err(|_| HashKeyRangeError::NotANumber(text.to_owned()))
}

/// The hash key of a partition key: its MD5 read as a big-endian number.
pub fn hash_of_partition_key(partition_key: &[u8]) -> u128 {
    u128::from_be_bytes(Md5::digest(partition_key).into())
}

/// The ranges that leave part of the whole space uncovered, each as the gap itself; empty when all is covered.
/// Overlaps are no gap.
pub fn gaps(ranges: impl IntoIterator<Item = HashKeyRange>) -> Vec<HashKeyRange> {
    let mut sorted: Vec<_> = ranges.into_iter().collect();
    sorted.sort_unstable();
    let mut gaps = Vec::new();
    let mut next_uncovered = Some(0_u128);
    for range in sorted {
        let Some(start) = next_uncovered else { break };
        if range.start > start {
            gaps.push(HashKeyRange {
                start,
                end: range.start - 1,
            });
        }
        if range.end >= start {
            next_uncovered = range.end.checked_add(1);
        }
    }
    if let Some(start) = next_uncovered {
        gaps.push(HashKeyRange {
            start,
            end: u128::MAX,
        });
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_what_the_table_holds_and_refuses_the_rest() {
        let range = HashKeyRange::parse("0", "340282366920938463463374607431768211455");
        assert_eq!(range, Ok(HashKeyRange::FULL));
        for bad in ["", "-1", "+1", "1.0", "340282366920938463463374607431768211456"] {
            assert_eq!(
                HashKeyRange::parse(bad, "5"),
                Err(HashKeyRangeError::NotANumber(bad.to_owned()))
            );
        }
        assert_eq!(
            HashKeyRange::parse("6", "5"),
            Err(HashKeyRangeError::Reversed { start: 6, end: 5 })
        );
    }

    #[test]
    fn partition_key_hash_is_md5_big_endian() {
        assert_eq!(
            hash_of_partition_key(b"user-1"),
            285_573_413_173_782_752_570_879_317_399_258_818_820
        );
    }

    #[test]
    fn finds_gaps_at_both_ends_and_between() {
        let range = |start, end| HashKeyRange { start, end };
        assert_eq!(gaps([]), vec![HashKeyRange::FULL]);
        assert_eq!(gaps([HashKeyRange::FULL]), vec![]);
        assert_eq!(
            gaps([range(20, 29), range(5, 9), range(7, 8)]),
            vec![range(0, 4), range(10, 19), range(30, u128::MAX)]
        );
        assert_eq!(gaps([range(0, 9), range(10, u128::MAX)]), vec![]);
    }

    proptest! {
        #[test]
        fn a_key_is_in_a_gap_exactly_when_no_range_holds_it(
            ends in prop::collection::vec((0_u128..50, 0_u128..50), 0..8),
            key in 0_u128..60,
        ) {
            let ranges: Vec<_> = ends.iter().filter_map(|(a, b)| HashKeyRange::new(*a, *b).ok()).collect();
            let covered = ranges.iter().any(|r| r.contains(key));
            let in_gap = gaps(ranges).iter().any(|g| g.contains(key));
            prop_assert_ne!(covered, in_gap);
        }
    }
}
