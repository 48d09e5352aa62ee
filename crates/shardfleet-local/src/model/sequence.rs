//! Sequence numbers, built as the service builds them.
//!
//! A number of 188 bits, always 56 decimal digits:
//!
//! ```text
//! bit 184      148        144   80            72     36            4       0
//!  | version 2 | shard made | 0 | record index | 0 | record time | shard | 2 |
//! ```
//!
//! Times are whole seconds. The shard's making comes first, so a child's numbers lie above its parents' and a new
//! stream's above those of an older one; within a shard the index alone decides.

/// Digits of every sequence number.
pub(crate) const DIGITS: usize = 56;

/// The index that no record reaches: a closed shard's ending sequence number carries it.
pub(crate) const END_INDEX: u64 = i64::MAX as u64;

const SECONDS_MASK: u64 = (1 << 36) - 1;
const TEN_19: u128 = 10_000_000_000_000_000_000;

/// A sequence number taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequence {
    /// The second in which the shard was made, or later: no two makings in an account share one.
    pub(crate) made_secs: u64,
    /// Number of the record in its shard. 0 is the shard's starting sequence number.
    pub(crate) index: u64,
    /// The second of the record's arrival.
    pub(crate) time_secs: u64,
    /// Number of the shard in its stream.
    pub(crate) shard: u32,
}

impl Sequence {
    /// The decimal text.
    pub(crate) fn to_digits(self) -> [u8; DIGITS] {
        let high = (2 << 56) | ((self.made_secs & SECONDS_MASK) << 20) | (self.index >> 48);
        let low = (u128::from(self.index & 0xFFFF_FFFF_FFFF) << 80)
            | (u128::from(self.time_secs & SECONDS_MASK) << 36)
            | (u128::from(self.shard) << 4)
            | 2;
        let mut limbs = [u128::from(high), low >> 64, low & u128::from(u64::MAX)];
        let mut digits = [b'0'; DIGITS];
        let mut end = DIGITS;
        // 19 digits at a time, lowest first: the remainders of three divisions by 10^19.
        while end > 0 {
            let mut rest = 0u128;
            for limb in &mut limbs {
                let part = (rest << 64) | *limb;
                *limb = part / TEN_19;
                rest = part % TEN_19;
            }
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a remainder of 10^19 fits 64 bits"
            )]
            let mut rest = rest as u64;
            let start = end.saturating_sub(19);
            for digit in digits[start..end].iter_mut().rev() {
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
            end = start;
        }
        digits
    }

    /// The decimal text as a `String`.
    pub(crate) fn to_text(self) -> String {
        String::from_utf8_lossy(&self.to_digits()).into_owned()
    }

    /// Takes a text apart. `None` where it is no number that this service gives out.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() != DIGITS || !text.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        // Three limbs of 64 bits, highest first; each digit multiplies by ten.
        let mut limbs = [0u64; 3];
        for digit in text.bytes() {
            let mut carry = u128::from(digit - b'0');
            for limb in limbs.iter_mut().rev() {
                let part = u128::from(*limb) * 10 + carry;
                #[expect(clippy::cast_possible_truncation, reason = "the low half is what stays")]
                {
                    *limb = part as u64;
                }
                carry = part >> 64;
            }
            if carry != 0 {
                return None;
            }
        }
        let [high, mid, low] = limbs;
        let low = (u128::from(mid) << 64) | u128::from(low);
        if high >> 56 != 2 || low & 0xF != 2 {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "each field is masked to its width"
        )]
        Some(Self {
            made_secs: (high >> 20) & SECONDS_MASK,
            index: ((high & 0xFFFF) << 48) | ((low >> 80) as u64 & 0xFFFF_FFFF_FFFF),
            time_secs: (low >> 36) as u64 & SECONDS_MASK,
            shard: (low >> 4) as u32,
        })
    }
}
