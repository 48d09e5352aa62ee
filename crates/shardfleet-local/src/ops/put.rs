//! `PutRecord` and `PutRecords`.

use bytes::Bytes;

use super::{Answer, Input};
use crate::model::{Account, ApiError, Now, Put, shard_name};
use crate::wire::{Value, map};

/// AWS: `PutRecords`, "the total request size limit, including partition keys".
const MAX_CALL_BYTES: usize = 10 * 1024 * 1024;
const MAX_BLOB_BYTES: usize = 10 * 1024 * 1024;

/// A record as a request has it: where its parts lie in the request's arena.
struct Entry<'v> {
    key: std::ops::Range<usize>,
    data: std::ops::Range<usize>,
    explicit_hash: Option<Result<u128, &'v str>>,
}

fn read_entry<'v>(input: &mut Input<'v>, arena: &mut Vec<u8>) -> Entry<'v> {
    let data_from = arena.len();
    input.blob_into("Data", arena);
    let data = data_from..arena.len();
    let key_from = arena.len();
    // Whether a record may lack its key depends on the stream; that is checked later.
    arena.extend_from_slice(input.partition_key().unwrap_or_default().as_bytes());
    if data.len() > MAX_BLOB_BYTES {
        let shown = format!("java.nio.HeapByteBuffer[pos=0 lim={0} cap={0}]", data.len());
        input.refuse(
            &shown,
            "Data",
            &format!("have length less than or equal to {MAX_BLOB_BYTES}"),
        );
    }
    Entry {
        key: key_from..arena.len(),
        data,
        explicit_hash: input.hash_key("ExplicitHashKey"),
    }
}

/// Checks what depends on the stream, and makes the entries share one buffer.
fn finish_entries(
    entries: Vec<Entry<'_>>,
    arena: Vec<u8>,
    max_record_kib: u64,
    auto_distribution: bool,
) -> Result<Vec<Put>, ApiError> {
    let arena = Bytes::from(arena);
    let max = usize::try_from(max_record_kib.saturating_mul(1024)).unwrap_or(usize::MAX);
    let mut total = 0;
    let mut puts = Vec::with_capacity(entries.len());
    for (number, entry) in (1..).zip(entries) {
        let size = entry.key.len() + entry.data.len();
        total += size;
        if size > max {
            return Err(ApiError::validation(format!(
                "1 validation error detected: Value at 'records.{number}.member.data' failed to satisfy constraint: Member must have \
                 length less than or equal to {max} (payload and partition key together have {size} bytes)"
            )));
        }
        if entry.key.is_empty() && !auto_distribution {
            return Err(ApiError::validation(format!(
                "1 validation error detected: Value null at 'records.{number}.member.partitionKey' failed to satisfy constraint: \
                 Member must not be null"
            )));
        }
        let explicit_hash = match entry.explicit_hash {
            None => None,
            Some(Ok(hash)) => Some(hash),
            Some(Err(text)) => {
                return Err(ApiError::invalid(format!(
                    "Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. Specified value was {text}"
                )));
            }
        };
        puts.push(Put {
            key: arena.slice(entry.key),
            explicit_hash,
            data: arena.slice(entry.data),
        });
    }
    if total > MAX_CALL_BYTES {
        return Err(ApiError::invalid(format!(
            "Records size exceeds 10 MiB limit: payloads and partition keys have {total} bytes, {MAX_CALL_BYTES} are allowed"
        )));
    }
    Ok(puts)
}

fn text_of(sequence: &[u8]) -> Value<'static> {
    Value::from(String::from_utf8_lossy(sequence).into_owned())
}

pub(super) fn put_record(account: &mut Account, mut input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    let which = input.stream();
    let mut arena = Vec::new();
    let entry = read_entry(&mut input, &mut arena);
    // Numbers rise in order of arrival anyhow, so the wanted order is always kept.
    input.sequence_number("SequenceNumberForOrdering");
    let ordered = input.has("SequenceNumberForOrdering");
    input.finish()?;
    let stream = account.stream(which, now)?;
    stream.require_usable()?;
    if ordered && stream.meta.auto_distribution {
        return Err(ApiError::invalid(
            "SequenceNumberForOrdering is not supported on a stream with the AUTO record distribution strategy.",
        ));
    }
    let encryption = stream.meta.kms_key.is_some().then_some("KMS");
    let puts = finish_entries(
        vec![entry],
        arena,
        stream.meta.max_record_kib,
        stream.meta.auto_distribution,
    )?;
    let answer = account.put(which, puts, now)?.pop();
    let (shard, record) = answer.unwrap_or_else(|| Err(ApiError::invalid("no record was given")))?;
    Ok(Answer::Value(map([
        ("ShardId", shard_name(shard).into()),
        ("SequenceNumber", text_of(&record.sequence)),
        ("EncryptionType", encryption.into()),
    ])))
}

pub(super) fn put_records(account: &mut Account, mut input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    let which = input.stream();
    let items = input.items("Records", 1, 500);
    let mut arena = Vec::new();
    let mut entries = Vec::with_capacity(items.len().min(500));
    // More than 500 are refused in any case: there is no need to read them.
    for (number, item) in (1..).zip(items.iter().take(500)) {
        let mut inner = Input::new(item);
        entries.push(read_entry(&mut inner, &mut arena));
        if inner.is_faulty() {
            input.absorb(&format!("records.{number}.member"), inner);
        }
    }
    input.finish()?;
    let stream = account.stream(which, now)?;
    stream.require_usable()?;
    let encryption = stream.meta.kms_key.is_some().then_some("KMS");
    let name = stream.meta.name.clone();
    let puts = finish_entries(
        entries,
        arena,
        stream.meta.max_record_kib,
        stream.meta.auto_distribution,
    )?;
    let answers = account.put(which, puts, now)?;
    tracing::trace!(stream = %name, records = answers.len(), "records were put");
    let mut failed = 0usize;
    let results: Vec<Value<'static>> = answers
        .into_iter()
        .map(|answer| match answer {
            Ok((shard, record)) => map([
                ("SequenceNumber", text_of(&record.sequence)),
                ("ShardId", shard_name(shard).into()),
            ]),
            Err(error) => {
                failed += 1;
                map([
                    ("ErrorCode", error.code.into_owned().into()),
                    ("ErrorMessage", error.message.into()),
                ])
            }
        })
        .collect();
    Ok(Answer::Value(map([
        ("FailedRecordCount", failed.into()),
        ("Records", Value::List(results)),
        ("EncryptionType", encryption.into()),
    ])))
}
