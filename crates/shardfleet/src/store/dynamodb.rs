//! Leases in DynamoDB, in the table and the layout of the Java KCL 3.x, so that Java and Rust workers share them.
//!
//! Existing rows are only ever changed by update expressions, never written whole: what other versions keep there survives.
//! (A lock that is taken over is written whole, as the lock client does.) Rows that are no leases lie in the same table and
//! say by their `entityType` what they are: the leader's lock, the workers' metrics, migration states. None of them has an
//! owner, so that the index of owners holds leases only. Rows that cannot be read, and kinds of rows that this release
//! does not know, are reported by a scan and left alone.
//!
//! Reads are tried twice by the SDK; a write is tried once. Trying a lost write again would either conflict with
//! itself or count twice, and only the caller knows how to tell: by reading the row back.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{ReturnValue, ReturnValuesOnConditionCheckFailure};
use aws_smithy_http_client::tls;
use shardfleet_core::ids::{LeaseKey, WorkerId};
use shardfleet_core::leader::{LockRow, LockWrite};
use shardfleet_core::lease::{Expectation, Lease, LeaseWrite, WriteOutcome};
use shardfleet_core::worker_metrics::WorkerMetricStats;

use self::error::store_error;
use self::item::Item;
use self::layout::Tables;
use self::table::TableOptions;
use super::{LeaseScan, LeaseStore, StoreError, StoreErrorKind};
use crate::aws::AwsSettings;

#[cfg(test)]
#[path = "../../tests/support/dynamo_json.rs"]
mod dynamo_json;
mod error;
mod expression;
mod item;
mod layout;
mod lock;
mod metrics;
mod migration;
mod scan;
mod start;
mod table;
#[cfg(test)]
mod vectors;

const DEFAULT_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
// KCL waits this long for a new table.
const DEFAULT_PREPARE_DEADLINE: Duration = Duration::from_mins(10);
const DEFAULT_SCAN_DEADLINE: Duration = Duration::from_mins(1);
const READ_ATTEMPTS: u32 = 2;

/// A lease store in a DynamoDB table, shared with Java workers of KCL 3.x.
///
/// **Table.** Leases, the leader's lock, the workers' metrics and migration states are in one table, as KCL 3.5 has them. [`prepare`](LeaseStore::prepare) creates
/// it with its index of owners, and completes one that lacks the index or an option of the builder.
///
/// **Older tables.** An application that began on KCL 3.0 to 3.4 keeps the lock and the migration states in `<application>-CoordinatorState` and the metrics in
/// `<application>-WorkerMetricStats`, until a Java leader of KCL 3.5 with `migrateAllEntitiesToLeaseTable` has moved them. `prepare` uses these tables where it finds
/// the first of them, and notices when the move is complete. It never creates them: Java workers recognise the layout by the mere existence of the first.
/// `prepare` therefore needs the right to describe it, and to read and write both where they exist. A Rust leader does not carry out the move; it waits for a Java
/// leader.
///
/// **Upgrades from KCL 2.x.** `prepare` writes the row `Migration3.0` with the state `CLIENT_VERSION_3X` where there is none, as a Java worker of KCL 3.x does. An
/// application whose upgrade is not finished, can still be rolled back, or was rolled back, is refused with
/// [`StoreErrorKind::Invalid`] and what to do. Workers of KCL 2.x that run without that row cannot be noticed; they must be gone, since they fail on any row
/// that is no lease.
///
/// **Faults at the start.** `prepare` goes on while DynamoDB throttles or makes too many tables or indexes at once, until its deadline, and bears five failures to
/// reach it in a row.
#[derive(Clone, Debug)]
pub struct DynamoDbLeaseStore {
    tables: Arc<Tables>,
    table_options: TableOptions,
    reads: Client,
    writes: Client,
    prepare_deadline: Duration,
    scan_deadline: Duration,
}

/// Builds a [`DynamoDbLeaseStore`]; made by [`DynamoDbLeaseStore::builder`].
#[derive(Clone, Debug)]
pub struct DynamoDbLeaseStoreBuilder {
    table: String,
    application: Option<String>,
    coordinator_table: Option<String>,
    metrics_table: Option<String>,
    table_options: TableOptions,
    sdk_config: SdkConfig,
    attempt_timeout: Duration,
    prepare_deadline: Duration,
    scan_deadline: Duration,
}

