//! [`KinesisApi`] over the official AWS SDK. The only module that names its Kinesis types.

use async_trait::async_trait;
use aws_sdk_kinesis::Client;
use aws_sdk_kinesis::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_kinesis::primitives::{Blob, DateTime};
use aws_sdk_kinesis::types::{
    ChildShard as SdkChildShard, PutRecordsRequestEntry, Shard as SdkShard, ShardFilter as SdkShardFilter,
    ShardFilterType, ShardIteratorType,
};
use bytes::Bytes;
use shardfleet_core::hash_range::HashKeyRange;
use shardfleet_core::ids::{ShardId, StreamName};
use shardfleet_core::position::IteratorPosition;
use shardfleet_core::sequence::SequenceNumber;
use shardfleet_core::shard::{ChildShard, Shard};
use shardfleet_core::time::Timestamp;

use super::{
    KinesisApi, KinesisApiError, KinesisApiErrorKind, KinesisRecord, PutOutcome, PutRecord, RecordsPage,
    ShardFilter, StreamSummary,
};
use crate::aws::{AwsSettings, chain};

/// How many pages of shards are read at most: 20 million shards, far beyond any account's quota.
const PAGES_MAX: usize = 20_000;

/// Kinesis through the AWS SDK.
#[derive(Clone, Debug)]
pub struct AwsKinesis {
    client: Client,
}

impl AwsKinesis {
    /// A client with these settings. No call is made yet.
    pub fn new(settings: &AwsSettings) -> Self {
        Self {
            client: Client::new(settings.sdk_config()),
        }
    }

    /// A client with the settings of the environment.
    pub async fn from_env() -> Self {
        Self::new(&AwsSettings::from_env().await)
    }

    /// Creates a stream with so many shards and returns at once; it takes a while to become `ACTIVE`.
    /// A stream of this name that exists already is an error of kind [`KinesisApiErrorKind::NotReady`].
    pub async fn create_stream(&self, stream: &StreamName, shards: u32) -> Result<(), KinesisApiError> {
        let count = i32::try_from(shards).unwrap_or(i32::MAX);
        let request = self
            .client
            .create_stream()
            .stream_name(stream.as_str())
            .shard_count(count);
        request
            .send()
            .await
            .map(|_| ())
            .map_err(|e| failure("CreateStream", stream.as_str(), &e))
    }
}

#[async_trait]
impl KinesisApi for AwsKinesis {
    async fn describe_stream(&self, stream: &StreamName) -> Result<StreamSummary, KinesisApiError> {
        const OPERATION: &str = "DescribeStreamSummary";
        let answer = self
            .client
            .describe_stream_summary()
            .stream_name(stream.as_str())
            .send()
            .await;
        let answer = answer.map_err(|e| failure(OPERATION, stream.as_str(), &e))?;
        let summary = answer
            .stream_description_summary()
            .ok_or_else(|| nonsense(OPERATION, stream.as_str(), "the answer describes no stream"))?;
        Ok(StreamSummary {
            name: summary.stream_name().into(),
            arn: summary.stream_arn().to_owned(),
            status: summary.stream_status().as_str().to_owned(),
            created_at: timestamp(Some(summary.stream_creation_timestamp())),
        })
    }

