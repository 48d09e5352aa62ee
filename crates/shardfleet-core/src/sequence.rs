//! Sequence numbers and checkpoints, in the order of the Java KCL.
//!
//! A sequence number is a decimal number of up to 129 digits (56 in use, 186 bits), so it never fits `u128`. A checkpoint
//! is a sequence number with the sub-sequence number of a user record inside an aggregated record, or a sentinel.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The longest sequence number that the service's own model allows, in digits.
pub const MAX_SEQUENCE_NUMBER_DIGITS: usize = 129;

/// A record's sequence number: decimal digits, compared as a number.
///
/// Leading zeros are kept for display (the text goes back to the service as it came) but ignored in comparisons.
#[derive(Clone)]
pub struct SequenceNumber(Arc<str>);

/// A text that is no sequence number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a sequence number: 1 to {MAX_SEQUENCE_NUMBER_DIGITS} decimal digits are expected")]
pub struct SequenceNumberError {
    text: String,
}

impl SequenceNumber {
    /// Reads a sequence number.
    ///
    /// # Errors
    /// When the text is empty, holds anything but ASCII digits, or is longer than [`MAX_SEQUENCE_NUMBER_DIGITS`].
    pub fn parse(text: &str) -> Result<Self, SequenceNumberError> {
        if text.is_empty()
            || text.len() > MAX_SEQUENCE_NUMBER_DIGITS
            || !text.bytes().all(|b| b.is_ascii_digit())
        {
            // A hostile text must not grow the error without bound.
            let text = text.chars().take(MAX_SEQUENCE_NUMBER_DIGITS + 1).collect();
            return Err(SequenceNumberError { text });
        }
        Ok(Self(Arc::from(text)))
    }

    /// The digits as they came.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn significant(&self) -> &str {
        self.0.trim_start_matches('0')
    }
}

impl Ord for SequenceNumber {
    fn cmp(&self, other: &Self) -> Ordering {
        let (a, b) = (self.significant(), other.significant());
        a.len().cmp(&b.len()).then_with(|| a.cmp(b))
    }
}

impl PartialOrd for SequenceNumber {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SequenceNumber {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for SequenceNumber {}

impl std::hash::Hash for SequenceNumber {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.significant().hash(state);
    }
}

impl fmt::Display for SequenceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for SequenceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for SequenceNumber {
    type Err = SequenceNumberError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

/// A place on a shard's log as a lease stores it.
///
/// Order (`KCL: ExtendedSequenceNumber#compareTo`): `AT_TIMESTAMP` < `TRIM_HORIZON` < `LATEST` < every record < `SHARD_END`;
/// records by sequence number, then by sub-sequence number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExtendedSequenceNumber {
    /// Nothing was checkpointed; the shard starts at a time. The time itself is not part of a checkpoint.
    AtTimestamp,
    /// Nothing was checkpointed; the shard starts at the oldest record it still holds.
    TrimHorizon,
    /// Nothing was checkpointed; the shard starts after its newest record.
    Latest,
    /// A user record. For a record that was not aggregated the sub-sequence number is 0.
    At(SequenceNumber, u64),
    /// The shard is closed and every record of it was settled.
    ShardEnd,
}

impl ExtendedSequenceNumber {
    /// Reads what a lease row holds in `checkpoint` and `checkpointSubSequenceNumber`.
    ///
    /// # Errors
    /// When the text is neither a sentinel nor a sequence number.
    pub fn parse(checkpoint: &str, sub_sequence_number: u64) -> Result<Self, SequenceNumberError> {
        Ok(match checkpoint {
            "AT_TIMESTAMP" => Self::AtTimestamp,
            "TRIM_HORIZON" => Self::TrimHorizon,
            "LATEST" => Self::Latest,
            "SHARD_END" => Self::ShardEnd,
            digits => Self::At(SequenceNumber::parse(digits)?, sub_sequence_number),
        })
    }

    /// What a lease row holds in `checkpoint`.
    pub fn checkpoint_text(&self) -> &str {
        match self {
            Self::AtTimestamp => "AT_TIMESTAMP",
            Self::TrimHorizon => "TRIM_HORIZON",
            Self::Latest => "LATEST",
            Self::At(sequence_number, _) => sequence_number.as_str(),
            Self::ShardEnd => "SHARD_END",
        }
    }

    /// What a lease row holds in `checkpointSubSequenceNumber`: 0 for every sentinel.
    pub fn sub_sequence_number(&self) -> u64 {
        match self {
            Self::At(_, sub) => *sub,
            _ => 0,
        }
    }

    /// The sequence number, unless this is a sentinel.
    pub fn sequence_number(&self) -> Option<&SequenceNumber> {
        match self {
            Self::At(sequence_number, _) => Some(sequence_number),
            _ => None,
        }
    }

    /// Whether nothing was checkpointed yet: a sentinel other than `SHARD_END`.
    pub fn is_start(&self) -> bool {
        matches!(self, Self::AtTimestamp | Self::TrimHorizon | Self::Latest)
    }
}

impl fmt::Display for ExtendedSequenceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(sequence_number, 0) => write!(f, "{sequence_number}"),
            Self::At(sequence_number, sub) => write!(f, "{sequence_number}/{sub}"),
            sentinel => f.write_str(sentinel.checkpoint_text()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(text: &str, sub: u64) -> ExtendedSequenceNumber {
        ExtendedSequenceNumber::At(SequenceNumber::parse(text).expect("digits"), sub)
    }

    #[test]
    fn order_is_that_of_the_java_kcl() {
        let real = "49680720141260965517146300220195799793931919996573712386";
        let ordered = [
            ExtendedSequenceNumber::AtTimestamp,
            ExtendedSequenceNumber::TrimHorizon,
            ExtendedSequenceNumber::Latest,
            at("0", 0),
            at("9", 7),
            at("10", 0),
            at("10", 1),
            at(real, 0),
            at(real, 2),
            ExtendedSequenceNumber::ShardEnd,
        ];
        for (i, a) in ordered.iter().enumerate() {
            for (j, b) in ordered.iter().enumerate() {
                assert_eq!(a.cmp(b), i.cmp(&j), "{a} against {b}");
            }
        }
    }

    #[test]
    fn sentinels_and_numbers_survive_the_row() {
        for text in ["AT_TIMESTAMP", "TRIM_HORIZON", "LATEST", "SHARD_END", "0012"] {
            let checkpoint = ExtendedSequenceNumber::parse(text, 0).expect(text);
            assert_eq!(checkpoint.checkpoint_text(), text);
        }
        assert_eq!(
            ExtendedSequenceNumber::parse("LATEST", 5).map(|c| c.sub_sequence_number()),
            Ok(0)
        );
        for bad in ["", "latest", "-1", "1.0", "12a", "١٢"] {
            assert!(
                ExtendedSequenceNumber::parse(bad, 0).is_err(),
                "{bad:?} must be refused"
            );
        }
        assert!(SequenceNumber::parse(&"9".repeat(129)).is_ok());
        assert!(SequenceNumber::parse(&"9".repeat(130)).is_err());
    }

    proptest! {
        #[test]
        fn compares_as_numbers(a in 0_u128.., b in 0_u128.., zeros in 0_usize..5) {
            let left = SequenceNumber::parse(&format!("{}{a}", "0".repeat(zeros))).expect("digits");
            let right = SequenceNumber::parse(&b.to_string()).expect("digits");
            prop_assert_eq!(left.cmp(&right), a.cmp(&b));
            prop_assert_eq!(left == right, a == b);
        }
    }
}
