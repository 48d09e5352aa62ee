//! Hash keys: where a partition key lands, and how the service cuts the key space into shards.

use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};

/// A range of hash keys, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HashRange {
    pub(crate) start: u128,
    pub(crate) end: u128,
}

impl HashRange {
    pub(crate) fn contains(self, hash: u128) -> bool {
        self.start <= hash && hash <= self.end
    }

    /// True where the other range begins right after this one, or the other way round.
    pub(crate) fn adjoins(self, other: Self) -> bool {
        self.end.checked_add(1) == Some(other.start) || other.end.checked_add(1) == Some(self.start)
    }

    /// The first key of the upper half, where a split at the middle cuts.
    pub(crate) fn middle(self) -> u128 {
        self.start + (self.end - self.start) / 2 + 1
    }
}

/// The hash key of a partition key (AWS: MD5 of the UTF-8 text, read as a big-endian number).
pub(crate) fn hash_of_key(key: &[u8]) -> u128 {
    let digest: [u8; 16] = Md5::digest(key).into();
    u128::from_be_bytes(digest)
}

/// The even cut of the whole key space into `count` ranges, as `CreateStream` makes it: each is ⌊2^128 / count⌋ wide and
/// the last takes what is left.
pub(crate) fn even_ranges(count: u32) -> Vec<HashRange> {
    let n = u128::from(count.max(1));
    if n == 1 {
        return vec![HashRange {
            start: 0,
            end: u128::MAX,
        }];
    }
    // ⌊2^128 / n⌋ without 2^128 itself, which does not fit.
    let width = u128::MAX / n + u128::from(u128::MAX % n == n - 1);
    (0..n)
        .map(|i| HashRange {
            start: i * width,
            end: if i == n - 1 {
                u128::MAX
            } else {
                (i + 1) * width - 1
            },
        })
        .collect()
}
