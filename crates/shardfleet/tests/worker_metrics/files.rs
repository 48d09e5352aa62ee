//! Figures from the files of a kernel.

use std::time::Duration;

use shardfleet::worker_metrics::{
    CgroupMemory, CgroupV1Cpu, CgroupV2Cpu, Direction, HostMemory, LinuxCpu, ProcNetDev, ProcessCpu,
    WorkerMetric,
};

use crate::support::{Machine, assert_near};

const KERNELS: [(&str, &str); 4] = [
    (
        "2.4, one CPU, five counters",
        include_str!("data/proc_stat/linux-2.4-uniprocessor.txt"),
    ),
    ("2.6.32", include_str!("data/proc_stat/linux-2.6.32-vm.txt")),
    (
        "5.10 on Nitro",
        include_str!("data/proc_stat/linux-5.10-nitro.txt"),
    ),
    (
        "6.12 with 192 CPUs",
        include_str!("data/proc_stat/linux-6.12-192-cpus.txt"),
    ),
];

/// The text with `added` ticks for user, nice, system, idle and I/O wait on its first line.
fn later(text: &str, added: [u64; 5]) -> String {
    let (first, rest) = text.split_once('\n').expect("lines");
    let mut words: Vec<String> = first.split_whitespace().map(str::to_owned).collect();
    for (word, added) in words.iter_mut().skip(1).zip(added) {
        *word = (word.parse::<u64>().expect("a counter") + added).to_string();
    }
    format!("{}\n{rest}", words.join(" "))
}

#[tokio::test]
async fn the_machines_cpu_on_every_kernel() {
    for (kernel, text) in KERNELS {
        let machine = Machine::new();
        let metric = LinuxCpu::new(machine.files(), 90);
        assert_eq!((metric.short_name(), metric.operating_range()), ("C", 90));
        machine.write("proc/stat", text);
        assert_eq!(metric.read().await, Ok(None), "{kernel}: nothing to compare with");
        machine.write("proc/stat", &later(text, [20, 5, 10, 60, 5]));
        assert_near(metric.read().await.expect(kernel), 40.0);
        assert_eq!(metric.read().await, Ok(None), "{kernel}: no tick since");
        machine.write("proc/stat", text);
        assert_near(metric.read().await.expect("counters that began anew"), 0.0);
    }
}

#[tokio::test]
async fn a_file_that_is_missing_or_odd_is_named() {
    let machine = Machine::new();
    let metric = LinuxCpu::new(machine.files(), 100);
    let error = metric.read().await.expect_err("no file");
    assert!(
        error.what.ends_with("/proc/stat") && error.reason == "no such file",
        "{error}"
    );
    for odd in [
        "",
        "cpu 1 2 3",
        "cpu0 1 2 3 4 5",
        "cpu a b c d e",
        "cpu -1 2 3 4 5",
    ] {
        machine.write("proc/stat", odd);
        let error = metric.read().await.expect_err(odd).to_string();
        assert!(
            error.contains("expected `cpu` and at least five counters"),
            "{error}"
        );
    }
    machine.write("proc/stat", KERNELS[0].1);
    assert_eq!(metric.read().await, Ok(None), "it works again");
}

#[tokio::test]
async fn a_process_is_told_apart_from_its_machine() {
    let machine = Machine::new();
    let stat = |user: u32, system: u32| {
        format!("4242 (a (nasty) name) S 1 4242 4242 0 -1 4194560 900 0 0 0 {user} {system} 0 0 20 0 9 0 123")
    };
    machine
        .write("proc/self/stat", &stat(100, 50))
        .write("proc/stat", "cpu  100 0 100 800 0 0 0 0 0 0\n");
    let metric = ProcessCpu::new(machine.files(), 100);
    assert_eq!(metric.read().await, Ok(None));
    machine
        .write("proc/self/stat", &stat(110, 55))
        .write("proc/stat", "cpu  150 0 110 910 20 0 5 5 7 7\n");
    assert_near(metric.read().await.expect("both files"), 7.5);
    machine.write("proc/self/stat", "4242 (short) S 1");
    assert!(
        metric
            .read()
            .await
            .expect_err("too short")
            .what
            .ends_with("proc/self/stat")
    );
}