impl DynamoDbLeaseStoreBuilder {
    /// How long one request may take. Default 2 s; a renewal that takes longer endangers the lease.
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt_timeout = timeout;
        self
    }

    /// How long [`LeaseStore::prepare`] waits for the table and its index. Default 600 s, as the Java KCL.
    #[must_use]
    pub fn prepare_deadline(mut self, deadline: Duration) -> Self {
        self.prepare_deadline = deadline;
        self
    }

    /// How long a whole scan, or a query of the owner index, may take over all its pages. Default 60 s.
    #[must_use]
    pub fn scan_deadline(mut self, deadline: Duration) -> Self {
        self.scan_deadline = deadline;
        self
    }

    /// The application's name (`KCL: applicationName`), where the lease table has another (`KCL: tableName`). Default: the lease table's. Only the names of the
    /// two tables that KCL 3.0 to 3.4 keeps beside the lease table are made of it.
    #[must_use]
    pub fn application_name(mut self, name: impl Into<String>) -> Self {
        self.application = Some(name.into());
        self
    }

    /// The table in which an application from KCL 3.0 to 3.4 keeps its lock and migration states (`KCL: coordinatorStateTableConfig.tableName`). Default
    /// `<application>-CoordinatorState`. Used where it is found, never created.
    #[must_use]
    pub fn coordinator_state_table(mut self, table: impl Into<String>) -> Self {
        self.coordinator_table = Some(table.into());
        self
    }

    /// The table in which an application from KCL 3.0 to 3.4 keeps its workers' metrics (`KCL: workerMetricsTableConfig.tableName`). Default
    /// `<application>-WorkerMetricStats`. Used where the table of [`coordinator_state_table`](Self::coordinator_state_table) is found, never created.
    #[must_use]
    pub fn worker_metrics_table(mut self, table: impl Into<String>) -> Self {
        self.metrics_table = Some(table.into());
        self
    }

    /// Whether the lease table has point-in-time recovery (`KCL: leaseTablePitrEnabled`). Default false, which leaves a table as it is; true turns it on at
    /// each start where it is off.
    #[must_use]
    pub fn point_in_time_recovery(mut self, is_enabled: bool) -> Self {
        self.table_options.point_in_time_recovery = is_enabled;
        self
    }

    /// Whether the lease table is protected from deletion (`KCL: leaseTableDeletionProtectionEnabled`). Default false, which leaves a table as it is; true turns
    /// it on at each start where it is off.
    #[must_use]
    pub fn deletion_protection(mut self, is_enabled: bool) -> Self {
        self.table_options.deletion_protection = is_enabled;
        self
    }

    /// A tag of the lease table, besides those given before (`KCL: tags`). A table that is there gets it at the next start. Default: none. DynamoDB allows 50.
    #[must_use]
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.table_options.tags.insert(key.into(), value.into());
        self
    }

    /// A new lease table and its index get this many read and write units each (`KCL: billingMode`, `initialLeaseTableReadCapacity`,
    /// `initialLeaseTableWriteCapacity`), 1 at least. Default: on-demand. A table that is there keeps what it has.
    #[must_use]
    pub fn provisioned_capacity(mut self, read_units: u32, write_units: u32) -> Self {
        self.table_options.capacity = Some((read_units.max(1), write_units.max(1)));
        self
    }

    /// The store. Nothing is sent yet.
    pub fn build(self) -> DynamoDbLeaseStore {
        let mut config = aws_sdk_dynamodb::config::Builder::from(&self.sdk_config);
        if self.sdk_config.http_client().is_none() {
            let provider = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring);
            config = config.http_client(
                aws_smithy_http_client::Builder::new()
                    .tls_provider(provider)
                    .build_https(),
            );
        }
        let timeouts = |attempts: u32| {
            // The SDK's own waits between attempts come on top; a second each is ample.
            let whole = self.attempt_timeout.saturating_mul(attempts)
                + Duration::from_secs(u64::from(attempts.saturating_sub(1)));
            TimeoutConfig::builder()
                .connect_timeout(self.attempt_timeout)
                .operation_attempt_timeout(self.attempt_timeout)
                .operation_timeout(whole)
                .build()
        };
        let writes = config
            .clone()
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts(1))
            .build();
        let reads = config
            .retry_config(RetryConfig::standard().with_max_attempts(READ_ATTEMPTS))
            .timeout_config(timeouts(READ_ATTEMPTS))
            .build();
        let application = self.application.as_ref().unwrap_or(&self.table);
        let coordinator = self
            .coordinator_table
            .unwrap_or_else(|| format!("{application}-CoordinatorState"));
        let metrics = self
            .metrics_table
            .unwrap_or_else(|| format!("{application}-WorkerMetricStats"));
        DynamoDbLeaseStore {
            tables: Arc::new(Tables::new(self.table, coordinator, metrics)),
            table_options: self.table_options,
            reads: Client::from_conf(reads),
            writes: Client::from_conf(writes),
            prepare_deadline: self.prepare_deadline,
            scan_deadline: self.scan_deadline,
        }
    }
}

