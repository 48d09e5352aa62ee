//! What a stream is read with. Plain data: components (clients, stores, clocks) are given to the builder apart from it.

use std::time::Duration;

use shardfleet_core::ids::{ApplicationName, StreamName, WorkerId};
use shardfleet_core::kpl::HashRangeFilter;
use shardfleet_core::position::KinesisPosition;
use shardfleet_core::read_budget::ReadLimits;
use shardfleet_core::reader::ReaderPolicy;

use crate::error::{SettingsError, SettingsProblem};
use crate::fleet_settings::FleetSettings;

/// What happens to records that the Kinesis Producer Library aggregated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aggregates {
    /// They are unpacked, and each user record is delivered and settled by itself.
    #[default]
    Unpack,
    /// They are reported as an error and not delivered.
    Refuse,
}

/// Resolved settings of a subscription or worker.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) stream: StreamName,
    pub(crate) application: ApplicationName,
    pub(crate) worker_id: WorkerId,
    pub(crate) start_at: Option<KinesisPosition>,
    pub(crate) initial_position: Option<KinesisPosition>,
    pub(crate) batch_size: u32,
    pub(crate) poll_interval: Duration,
    pub(crate) read_limits: ReadLimits,
    pub(crate) failover_time: Duration,
    pub(crate) shard_sync_interval: Duration,
    pub(crate) open_deadline: Duration,
    pub(crate) unsettled_records_max: u64,
    pub(crate) unsettled_bytes_max: u64,
    pub(crate) memory_budget: u64,
    pub(crate) aggregates: Aggregates,
    pub(crate) hash_range_filter: HashRangeFilter,
    pub(crate) fleet: FleetSettings,
}

impl Settings {
    /// The defaults; KCL's names in the builder's docs.
    pub(crate) fn new(stream: StreamName) -> Self {
        Self {
            application: ApplicationName::new(stream.as_str()),
            worker_id: WorkerId::new(""),
            stream,
            start_at: None,
            initial_position: None,
            batch_size: 1_000,
            poll_interval: Duration::from_secs(1),
            read_limits: ReadLimits::SERVICE,
            failover_time: Duration::from_secs(10),
            shard_sync_interval: Duration::from_secs(60),
            open_deadline: Duration::from_secs(60),
            unsettled_records_max: 10_000,
            unsettled_bytes_max: 16 << 20,
            memory_budget: 32 << 20,
            aggregates: Aggregates::Unpack,
            hash_range_filter: HashRangeFilter::PerRecord,
            fleet: FleetSettings::default(),
        }
    }

    pub(crate) fn reader_policy(&self) -> ReaderPolicy {
        ReaderPolicy {
            poll_interval: self.poll_interval,
            limits: self.read_limits,
            ..ReaderPolicy::default()
        }
    }

    /// Where a shard without a checkpoint starts, as far as the user said.
    pub(crate) fn start(&self) -> Option<&KinesisPosition> {
        self.start_at.as_ref().or(self.initial_position.as_ref())
    }

    /// Every setting that makes no sense.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        let mut problems = Vec::new();
        let mut refuse = |setting: &str, reason: String| {
            problems.push(SettingsProblem {
                setting: setting.to_owned(),
                reason,
            });
        };
        check_name(&mut refuse, "stream", self.stream.as_str(), 1, 128);
        check_name(&mut refuse, "application", self.application.as_str(), 1, 255);
        if self.worker_id.as_str().trim().is_empty() {
            refuse(
                "worker_id",
                "is empty; give every worker of the application an id of its own".into(),
            );
        }
        // Workers' metrics lie in the table beside leases, the leader's lock and migration states, under the worker's id.
        let id = self.worker_id.as_str();
        if ["Leader", "Migration3.0", "TableMigration3.5"].contains(&id) || id.starts_with("shardId-") {
            refuse(
                "worker_id",
                format!("is {id:?}, which is the key of another row of the lease table; choose another id"),
            );
        }
        if !(1..=10_000).contains(&self.batch_size) {
            refuse(
                "batch_size",
                format!("is {}; 1 to 10,000 records a call are allowed", self.batch_size),
            );
        }
        let mut check_time = |setting: &str, value: Duration, low: Duration, high: Duration| {
            if value < low || value > high {
                refuse(setting, format!("is {value:?}; {low:?} to {high:?} is allowed"));
            }
        };
        let hour = Duration::from_secs(3600);
        check_time(
            "poll_interval",
            self.poll_interval,
            Duration::from_millis(1),
            hour,
        );
        check_time(
            "failover_time",
            self.failover_time,
            Duration::from_millis(300),
            hour,
        );
        check_time(
            "shard_sync_interval",
            self.shard_sync_interval,
            Duration::from_millis(50),
            24 * hour,
        );
        check_time(
            "open_deadline",
            self.open_deadline,
            Duration::from_millis(10),
            hour,
        );
        if self.unsettled_records_max == 0 {
            refuse(
                "unsettled_records_max",
                "is 0; at least one record must be allowed".into(),
            );
        }
        if self.unsettled_bytes_max == 0 {
            refuse(
                "unsettled_bytes_max",
                "is 0; at least one byte must be allowed".into(),
            );
        }
        if self.memory_budget < 1 << 20 {
            refuse(
                "memory_budget",
                format!("is {} bytes; at least 1 MiB is needed", self.memory_budget),
            );
        }
        if let Some(KinesisPosition::Sequence(shard_id, _)) = &self.initial_position {
            refuse(
                "initial_position",
                format!(
                    "is a record of {shard_id}, and other shards would have no start; use the horizon, LATEST or a time, or start_at for one record"
                ),
            );
        }
        problems.extend(self.fleet.problems(self.failover_time));
        if problems.is_empty() {
            Ok(())
        } else {
            Err(SettingsError { problems })
        }
    }
}

fn check_name(
    refuse: &mut impl FnMut(&str, String),
    setting: &str,
    name: &str,
    shortest: usize,
    longest: usize,
) {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !(shortest..=longest).contains(&name.len()) || !name.chars().all(allowed) {
        let reason = format!(
            "is {name:?}; {shortest} to {longest} letters, digits, dots, hyphens and underscores are allowed"
        );
        refuse(setting, reason);
    }
}

#[cfg(test)]
mod tests {
    use shardfleet_core::sequence::SequenceNumber;

    use super::*;

    #[test]
    fn all_problems_are_named_at_once() {
        let mut settings = Settings::new("a stream".into());
        settings.batch_size = 0;
        let record = SequenceNumber::parse("1").expect("digits");
        settings.initial_position = Some(KinesisPosition::sequence("shardId-000000000000", record));
        settings.failover_time = Duration::from_millis(1);
        let problems = settings.check().expect_err("nothing of it makes sense").problems;
        let named: Vec<_> = problems.iter().map(|p| p.setting.as_str()).collect();
        assert_eq!(
            named,
            [
                "stream",
                "application",
                "worker_id",
                "batch_size",
                "failover_time",
                "initial_position"
            ]
        );
    }
}