#[tokio::test]
async fn a_cgroup_of_version_2_is_measured_against_its_limit() {
    let machine = Machine::new();
    let stat = |micros: u64| {
        format!(
            "usage_usec {micros}\nuser_usec 1\nsystem_usec 1\nnr_periods 9\nnr_throttled 0\nthrottled_usec 0\n"
        )
    };
    machine
        .write("sys/fs/cgroup/cpu.stat", &stat(1_000_000))
        .write("sys/fs/cgroup/cpu.max", "50000 100000\n");
    let metric = CgroupV2Cpu::new(machine.files(), 100);
    assert_eq!(metric.read().await, Ok(None));
    machine.clock.pass(Duration::from_secs(2));
    machine.write("sys/fs/cgroup/cpu.stat", &stat(1_250_000));
    assert_near(metric.read().await.expect("half a CPU"), 25.0);

    // The pod is given two CPUs while it runs.
    machine.write("sys/fs/cgroup/cpu.max", "200000 100000\n");
    machine.clock.pass(Duration::from_secs(1));
    machine.write("sys/fs/cgroup/cpu.stat", &stat(2_250_000));
    assert_near(metric.read().await.expect("two CPUs"), 50.0);

    // Without a quota its set of CPUs counts, and without a set the machine's.
    machine
        .write("sys/fs/cgroup/cpu.max", "max 100000\n")
        .write("sys/fs/cgroup/cpuset.cpus.effective", "0-1,4,6\n");
    machine.clock.pass(Duration::from_secs(1));
    machine.write("sys/fs/cgroup/cpu.stat", &stat(3_250_000));
    assert_near(metric.read().await.expect("four CPUs"), 25.0);
    machine.remove("sys/fs/cgroup/cpuset.cpus.effective");
    machine.remove("sys/fs/cgroup/cpu.max");
    machine.write("sys/devices/system/cpu/online", "0-9\n");
    machine.clock.pass(Duration::from_secs(1));
    machine.write("sys/fs/cgroup/cpu.stat", &stat(4_250_000));
    assert_near(metric.read().await.expect("ten CPUs"), 10.0);

    assert_eq!(metric.read().await, Ok(None), "no time has passed");
    machine.clock.pass(Duration::from_secs(1));
    machine.write("sys/fs/cgroup/cpu.stat", &stat(5));
    assert_eq!(metric.read().await, Ok(None), "the counter began anew");
    for (path, text) in [
        ("sys/fs/cgroup/cpu.max", "0 100000"),
        ("sys/fs/cgroup/cpu.max", "100000 0"),
        ("sys/fs/cgroup/cpu.max", ""),
        ("sys/fs/cgroup/cpu.stat", "user_usec 1"),
    ] {
        machine.write("sys/fs/cgroup/cpu.max", "max 100000");
        machine.write(path, text);
        let error = metric.read().await.expect_err(text);
        assert!(error.what.ends_with(path), "{error}");
    }
}

#[tokio::test]
async fn a_cgroup_of_version_1_is_measured_against_its_limit_wherever_it_is_mounted() {
    for usage in [
        "sys/fs/cgroup/cpu/cpuacct.usage",
        "sys/fs/cgroup/cpuacct/cpuacct.usage",
    ] {
        let machine = Machine::new();
        machine
            .write(usage, "1000000000\n")
            .write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n")
            .write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
        let metric = CgroupV1Cpu::new(machine.files(), 100);
        assert_eq!(metric.read().await, Ok(None));
        machine.clock.pass(Duration::from_secs(1));
        machine.write(usage, "1750000000\n");
        assert_near(metric.read().await.expect("1.5 CPUs"), 50.0);
        machine
            .write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
            .write("sys/fs/cgroup/cpuset/cpuset.cpus", "0-2\n")
            .write(usage, "3250000000\n");
        machine.clock.pass(Duration::from_secs(1));
        assert_near(metric.read().await.expect("three CPUs"), 50.0);
        machine.write(usage, "a lot");
        let error = metric.read().await.expect_err("no number").to_string();
        assert!(error.contains("\"a lot\"; expected nanoseconds"), "{error}");
    }
}