impl DynamoDbLeaseStore {
    /// A store in `table`, which for a KCL application is its `tableName`, by default the application's name.
    pub fn builder(table: impl Into<String>, settings: &AwsSettings) -> DynamoDbLeaseStoreBuilder {
        Self::builder_with_sdk_config(table, settings.sdk_config())
    }

    /// As [`builder`](Self::builder), for programs that configure the AWS SDK themselves: region, credentials, endpoint and
    /// HTTP client come from `sdk_config`, timeouts and retries are the builder's own.
    pub fn builder_with_sdk_config(
        table: impl Into<String>,
        sdk_config: &SdkConfig,
    ) -> DynamoDbLeaseStoreBuilder {
        DynamoDbLeaseStoreBuilder {
            table: table.into(),
            application: None,
            coordinator_table: None,
            metrics_table: None,
            table_options: TableOptions::default(),
            sdk_config: sdk_config.clone(),
            attempt_timeout: DEFAULT_ATTEMPT_TIMEOUT,
            prepare_deadline: DEFAULT_PREPARE_DEADLINE,
            scan_deadline: DEFAULT_SCAN_DEADLINE,
        }
    }

    /// The table's name.
    pub fn table(&self) -> &str {
        &self.tables.leases
    }

    fn doing(&self, what: &str, lease_key: &LeaseKey) -> String {
        format!("{what} lease {lease_key} in {}", self.describe())
    }

    /// The row that a failed condition came back with. Where the service did not send it, it is read.
    async fn row_at_conflict(
        &self,
        lease_key: &LeaseKey,
        item: Option<Item>,
    ) -> Result<Option<Lease>, StoreError> {
        match item.filter(|item| !item.is_empty()) {
            Some(item) => self.read(lease_key, &item),
            None => self.get(lease_key).await,
        }
    }

    fn read(&self, lease_key: &LeaseKey, item: &Item) -> Result<Option<Lease>, StoreError> {
        if !item::is_lease(item) {
            return Ok(None);
        }
        let unreadable =
            |reason| StoreError::new(StoreErrorKind::Data, self.doing("reading", lease_key), reason);
        item::from_item(item).map(Some).map_err(unreadable)
    }

    async fn within_scan_deadline<T>(
        &self,
        doing: String,
        pages: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let late = |_| {
            let reason = format!("not finished after {} s", self.scan_deadline.as_secs());
            StoreError::new(StoreErrorKind::Unavailable, doing, reason)
        };
        tokio::time::timeout(self.scan_deadline, Box::pin(pages))
            .await
            .map_err(late)?
    }
}

#[async_trait]
impl LeaseStore for DynamoDbLeaseStore {
    async fn prepare(&self) -> Result<(), StoreError> {
        start::prepare(self).await
    }

    async fn get(&self, lease_key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        let output = self
            .reads
            .get_item()
            .table_name(&self.tables.leases)
            .key(item::LEASE_KEY, item::text(lease_key.as_str()))
            .consistent_read(true)
            .send()
            .await
            .map_err(|error| store_error(self.doing("reading", lease_key), error))?;
        match output.item {
            Some(item) => self.read(lease_key, &item),
            None => Ok(None),
        }
    }

