//! The opaque texts that clients hand back: shard iterators and list tokens.
//!
//! They carry everything they stand for, so the service remembers nothing per reader. A checksum tells a garbled text;
//! it does not keep anybody from making one up, which a local service need not.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// What a shard iterator says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IteratorToken {
    /// The stream's incarnation: a stream made again under the same name has another.
    pub(crate) stream_id: u64,
    pub(crate) stream: String,
    pub(crate) shard: u32,
    /// The index of the next record to read.
    pub(crate) index: u64,
    pub(crate) issued_ms: u64,
    /// Rises with each iterator given out, so that those given out so far can be expired.
    pub(crate) issue: u64,
}

impl IteratorToken {
    pub(crate) fn encode(&self) -> String {
        let mut fields = Vec::with_capacity(48 + self.stream.len());
        fields.push(b'i');
        for number in [
            self.stream_id,
            u64::from(self.shard),
            self.index,
            self.issued_ms,
            self.issue,
        ] {
            fields.extend_from_slice(&number.to_be_bytes());
        }
        fields.extend_from_slice(self.stream.as_bytes());
        seal(fields)
    }

    pub(crate) fn decode(text: &str) -> Option<Self> {
        let fields = unseal(text, b'i')?;
        let (numbers, name) = fields.split_at_checked(40)?;
        let number = |i: usize| {
            Some(u64::from_be_bytes(
                numbers.get(i * 8..i * 8 + 8)?.try_into().ok()?,
            ))
        };
        Some(Self {
            stream_id: number(0)?,
            shard: u32::try_from(number(1)?).ok()?,
            index: number(2)?,
            issued_ms: number(3)?,
            issue: number(4)?,
            stream: String::from_utf8(name.to_vec()).ok()?,
        })
    }
}

/// Where a listing goes on. `what` names the listing and its terms; a token is good for that listing alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListToken {
    pub(crate) issued_ms: u64,
    pub(crate) stream_id: u64,
    pub(crate) stream: String,
    pub(crate) what: String,
    /// The last item that was listed.
    pub(crate) after: String,
}

impl ListToken {
    pub(crate) fn encode(&self) -> String {
        let mut fields = vec![b'l'];
        fields.extend_from_slice(&self.issued_ms.to_be_bytes());
        fields.extend_from_slice(&self.stream_id.to_be_bytes());
        // None of the three texts can hold a line break.
        fields.extend_from_slice([&*self.stream, &*self.what, &*self.after].join("\n").as_bytes());
        seal(fields)
    }

    pub(crate) fn decode(text: &str) -> Option<Self> {
        let fields = unseal(text, b'l')?;
        let (numbers, texts) = fields.split_at_checked(16)?;
        let mut texts = std::str::from_utf8(texts).ok()?.split('\n').map(str::to_owned);
        Some(Self {
            issued_ms: u64::from_be_bytes(numbers.get(..8)?.try_into().ok()?),
            stream_id: u64::from_be_bytes(numbers.get(8..)?.try_into().ok()?),
            stream: texts.next()?,
            what: texts.next()?,
            after: texts.next()?,
        })
    }
}

fn seal(mut fields: Vec<u8>) -> String {
    let sum = crc32fast::hash(&fields);
    fields.extend_from_slice(&sum.to_be_bytes());
    STANDARD.encode(fields)
}

fn unseal(text: &str, kind: u8) -> Option<Vec<u8>> {
    let mut bytes = STANDARD.decode(text).ok()?;
    let body = bytes.len().checked_sub(4)?;
    let sum = bytes.split_off(body);
    if crc32fast::hash(&bytes).to_be_bytes() != *sum || bytes.first() != Some(&kind) {
        return None;
    }
    bytes.remove(0);
    Some(bytes)
}
