//! The counters of a status store under the names that KIP-1278 gives them, and as Prometheus reads them.

use std::fmt::Write;

use shardfleet_core::status::Counters;

use crate::store::StatusStore;

/// The group that KIP-1278 puts them in (JMX: `kafka.connect:type=status-backing-store-metrics`).
pub const GROUP: &str = "status-backing-store-metrics";

/// A counter of a status store.
#[derive(Clone, Copy, Debug)]
pub struct Sensor {
    /// Its name in the group.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    read: fn(&Counters) -> u64,
}

impl Sensor {
    /// Its value.
    pub fn value(&self, counters: &Counters) -> u64 {
        (self.read)(counters)
    }

    /// Its name as Kafka's usual exporters form it: `kafka_connect_status_backing_store_metrics_status_update_retry_total`.
    pub fn prometheus_name(&self) -> String {
        format!("kafka_connect_{GROUP}_{}", self.name).replace('-', "_")
    }
}

/// KIP-1278's three counters, and four of our own. `accepted` is the sum of success, failure, superseded, dropped and what is pending.
pub const SENSORS: [Sensor; 7] = [
    Sensor {
        name: "status-update-retry-total",
        help: "Total number of retry attempts for status updates",
        read: |counters| counters.retry,
    },
    Sensor {
        name: "status-update-failure-total",
        help: "Total number of status updates that failed after all retries",
        read: |counters| counters.failure,
    },
    Sensor {
        name: "status-update-success-total",
        help: "Total number of successful status updates",
        read: |counters| counters.success,
    },
    Sensor {
        name: "status-update-superseded-total",
        help: "Status updates that a newer one replaced before they were written",
        read: |counters| counters.superseded,
    },
    Sensor {
        name: "status-update-dropped-total",
        help: "Status updates that were not written before the end",
        read: |counters| counters.dropped,
    },
    Sensor {
        name: "status-update-refused-total",
        help: "Safe status updates that another worker of a later life had overtaken",
        read: |counters| counters.refused,
    },
    Sensor {
        name: "status-update-accepted-total",
        help: "Status updates that were taken in",
        read: |counters| counters.accepted,
    },
];

/// All of a store's counters, and how many statuses are pending, in Prometheus's text format.
pub fn prometheus(store: &dyn StatusStore) -> String {
    let counters = store.counters();
    let mut text = String::new();
    let mut line = |name: &str, help: &str, kind: &str, value: u64| {
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}").ok();
    };
    for sensor in SENSORS {
        line(
            &sensor.prometheus_name(),
            sensor.help,
            "counter",
            sensor.value(&counters),
        );
    }
    let pending = format!("kafka_connect_{GROUP}_status_update_pending").replace('-', "_");
    let late = u64::try_from(store.late().len()).unwrap_or(u64::MAX);
    line(
        &pending,
        "Keys whose newest status is not written yet",
        "gauge",
        late,
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryStatusStore, StatusKey, StatusState, WorkStatus};

    #[test]
    fn the_sensors_have_the_kips_names_and_count() {
        let store = MemoryStatusStore::new();
        let status = WorkStatus {
            state: StatusState::Running,
            trace: None,
            worker_id: "w".to_owned(),
            generation: 1,
            version: None,
        };
        store
            .put(&StatusKey::connector("a"), status.into())
            .expect("taken");
        let names = SENSORS.map(|sensor| sensor.name);
        assert_eq!(
            names[..3],
            [
                "status-update-retry-total",
                "status-update-failure-total",
                "status-update-success-total"
            ]
        );
        let text = prometheus(&store);
        let line = "\nkafka_connect_status_backing_store_metrics_status_update_success_total 1\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("status_update_pending 0\n"), "{text}");
    }
}