    async fn list_shards(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
    ) -> Result<Vec<Shard>, KinesisApiError> {
        const OPERATION: &str = "ListShards";
        let mut shards = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let request = self.client.list_shards();
            // AWS: a page is asked for by its token alone; name and filter go with the first only.
            let request = match &token {
                Some(token) => request.next_token(token),
                None => request
                    .stream_name(stream.as_str())
                    .set_shard_filter(sdk_filter(filter)?),
            };
            let answer = request
                .send()
                .await
                .map_err(|e| failure(OPERATION, stream.as_str(), &e))?;
            for shard in answer.shards() {
                shards.push(own_shard(stream, shard)?);
            }
            token = answer.next_token().map(str::to_owned);
            if token.is_none() {
                return Ok(shards);
            }
        }
        Err(nonsense(
            OPERATION,
            stream.as_str(),
            &format!("the listing did not end after {PAGES_MAX} pages"),
        ))
    }

    async fn get_shard_iterator(
        &self,
        stream: &StreamName,
        shard_id: &ShardId,
        position: &IteratorPosition,
    ) -> Result<String, KinesisApiError> {
        const OPERATION: &str = "GetShardIterator";
        let subject = format!("{stream}/{shard_id}");
        let request = self
            .client
            .get_shard_iterator()
            .stream_name(stream.as_str())
            .shard_id(shard_id.as_str());
        let request = match position {
            IteratorPosition::TrimHorizon => request.shard_iterator_type(ShardIteratorType::TrimHorizon),
            IteratorPosition::Latest => request.shard_iterator_type(ShardIteratorType::Latest),
            IteratorPosition::AtTimestamp(at) => request
                .shard_iterator_type(ShardIteratorType::AtTimestamp)
                .timestamp(sdk_time(*at)),
            IteratorPosition::AtSequenceNumber(at) => request
                .shard_iterator_type(ShardIteratorType::AtSequenceNumber)
                .starting_sequence_number(at.as_str()),
            IteratorPosition::AfterSequenceNumber(at) => request
                .shard_iterator_type(ShardIteratorType::AfterSequenceNumber)
                .starting_sequence_number(at.as_str()),
        };
        let answer = request
            .send()
            .await
            .map_err(|e| failure(OPERATION, &subject, &e))?;
        answer
            .shard_iterator
            .ok_or_else(|| nonsense(OPERATION, &subject, "the answer holds no iterator"))
    }

    async fn get_records(
        &self,
        stream: &StreamName,
        iterator: &str,
        limit: u32,
    ) -> Result<RecordsPage, KinesisApiError> {
        const OPERATION: &str = "GetRecords";
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let answer = self
            .client
            .get_records()
            .shard_iterator(iterator)
            .limit(limit)
            .send()
            .await;
        let answer = answer.map_err(|e| failure(OPERATION, stream.as_str(), &e))?;
        let mut records = Vec::with_capacity(answer.records.len());
        for record in answer.records {
            let sequence_number = SequenceNumber::parse(&record.sequence_number)
                .map_err(|e| nonsense(OPERATION, stream.as_str(), &e.to_string()))?;
            records.push(KinesisRecord {
                sequence_number,
                partition_key: own_partition_key(record.partition_key),
                data: Bytes::from(record.data.into_inner()),
                arrived_at: timestamp(record.approximate_arrival_timestamp.as_ref()),
            });
        }
        let children = answer.child_shards.unwrap_or_default();
        Ok(RecordsPage {
            records,
            next_iterator: answer.next_shard_iterator,
            millis_behind_latest: answer.millis_behind_latest.and_then(|ms| u64::try_from(ms).ok()),
            children: children
                .iter()
                .map(|c| own_child(stream, c))
                .collect::<Result<_, _>>()?,
        })
    }

    async fn put_records(
        &self,
        stream: &StreamName,
        records: &[PutRecord],
    ) -> Result<Vec<PutOutcome>, KinesisApiError> {
        const OPERATION: &str = "PutRecords";
        let mut request = self.client.put_records().stream_name(stream.as_str());
        for record in records {
            let entry = PutRecordsRequestEntry::builder()
                .partition_key(&record.partition_key)
                .set_explicit_hash_key(record.explicit_hash_key.clone())
                .data(Blob::new(record.data.as_ref()))
                .build()
                .map_err(|e| nonsense(OPERATION, stream.as_str(), &e.to_string()))?;
            request = request.records(entry);
        }
        let answer = request
            .send()
            .await
            .map_err(|e| failure(OPERATION, stream.as_str(), &e))?;
        if answer.records.len() != records.len() {
            let reason = format!(
                "{} records were put and {} answered",
                records.len(),
                answer.records.len()
            );
            return Err(nonsense(OPERATION, stream.as_str(), &reason));
        }
        Ok(answer
            .records
            .into_iter()
            .map(|entry| {
                let place = entry
                    .sequence_number
                    .as_deref()
                    .and_then(|s| SequenceNumber::parse(s).ok());
                match (entry.shard_id, place) {
                    (Some(shard_id), Some(sequence_number)) => PutOutcome::Put {
                        shard_id: shard_id.into(),
                        sequence_number,
                    },
                    _ => PutOutcome::Refused {
                        code: entry.error_code.unwrap_or_else(|| "none".to_owned()),
                        message: entry.error_message.unwrap_or_default(),
                    },
                }
            })
            .collect())
    }
}

// The SDK's field is optional from the release on that knows streams without partition keys.
fn own_partition_key(key: impl Into<Option<String>>) -> Option<std::sync::Arc<str>> {
    key.into().map(std::sync::Arc::from)
}

fn own_shard(stream: &StreamName, shard: &SdkShard) -> Result<Shard, KinesisApiError> {
    let bad = |reason: String| {
        nonsense(
            "ListShards",
            stream.as_str(),
            &format!("shard {}: {reason}", shard.shard_id()),
        )
    };
    let range = shard
        .hash_key_range()
        .ok_or_else(|| bad("it has no hash key range".into()))?;
    let sequence = shard
        .sequence_number_range()
        .ok_or_else(|| bad("it has no sequence numbers".into()))?;
    let number = |text: &str| SequenceNumber::parse(text).map_err(|e| bad(e.to_string()));
    Ok(Shard {
        shard_id: shard.shard_id().into(),
        parent_shard_id: shard.parent_shard_id().map(ShardId::from),
        adjacent_parent_shard_id: shard.adjacent_parent_shard_id().map(ShardId::from),
        hash_key_range: HashKeyRange::parse(range.starting_hash_key(), range.ending_hash_key())
            .map_err(|e| bad(e.to_string()))?,
        starting_sequence_number: number(sequence.starting_sequence_number())?,
        ending_sequence_number: sequence.ending_sequence_number().map(number).transpose()?,
    })
}