const MEMINFO: &str = "MemTotal:        8000 kB\nMemFree:          100 kB\nMemAvailable:    6000 kB\n";

#[tokio::test]
async fn memory_without_what_can_be_dropped() {
    let machine = Machine::new();
    machine.write("proc/meminfo", MEMINFO);
    let host = HostMemory::new(machine.files(), 80);
    assert_eq!((host.short_name(), host.operating_range()), ("M", 80));
    assert_near(host.read().await.expect("meminfo"), 25.0);

    machine
        .write("sys/fs/cgroup/memory.current", "3072000\n")
        .write("sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 1024000\n")
        .write("sys/fs/cgroup/memory.max", "4096000\n");
    let v2 = CgroupMemory::v2(machine.files(), 100);
    assert_near(v2.read().await.expect("version 2"), 50.0);
    machine.write("sys/fs/cgroup/memory.max", "max\n");
    assert_near(v2.read().await.expect("without a limit"), 25.0);

    machine
        .write("sys/fs/cgroup/memory/memory.usage_in_bytes", "3072000\n")
        .write(
            "sys/fs/cgroup/memory/memory.stat",
            "inactive_file 7\ntotal_inactive_file 1024000\n",
        )
        .write(
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
    assert_near(
        CgroupMemory::v1(machine.files(), 100)
            .read()
            .await
            .expect("version 1"),
        25.0,
    );

    machine.write("proc/meminfo", "MemTotal: 0 kB\nMemAvailable: 0 kB\n");
    assert_eq!(host.read().await, Ok(None), "a share of nothing is no figure");
    machine.write("proc/meminfo", "MemTotal: 8000 kB\n");
    let error = host.read().await.expect_err("a kernel before 3.14").to_string();
    assert!(error.contains("MemAvailable:"), "{error}");
}

const NET_DEV: &str = "Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:9999999999999 5 0 0 0 0 0 0 9999999999999 5 0 0 0 0 0 0
  ens5:RX 7 0 0 0 0 0 0 TX 7 0 0 0 0 0 0
eth0:77 1 0 0 0 0 0 0 77 1 0 0 0 0 0 0
";
const ROUTES: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t900\t00000000\t0\t0\t0
ens5\t00000000\t010200C0\t0003\t0\t0\t512\t00000000\t0\t0\t0
ens5\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
";

#[tokio::test]
async fn traffic_of_the_interface_with_the_default_route() {
    let machine = Machine::new();
    let text = |received: u64, sent: u64| {
        NET_DEV
            .replace("RX", &received.to_string())
            .replace("TX", &sent.to_string())
    };
    machine
        .write("proc/net/dev", &text(1000, 1000))
        .write("proc/net/route", ROUTES);
    let make = |direction, interface: Option<&str>| {
        ProcNetDev::new(
            machine.files(),
            100,
            direction,
            interface.map(str::to_owned),
            10.0,
        )
    };
    let (received, sent) = (make(Direction::In, None), make(Direction::Out, Some("ens5")));
    assert_eq!((received.short_name(), sent.short_name()), ("NI", "NO"));
    assert_eq!(received.read().await, Ok(None));
    assert_eq!(sent.read().await, Ok(None));
    machine.clock.pass(Duration::from_secs(2));
    let mebibyte = 1 << 20;
    machine.write("proc/net/dev", &text(1000 + 5 * mebibyte, 1000 + mebibyte));
    assert_near(received.read().await.expect("2.5 MiB/s"), 25.0);
    assert_near(sent.read().await.expect("0.5 MiB/s"), 5.0);
    assert_eq!(received.read().await, Ok(None), "no time has passed");
    machine.clock.pass(Duration::from_secs(1));
    machine.write("proc/net/dev", &text(0, 0));
    assert_eq!(received.read().await, Ok(None), "the counters began anew");

    machine.remove("proc/net/route");
    let usual = make(Direction::In, None);
    assert_eq!(usual.read().await, Ok(None), "eth0 without routes");
    let error = make(Direction::In, Some("wlan9"))
        .read()
        .await
        .expect_err("no such interface");
    assert!(error.reason.contains("network_interface"), "{error}");
}
