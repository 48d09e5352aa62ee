//! The table `[lease_store]`: where leases and checkpoints are kept.

use std::path::PathBuf;
use std::time::Duration;

use super::section::Section;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LeaseStoreConfig {
    DynamoDb(DynamoDbConfig),
    Sqlite { path: PathBuf },
    Memory,
}

/// The lease table. What is not said is as the library has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DynamoDbConfig {
    pub(crate) table: String,
    pub(crate) application: String,
    pub(crate) attempt_timeout: Option<Duration>,
    pub(crate) prepare_deadline: Option<Duration>,
    pub(crate) scan_deadline: Option<Duration>,
    pub(crate) coordinator_state_table: Option<String>,
    pub(crate) worker_metrics_table: Option<String>,
    pub(crate) point_in_time_recovery: bool,
    pub(crate) deletion_protection: bool,
    pub(crate) tags: Vec<(String, String)>,
    /// Read and write units of a new table; `None` is on-demand.
    pub(crate) capacity: Option<(u32, u32)>,
}

#[derive(Clone, Copy, PartialEq)]
enum StoreKind {
    DynamoDb,
    Sqlite,
    Memory,
}

/// What an account may ask for without a higher quota.
const CAPACITY_MAX: u64 = 40_000;

const OF_DYNAMODB: [&str; 11] = [
    "table",
    "attempt_timeout",
    "prepare_deadline",
    "scan_deadline",
    "coordinator_state_table",
    "worker_metrics_table",
    "point_in_time_recovery",
    "deletion_protection",
    "tags",
    "read_capacity",
    "write_capacity",
];

/// Reads `[lease_store]`.
pub(super) fn read(mut section: Section<'_>, application: &str) -> LeaseStoreConfig {
    let kind = section.choice(
        "type",
        &[
            ("dynamodb", StoreKind::DynamoDb),
            ("sqlite", StoreKind::Sqlite),
            ("memory", StoreKind::Memory),
        ],
    );
    let of_dynamodb = OF_DYNAMODB.map(|key| (key, StoreKind::DynamoDb, "dynamodb"));
    for (key, owner, name) in of_dynamodb
        .into_iter()
        .chain([("path", StoreKind::Sqlite, "sqlite")])
    {
        if section.has(key) && kind != owner {
            let reason = format!("makes no sense without type = \"{name}\"; remove it, or set type");
            section.problem(key, &reason);
        }
    }
    let dynamodb = dynamodb(&mut section, application);
    let has_path = section.has("path");
    let path = section.text("path");
    if kind == StoreKind::Sqlite && !has_path {
        section.problem("path", "is missing; name the file that holds the leases");
    }
    section.finish();
    match kind {
        StoreKind::Sqlite => LeaseStoreConfig::Sqlite {
            path: path.unwrap_or_default().into(),
        },
        StoreKind::Memory => LeaseStoreConfig::Memory,
        StoreKind::DynamoDb => LeaseStoreConfig::DynamoDb(dynamodb),
    }
}

fn dynamodb(section: &mut Section<'_>, application: &str) -> DynamoDbConfig {
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
    DynamoDbConfig {
        table: section.text("table").unwrap_or_else(|| application.to_owned()),
        application: application.to_owned(),
        attempt_timeout: section.optional_duration(
            "attempt_timeout",
            "2s",
            Duration::from_millis(50),
            Duration::from_secs(60),
        ),
        prepare_deadline: section.optional_duration("prepare_deadline", "10m", second, hour),
        scan_deadline: section.optional_duration("scan_deadline", "1m", second, hour),
        coordinator_state_table: section.text("coordinator_state_table"),
        worker_metrics_table: section.text("worker_metrics_table"),
        point_in_time_recovery: section.flag("point_in_time_recovery", false),
        deletion_protection: section.flag("deletion_protection", false),
        tags: tags(section),
        capacity: capacity(section),
    }
}

fn tags(section: &mut Section<'_>) -> Vec<(String, String)> {
    let mut tags = Vec::new();
    for text in section.texts("tags").unwrap_or_default() {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => tags.push((key.to_owned(), value.to_owned())),
            _ => {
                let reason = format!("has {text:?}; tags are written \"key=value\"");
                section.problem("tags", &reason);
            }
        }
    }
    if tags.len() > 50 {
        let reason = format!("has {} tags; DynamoDB allows 50", tags.len());
        section.problem("tags", &reason);
    }
    tags
}

fn capacity(section: &mut Section<'_>) -> Option<(u32, u32)> {
    let given = ["read_capacity", "write_capacity"].map(|key| section.has(key));
    let [read, write] =
        ["read_capacity", "write_capacity"].map(|key| section.integer(key, 1, 1, CAPACITY_MAX));
    match given {
        [false, false] => None,
        [true, true] => Some((u32::try_from(read).ok()?, u32::try_from(write).ok()?)),
        [has_read, _] => {
            let missing = if has_read {
                "write_capacity"
            } else {
                "read_capacity"
            };
            section.problem(
                missing,
                "is missing; a table has read and write capacity, or neither of them and is on-demand",
            );
            None
        }
    }
}