fn own_child(stream: &StreamName, child: &SdkChildShard) -> Result<ChildShard, KinesisApiError> {
    let bad = |reason: &str| {
        nonsense(
            "GetRecords",
            stream.as_str(),
            &format!("child {}: {reason}", child.shard_id()),
        )
    };
    let range = child
        .hash_key_range()
        .ok_or_else(|| bad("it has no hash key range"))?;
    Ok(ChildShard {
        shard_id: child.shard_id().into(),
        parent_shard_ids: child.parent_shards().iter().map(ShardId::new).collect(),
        hash_key_range: HashKeyRange::parse(range.starting_hash_key(), range.ending_hash_key())
            .map_err(|e| bad(&e.to_string()))?,
    })
}

fn sdk_filter(filter: ShardFilter) -> Result<Option<SdkShardFilter>, KinesisApiError> {
    let builder = SdkShardFilter::builder();
    let builder = match filter {
        ShardFilter::All => return Ok(None),
        ShardFilter::AtLatest => builder.r#type(ShardFilterType::AtLatest),
        ShardFilter::AtTrimHorizon => builder.r#type(ShardFilterType::AtTrimHorizon),
        ShardFilter::AtTimestamp(at) => builder
            .r#type(ShardFilterType::AtTimestamp)
            .timestamp(sdk_time(at)),
    };
    builder
        .build()
        .map(Some)
        .map_err(|e| nonsense("ListShards", "shard filter", &e.to_string()))
}

fn sdk_time(at: Timestamp) -> DateTime {
    DateTime::from_millis(i64::try_from(at.millis()).unwrap_or(i64::MAX))
}

fn timestamp(at: Option<&DateTime>) -> Option<Timestamp> {
    let millis = at?.to_millis().ok()?;
    u64::try_from(millis).ok().map(Timestamp::from_millis)
}

fn nonsense(operation: &'static str, subject: &str, reason: &str) -> KinesisApiError {
    KinesisApiError::new(KinesisApiErrorKind::Data, operation, subject, reason)
}

fn failure<E>(operation: &'static str, subject: &str, error: &SdkError<E>) -> KinesisApiError
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    let (kind, reason) = match error {
        SdkError::ServiceError(answer) => {
            let code = answer.err().code();
            let message = answer.err().message().unwrap_or("no message");
            let kind = kind_of(code, message, answer.raw().status().as_u16());
            (
                kind,
                format!(
                    "{} ({message})",
                    code.unwrap_or("an answer without an error code")
                ),
            )
        }
        SdkError::TimeoutError(_) => (
            KinesisApiErrorKind::Unavailable,
            "no answer within 30 s".to_owned(),
        ),
        // Credentials that cannot be loaded show as a request that was never sent.
        SdkError::DispatchFailure(cause) if cause.is_user() || chain(error).contains("credentials") => {
            (KinesisApiErrorKind::Unauthorized, setup_reason(&chain(error)))
        }
        SdkError::DispatchFailure(_) => (KinesisApiErrorKind::Unavailable, chain(error)),
        SdkError::ConstructionFailure(_) => (KinesisApiErrorKind::Unauthorized, setup_reason(&chain(error))),
        SdkError::ResponseError(answer) => {
            let status = answer.raw().status().as_u16();
            let kind = if status < 400 {
                KinesisApiErrorKind::Data
            } else {
                KinesisApiErrorKind::Unavailable
            };
            (kind, format!("HTTP {status}: {}", chain(error)))
        }
        _ => (KinesisApiErrorKind::Unavailable, chain(error)),
    };
    KinesisApiError::new(kind, operation, subject, reason)
}

fn setup_reason(text: &str) -> String {
    format!("{text}; check AWS_REGION, the credentials (environment, profile or role) and the endpoint URL")
}

fn kind_of(code: Option<&str>, message: &str, status: u16) -> KinesisApiErrorKind {
    use KinesisApiErrorKind as Kind;
    match code.unwrap_or_default() {
        "ProvisionedThroughputExceededException"
        | "LimitExceededException"
        | "ThrottlingException"
        | "KMSThrottlingException"
        | "Throttling"
        | "RequestLimitExceeded" => Kind::Throttled,
        "ExpiredIteratorException" => Kind::IteratorExpired,
        "ResourceNotFoundException" => Kind::NotFound,
        "ResourceInUseException" => Kind::NotReady,
        // The only thing that tells a stream that was created again from any other bad argument is this text.
        "InvalidArgumentException" if message.contains("did not come from this stream") => {
            Kind::ForeignSequenceNumber
        }
        "InvalidArgumentException"
        | "ValidationException"
        | "SerializationException"
        | "UnknownOperationException" => Kind::Invalid,
        "AccessDeniedException"
        | "UnrecognizedClientException"
        | "InvalidSignatureException"
        | "MissingAuthenticationTokenException"
        | "IncompleteSignatureException"
        | "ExpiredTokenException"
        | "KMSAccessDeniedException"
        | "OptInRequired" => Kind::Unauthorized,
        "" if status >= 500 => Kind::Unavailable,
        _ if status == 403 => Kind::Unauthorized,
        _ => Kind::Unavailable,
    }
}