    async fn scan(&self) -> Result<LeaseScan, StoreError> {
        self.within_scan_deadline(format!("scanning {}", self.describe()), self.scan_all())
            .await
    }

    async fn owned_by(&self, worker: &WorkerId) -> Result<Vec<LeaseKey>, StoreError> {
        self.within_scan_deadline(self.listing(worker), self.owned_pages(worker))
            .await
    }

    async fn create(&self, lease: &Lease) -> Result<bool, StoreError> {
        let expressions = expression::of_create();
        let sent = self
            .writes
            .put_item()
            .table_name(&self.tables.leases)
            .set_item(Some(item::to_item(lease)))
            .set_condition_expression(expressions.condition)
            .set_expression_attribute_names(expressions.names)
            .send()
            .await;
        match sent {
            Ok(_) => Ok(true),
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(PutItemError::is_conditional_check_failed_exception) =>
            {
                Ok(false)
            }
            Err(error) => Err(store_error(self.doing("creating", &lease.lease_key), error)),
        }
    }

    async fn update(&self, write: &LeaseWrite) -> Result<WriteOutcome, StoreError> {
        let key = &write.lease_key;
        let expressions = expression::of_update(&write.expect, &write.change);
        let sent = self
            .writes
            .update_item()
            .table_name(&self.tables.leases)
            .key(item::LEASE_KEY, item::text(key.as_str()))
            .set_condition_expression(expressions.condition)
            .set_update_expression(expressions.update)
            .set_expression_attribute_names(expressions.names)
            .set_expression_attribute_values(expressions.values)
            .return_values(ReturnValue::AllNew)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        let error = match sent {
            Ok(output) => {
                let item = output.attributes.unwrap_or_default();
                let unreadable =
                    |reason| StoreError::new(StoreErrorKind::Data, self.doing("writing", key), reason);
                return item::from_item(&item)
                    .map(WriteOutcome::Written)
                    .map_err(unreadable);
            }
            Err(error) => error,
        };
        match error.as_service_error() {
            Some(UpdateItemError::ConditionalCheckFailedException(failed)) => {
                let row = self.row_at_conflict(key, failed.item.clone()).await;
                row.map(WriteOutcome::Conflict)
                    .map_err(StoreError::without_side_effects)
            }
            _ => Err(store_error(self.doing("writing", key), error)),
        }
    }

    async fn delete(&self, lease_key: &LeaseKey, expect: &Expectation) -> Result<bool, StoreError> {
        let expressions = expression::of_delete(expect);
        let sent = self
            .writes
            .delete_item()
            .table_name(&self.tables.leases)
            .key(item::LEASE_KEY, item::text(lease_key.as_str()))
            .set_condition_expression(expressions.condition)
            .set_expression_attribute_names(expressions.names)
            .set_expression_attribute_values(expressions.values)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        let Err(error) = sent else { return Ok(true) };
        match error.as_service_error() {
            Some(DeleteItemError::ConditionalCheckFailedException(failed)) => {
                let row = self.row_at_conflict(lease_key, failed.item.clone()).await;
                row.map(|row| row.is_none())
                    .map_err(StoreError::without_side_effects)
            }
            _ => Err(store_error(self.doing("deleting", lease_key), error)),
        }
    }

    async fn read_leader_lock(&self) -> Result<Option<LockRow>, StoreError> {
        self.read_lock().await
    }

    async fn write_leader_lock(&self, write: &LockWrite) -> Result<bool, StoreError> {
        self.write_lock(write).await
    }

    async fn put_worker_metrics(&self, row: &WorkerMetricStats) -> Result<(), StoreError> {
        self.put_metrics(row).await
    }

    async fn delete_worker_metrics(
        &self,
        worker: &WorkerId,
        last_update_seconds: Option<u64>,
    ) -> Result<bool, StoreError> {
        self.delete_metrics(worker, last_update_seconds).await
    }

    fn describe(&self) -> String {
        format!("DynamoDB table {}", self.tables.leases)
    }
}
