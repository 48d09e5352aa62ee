//! Whatever files and documents hold: a percentage, nothing, or an error. Never a panic, never NaN.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use shardfleet::worker_metrics::{
    CgroupMemory, CgroupV1Cpu, CgroupV2Cpu, Direction, EcsCpu, EcsMemory, EcsNetwork, HostMemory, LinuxCpu,
    MetricError, ProcNetDev, ProcessCpu, WorkerMetric,
};

use crate::support::{Answer, FakeAgent, Machine, document};

fn is_sound(reading: &Result<Option<f64>, MetricError>) -> bool {
    !matches!(reading, Ok(Some(percent)) if !(0.0..=100.0).contains(percent))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// A word as these files have them, and some that they do not have.
fn word() -> impl Strategy<Value = String> {
    let names = [
        "cpu",
        "max",
        "-1",
        "0",
        "0-3",
        "usage_usec",
        "inactive_file",
        "total_inactive_file",
        "MemTotal:",
        "MemAvailable:",
        "eth0:",
        "(x)",
        "\n",
        "18446744073709551615",
    ];
    prop_oneof![
        prop::sample::select(names.to_vec()).prop_map(str::to_owned),
        any::<u64>().prop_map(|number| number.to_string()),
        (0_u64..1000).prop_map(|number| number.to_string()),
        "\\PC{0,4}",
    ]
}

fn text() -> impl Strategy<Value = String> {
    let usual = prop_oneof![
        prop::collection::vec(any::<u64>(), 5..10).prop_map(|counters| {
            let counters: Vec<_> = counters.iter().map(u64::to_string).collect();
            format!("cpu {}\n", counters.join(" "))
        }),
        any::<u64>().prop_map(|number| format!("{number}\n")),
        any::<u64>().prop_map(|number| format!("usage_usec {number}\n")),
        (any::<u64>(), any::<u64>()).prop_map(|(a, b)| format!("MemTotal: {a} kB\nMemAvailable: {b} kB\n")),
        (any::<u64>(), any::<u64>()).prop_map(|(a, b)| format!("eth0:{a} 0 0 0 0 0 0 0 {b}\n")),
        (any::<u64>(), any::<u64>()).prop_map(|(a, b)| format!("{a} {b}\n")),
    ];
    prop_oneof![
        usual,
        prop::collection::vec(word(), 0..30).prop_map(|words| words.join(" ")),
    ]
}

const PATHS: [&str; 17] = [
    "proc/stat",
    "proc/self/stat",
    "proc/meminfo",
    "proc/net/dev",
    "proc/net/route",
    "sys/devices/system/cpu/online",
    "sys/fs/cgroup/cpu.stat",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/cpuset.cpus.effective",
    "sys/fs/cgroup/memory.current",
    "sys/fs/cgroup/memory.max",
    "sys/fs/cgroup/memory.stat",
    "sys/fs/cgroup/cpu/cpuacct.usage",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us",
    "sys/fs/cgroup/memory/memory.usage_in_bytes",
    "sys/fs/cgroup/memory/memory.stat",
];

/// Any value where the document has a number.
fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!(0)),
        Just(json!(u64::MAX)),
        any::<u64>().prop_map(|number| json!(number)),
        any::<i64>().prop_map(|number| json!(number)),
        (0_u64..5).prop_map(|number| json!(number)),
        any::<f64>().prop_map(|number| json!(number)),
        Just(json!("text")),
        Just(json!([])),
        Just(json!({})),
    ]
}

const STATS: [&str; 12] = [
    "/cpu_stats/cpu_usage/total_usage",
    "/precpu_stats/cpu_usage/total_usage",
    "/cpu_stats/system_cpu_usage",
    "/precpu_stats/system_cpu_usage",
    "/cpu_stats/online_cpus",
    "/cpu_stats",
    "/precpu_stats",
    "/memory_stats/usage",
    "/memory_stats/limit",
    "/memory_stats/stats",
    "/networks/eth1/rx_bytes",
    "/networks",
];
const TASK: [&str; 6] = [
    "/Limits/CPU",
    "/Limits",
    "/Containers/0/Limits/CPU",
    "/Containers/1/Limits/CPU",
    "/Containers/0/DockerId",
    "/Containers",
];

fn mutated(name: &str, changes: &[(&'static str, Value)]) -> Answer {
    let mut json: Value = serde_json::from_str(&document(name)).expect("JSON");
    for (pointer, value) in changes {
        // An earlier change may have taken the place away.
        if let Some(place) = json.pointer_mut(pointer) {
            *place = value.clone();
        }
    }
    Answer::Json(json.to_string())
}

fn changes(pointers: &'static [&'static str]) -> impl Strategy<Value = Vec<(&'static str, Value)>> {
    prop::collection::vec((prop::sample::select(pointers), value()), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_files_are_survived(rounds in prop::collection::vec((text(), prop::collection::vec((0..PATHS.len(), text()), 0..6), 0_u64..3_000), 1..4)) {
        let machine = Machine::new();
        let files = machine.files();
        let metrics: Vec<Box<dyn WorkerMetric>> = vec![
            Box::new(LinuxCpu::new(files.clone(), 100)),
            Box::new(ProcessCpu::new(files.clone(), 100)),
            Box::new(CgroupV2Cpu::new(files.clone(), 100)),
            Box::new(CgroupV1Cpu::new(files.clone(), 100)),
            Box::new(HostMemory::new(files.clone(), 100)),
            Box::new(CgroupMemory::v2(files.clone(), 100)),
            Box::new(CgroupMemory::v1(files.clone(), 100)),
            Box::new(ProcNetDev::new(files.clone(), 100, Direction::In, None, 1.0)),
            Box::new(ProcNetDev::new(files, 100, Direction::Out, Some("eth0".to_owned()), 1e-300)),
        ];
        runtime().block_on(async {
            for (all, some, millis) in rounds {
                for path in PATHS {
                    machine.write(path, &all);
                }
                for (index, text) in some {
                    machine.write(PATHS[index], &text);
                }
                for metric in &metrics {
                    let reading = metric.read().await;
                    prop_assert!(is_sound(&reading), "{}: {reading:?}", metric.short_name());
                }
                machine.clock.pass(Duration::from_millis(millis));
            }
            Ok(())
        })?;
    }

    #[test]
    fn any_documents_are_survived(rounds in prop::collection::vec((changes(&STATS), changes(&TASK)), 1..4)) {
        runtime().block_on(async {
            let agent = FakeAgent::of("ec2").await;
            let endpoint = agent.endpoint();
            let metrics: Vec<Box<dyn WorkerMetric>> = vec![
                Box::new(EcsCpu::new(endpoint.clone(), 100)),
                Box::new(EcsMemory::new(endpoint.clone(), 100)),
                Box::new(EcsNetwork::new(endpoint, 100, Direction::In, 1.0)),
            ];
            for (stats, task) in rounds {
                agent
                    .tell("/stats", mutated("ec2-stats", &stats))
                    .tell("/task", mutated("ec2-task", &task));
                for metric in &metrics {
                    let reading = metric.read().await;
                    prop_assert!(is_sound(&reading), "{}: {reading:?}", metric.short_name());
                }
            }
            Ok(())
        })?;
    }
}
