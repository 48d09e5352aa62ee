//! Brings leases in line with the stream: lists the shards and creates the leases that they lack.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use shardfleet_core::fleet_audit::AuditVerdict;
use shardfleet_core::ids::LeaseKey;
use shardfleet_core::lease::Lease;
use shardfleet_core::position::KinesisPosition;
use shardfleet_core::shard::Shard;
use shardfleet_core::shard_sync::{self, InitialPosition, ShardSyncError, ShardSyncView};
use shardfleet_core::time::Timestamp;

use super::coordinator::Coordinator;
use crate::error::KinesisError;
use crate::kinesis::{KinesisApiError, KinesisApiErrorKind, ShardFilter};

/// What a listing found.
pub(super) struct Listing {
    pub(super) shards: Vec<Shard>,
    /// Every shard was asked for.
    pub(super) is_complete: bool,
    pub(super) stream_created_at: Option<Timestamp>,
    /// Leases were created or completed.
    pub(super) has_changed: bool,
}

impl Coordinator {
    /// Lists the shards and creates the leases that they lack.
    pub(super) async fn sync_shards(
        &mut self,
        leases: &BTreeMap<LeaseKey, Lease>,
    ) -> Result<Listing, KinesisError> {
        let context = std::sync::Arc::clone(&self.context);
        let stream = &context.settings.stream;
        let summary = context
            .kinesis
            .describe_stream(stream)
            .await
            .map_err(KinesisError::Kinesis)?;
        if summary.status == "CREATING" {
            let reason = "the stream is being created; it can be read once it is ACTIVE";
            return Err(not_ready(
                "DescribeStreamSummary",
                stream.as_str(),
                reason.to_owned(),
            ));
        }
        *context
            .stream_created_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = summary.created_at;
        let start = context.settings.start();
        let filter = if leases.is_empty() {
            filter_of(start)
        } else {
            ShardFilter::All
        };
        let is_complete = matches!(filter, ShardFilter::All);
        let shards = context
            .kinesis
            .list_shards(stream, filter)
            .await
            .map_err(KinesisError::Kinesis)?;
        if let Some(KinesisPosition::Sequence(named, _)) = start
            && self.is_first_pass
            && !shards.iter().any(|shard| shard.shard_id == *named)
        {
            let reason = "start_at names this shard, and the stream has none of this id (any more)";
            let subject = format!("{stream}/{named}");
            let error = KinesisApiError::new(KinesisApiErrorKind::NotFound, "ListShards", subject, reason);
            return Err(KinesisError::Kinesis(error));
        }
        let leases: Vec<Lease> = leases.values().cloned().collect();
        let view = ShardSyncView {
            shards: &shards,
            leases: &leases,
            initial_position: initial_position(start),
            named_shard: match start {
                Some(KinesisPosition::Sequence(shard_id, _)) => Some(shard_id),
                _ => None,
            },
            stream_created_at: summary.created_at,
        };
        let plan = shard_sync::plan(&view).map_err(|error| match error {
            ShardSyncError::AnotherStream { .. } => KinesisError::AnotherStream {
                stream: stream.clone(),
                reason: error.to_string(),
            },
            error => not_ready("ListShards", stream.as_str(), error.to_string()),
        })?;
        let audited = self.audit(&leases, &shards).await?;
        for lease in &plan.create {
            // Whoever stood still meanwhile knows an old world: the shard may have been read to its end since, and its row been deleted.
            let age = context.clock.now().since(self.scan_began);
            if age > context.settings.failover_time {
                let reason = format!(
                    "the leases were read {} s ago, longer than failover_time; they are read again before any is created",
                    age.as_secs()
                );
                return Err(not_ready("ListShards", stream.as_str(), reason));
            }
            let is_new = context.store.create(lease).await.map_err(KinesisError::Store)?;
            tracing::info!(lease_key = %lease.lease_key, checkpoint = %lease.checkpoint, is_new, "lease created");
        }
        Ok(Listing {
            has_changed: audited || !plan.create.is_empty(),
            shards,
            is_complete,
            stream_created_at: summary.created_at,
        })
    }

    /// Looks for hash keys that no unfinished lease covers, and completes rows that old releases wrote without a range, by which user records of stale aggregates
    /// are told. Whether there were any such rows.
    async fn audit(&mut self, leases: &[Lease], shards: &[Shard]) -> Result<bool, KinesisError> {
        let audit = self.audit.audit(leases, shards);
        if let AuditVerdict::Hole { hole, seen, sync } = audit.verdict {
            if sync && !leases.is_empty() {
                tracing::warn!(%hole, seen, "no unfinished lease covers these hash keys; the leases they lack are being created");
            } else {
                tracing::debug!(%hole, seen, "no unfinished lease covers these hash keys yet");
            }
        }
        for write in &audit.fill_in {
            self.context
                .store
                .update(write)
                .await
                .map_err(KinesisError::Store)?;
        }
        Ok(!audit.fill_in.is_empty())
    }
}

fn not_ready(operation: &'static str, subject: &str, reason: String) -> KinesisError {
    KinesisError::Kinesis(KinesisApiError::new(
        KinesisApiErrorKind::NotReady,
        operation,
        subject,
        reason,
    ))
}

fn initial_position(start: Option<&KinesisPosition>) -> InitialPosition {
    match start {
        Some(KinesisPosition::Horizon) => InitialPosition::TrimHorizon,
        Some(KinesisPosition::Timestamp(_)) => InitialPosition::AtTimestamp,
        _ => InitialPosition::Latest,
    }
}

/// Which shards an empty table is filled from. From the horizon all are listed, and those without a listed parent are read first: what "open at the trim
/// horizon" means for shards of a moment's life is the service's secret, and a record must not depend on it.
fn filter_of(start: Option<&KinesisPosition>) -> ShardFilter {
    match start {
        Some(KinesisPosition::Horizon | KinesisPosition::Sequence(..)) => ShardFilter::All,
        Some(KinesisPosition::Timestamp(at)) => ShardFilter::AtTimestamp(*at),
        _ => ShardFilter::AtLatest,
    }
}
