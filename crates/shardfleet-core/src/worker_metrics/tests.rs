use super::*;
use crate::time::Moment;
use proptest::prelude::*;

const EPS: f64 = 1e-9;

fn row(seconds: u64) -> WorkerMetricStats {
    WorkerMetricStats::new("w1".into(), Timestamp::from_millis(seconds * 1000))
}

#[test]
fn a_new_row_is_the_throughput_balanced_form_with_a_support_code() {
    let new = row(1_796_080_669);
    assert!(new.is_default() && new.is_valid() && !new.is_failing());
    assert_eq!(
        (new.support_code, new.support_code_updated_seconds),
        (Some(1), Some(1_796_080_669))
    );
}

#[test]
fn rows_expire_after_two_intervals_and_grow_stale_after_a_day() {
    let (now, interval) = (Timestamp::from_millis(200_000_000), Duration::from_secs(30));
    let day = Duration::from_hours(24);
    assert!(!row(200_000 - 60).is_expired(now, interval));
    assert!(row(200_000 - 61).is_expired(now, interval));
    assert!(!row(200_000 - 86_400).is_stale(now, day));
    assert!(row(200_000 - 86_401).is_stale(now, day));
    assert!(
        !row(u64::MAX / 1000).is_expired(now, interval),
        "a clock ahead is no failure"
    );
    let without_time = WorkerMetricStats {
        last_update_seconds: None,
        ..row(0)
    };
    assert!(without_time.is_expired(now, interval) && !without_time.is_stale(now, day));
    assert!(!without_time.is_valid());
}

#[test]
fn validity_and_failing_are_the_java_kcls() {
    let mut stats = row(1);
    stats.append(CPU, 90.0, 100);
    assert!(stats.is_valid() && !stats.is_default() && !stats.is_failing());
    stats.append(CPU, CAPTURE_FAILED, 100);
    assert!(stats.is_failing());
    stats.append(CPU, 50.0, 100);
    assert!(!stats.is_failing(), "only the newest window counts");
    stats.operating_range.insert(CPU.into(), vec![0]);
    assert!(!stats.is_valid());
    stats.operating_range.insert(CPU.into(), vec![]);
    assert!(!stats.is_valid());
    stats.operating_range.remove(CPU);
    assert!(!stats.is_valid(), "no operating range for C");
}

#[test]
fn ten_averages_are_kept_and_what_is_no_percentage_is_a_failed_capture() {
    let mut stats = row(1);
    for i in 0..12 {
        stats.append(CPU, f64::from(i), 100);
    }
    assert_eq!(stats.averages[CPU], (2..12).map(f64::from).collect::<Vec<_>>());
    for odd in [f64::NAN, f64::INFINITY, -0.5, 101.0] {
        stats.append(CPU, odd, 100);
        assert!(stats.is_failing());
    }
}

#[test]
fn the_moving_average_skips_what_was_not_captured() {
    assert_eq!(ema(&[20.0, -1.0, 40.0], 0.5), Some(30.0));
    assert_eq!(ema(&[90.0], 0.5), Some(90.0));
    assert_eq!(ema(&[-1.0, f64::NAN], 0.5), None);
    assert_eq!(ema(&[10.0, 20.0], f64::NAN), Some(15.0));
    assert_eq!(ema(&[10.0, 20.0], 7.0), Some(20.0));
    assert_eq!(latest(&[10.0, 20.0, -1.0]), Some(20.0));
}

#[test]
fn a_window_averages_with_six_decimals_and_is_empty_afterwards() {
    let mut window = SampleWindow::default();
    assert!((window.drain_average() - CAPTURE_FAILED).abs() < EPS);
    for sample in [1.0, 1.0, 2.0] {
        assert!(window.add(sample));
    }
    assert!(!window.add(f64::NAN) && !window.add(-0.1) && !window.add(100.1));
    assert!((window.drain_average() - 1.333_333).abs() < EPS);
    assert!(window.is_empty());
    for _ in 0..400 {
        window.add(5.0);
    }
    assert_eq!(window.len(), SAMPLES_IN_WINDOW);
}

#[test]
fn support_is_the_least_of_the_owners_and_ages() {
    let now = Timestamp::from_millis(1_000_000);
    let interval = Duration::from_secs(30);
    let rows = BTreeMap::from([("w1".into(), row(1_000 - 90)), ("w2".into(), row(1_000 - 91))]);
    let of = |owners: &[&str]| {
        let owners: Vec<WorkerId> = owners.iter().map(|owner| (*owner).into()).collect();
        fleet_support(&owners, &rows, now, interval)
    };
    assert_eq!(
        (of(&["w1"]), of(&["w2"]), of(&["w1", "gone"]), of(&[])),
        (1, 0, 0, 0)
    );
}

#[test]
fn proc_stat_counts_io_wait_as_busy() {
    let before = ProcStat::parse("cpu  100 0 50 800 50 7 8 9 0 0\ncpu0 1 2 3\n").expect("valid");
    let after = ProcStat::parse("cpu  120 10 60 840 70 70 80 90 0 0\n").expect("valid");
    assert!((after.busy_percent(&before) - 60.0).abs() < EPS);
    assert!(after.busy_percent(&after).abs() < EPS, "unchanged");
    assert!(before.busy_percent(&after).abs() < EPS, "counters went back");
    let less_io_wait = ProcStat::parse("cpu 100 0 50 840 20").expect("valid");
    assert!(less_io_wait.busy_percent(&before).abs() < EPS);
    for bad in ["", "cpu", "cpu 1 2 3 4", "cpu a b c d e", "intr 1 2 3 4 5"] {
        assert!(ProcStat::parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn cgroups_are_measured_against_their_limit() {
    let stat = "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n";
    let used = cgroup_v2_usage(stat).expect("valid");
    assert_eq!(used, Duration::from_millis(2500));
    let usage = |millis, at| CpuUsage {
        used: Duration::from_millis(millis),
        at: Moment::new(Duration::from_secs(at)),
    };
    let half = cgroup_v2_limit("50000 100000\n", "").expect("valid");
    assert!((half - 0.5).abs() < EPS);
    assert!((usage(2750, 11).busy_percent(&usage(2500, 10), half) - 50.0).abs() < EPS);
    assert!((usage(9999, 11).busy_percent(&usage(2500, 10), half) - 100.0).abs() < EPS);
    assert!(usage(2750, 10).busy_percent(&usage(2500, 10), half).abs() < EPS);
    assert!((cgroup_v2_limit("max 100000", "0-3,8\n").expect("valid") - 5.0).abs() < EPS);
    assert!((cgroup_v1_limit("-1\n", "100000\n", "0,2-3\n").expect("valid") - 3.0).abs() < EPS);
    assert!((cgroup_v1_limit("150000\n", "100000\n", "").expect("valid") - 1.5).abs() < EPS);
    for (max, set) in [
        ("", "0"),
        ("max 1", ""),
        ("0 100000", "0"),
        ("5 0", "0"),
        ("x 1", "0"),
        ("5", "0"),
    ] {
        assert!(cgroup_v2_limit(max, set).is_err(), "{max:?} {set:?}");
    }
    assert!(cgroup_v1_limit("-2", "1", "0").is_err() && cgroup_v2_usage("usage_usec x").is_err());
    for bad in ["", "3-1", "a", "1,,2", "0-"] {
        assert!(cpuset_count(bad).is_err(), "{bad:?}");
    }
    assert_eq!(cpuset_count("0-4294967295,0-4294967295"), Ok(u32::MAX));
}

fn stats(total: u64, previous: u64, system: u64, previous_system: u64) -> EcsStats {
    EcsStats {
        total_usage: Some(total),
        previous_total_usage: Some(previous),
        system_usage: Some(system),
        previous_system_usage: Some(previous_system),
        online_cpus: Some(2),
        ..EcsStats::default()
    }
}

fn task(cpu_limit: Option<f64>, shares: &[(&str, Option<f64>)]) -> EcsTask {
    let container = |(id, cpu_limit): &(&str, Option<f64>)| EcsContainer {
        docker_id: (*id).to_owned(),
        cpu_limit: *cpu_limit,
    };
    EcsTask {
        cpu_limit,
        containers: shares.iter().map(container).collect(),
    }
}

#[test]
fn ecs_cpu_is_the_delta_over_the_machines_times_its_cpus() {
    let sample = stats(1_500, 1_000, 12_000, 10_000);
    assert_eq!(sample.cpu_percent(1.0), Some(50.0));
    assert_eq!(sample.cpu_percent(0.25), Some(100.0), "never above 100");
    assert_eq!(
        stats(1_500, 0, 12_000, 0).cpu_percent(1.0),
        Some(0.0),
        "first reading"
    );
    assert_eq!(stats(1_500, 1_000, 12_000, 12_000).cpu_percent(1.0), Some(100.0));
    assert_eq!(
        stats(500, 1_000, 9_000, 10_000).cpu_percent(1.0),
        Some(0.0),
        "counters went back"
    );
    assert_eq!(EcsStats::default().cpu_percent(1.0), None);
}

#[test]
fn ecs_share_is_by_the_containers_limits_and_the_whole_task_without_any() {
    let two = task(
        Some(2.0),
        &[("app", Some(768.0)), ("side", Some(256.0)), ("pause", Some(0.0))],
    );
    assert!((ecs_cpu_limit(&two, "app", 8) - 1.5).abs() < EPS);
    let none = task(Some(0.5), &[("app", Some(0.0)), ("pause", None)]);
    assert!((ecs_cpu_limit(&none, "app", 8) - 0.5).abs() < EPS);
    assert!((ecs_cpu_limit(&task(None, &[]), "app", 4) - 4.0).abs() < EPS);
    assert!((ecs_cpu_limit(&two, "unknown", 8) - 2.0 / 1024.0 * 2.0).abs() < EPS);
    let idle = task(Some(1.0), &[("app", Some(0.0)), ("side", Some(98.0))]);
    assert!((ecs_cpu_limit(&idle, "app", 8) - 0.02).abs() < EPS);
}

#[test]
fn ecs_memory_and_network_are_shares_of_their_limits() {
    let memory = EcsStats {
        memory_usage: Some(600),
        memory_inactive_file: Some(100),
        memory_limit: Some(1_000),
        ..EcsStats::default()
    };
    assert_eq!(memory.memory_percent(), Some(50.0));
    assert_eq!(
        EcsStats {
            memory_limit: Some(0),
            ..memory
        }
        .memory_percent(),
        None
    );
    assert_eq!(bandwidth_percent(500, 2.0, 1_000.0), Some(25.0));
    assert_eq!(bandwidth_percent(500, 0.0, 1_000.0), None);
    assert_eq!(bandwidth_percent(500, 1.0, f64::NAN), None);
}

#[test]
fn the_source_is_the_first_place_that_is_recognised() {
    let linux = Platform {
        is_linux: true,
        proc_stat: true,
        ..Platform::default()
    };
    let select = |platform| select_source(&platform, false);
    assert_eq!(
        select(Platform {
            ecs_v4_uri: true,
            ec2: true,
            ..linux
        }),
        MetricSource::EcsV4
    );
    assert_eq!(
        select(Platform {
            ecs_v3_uri: true,
            cgroup_v2: true,
            ..linux
        }),
        MetricSource::Nowhere(NoSource::EcsWithoutV4)
    );
    let kubernetes = Platform {
        kubernetes_token: true,
        ec2: true,
        ..linux
    };
    assert_eq!(
        select(Platform {
            cgroup_v2: true,
            cgroup_v1: true,
            ..kubernetes
        }),
        MetricSource::CgroupV2
    );
    assert_eq!(
        select(Platform {
            cgroup_v1: true,
            ..kubernetes
        }),
        MetricSource::CgroupV1
    );
    assert_eq!(select(kubernetes), MetricSource::Nowhere(NoSource::NoCgroup));
    assert_eq!(select(Platform { ec2: true, ..linux }), MetricSource::ProcStat);
    assert_eq!(
        select(Platform {
            ec2: true,
            proc_stat: false,
            ..linux
        }),
        MetricSource::Nowhere(NoSource::NoProcStat)
    );
    assert_eq!(select(linux), MetricSource::Nowhere(NoSource::UnknownPlatform));
    assert_eq!(
        select_source(&linux, true),
        MetricSource::Nowhere(NoSource::Disabled)
    );
}

proptest! {
    #[test]
    fn no_reading_is_ever_anything_but_a_percentage(
        counters in prop::array::uniform4(any::<u64>()),
        cpus in any::<u32>(),
        limits in prop::collection::vec(prop::option::of(any::<f64>()), 0..4),
        task_limit in prop::option::of(any::<f64>()),
        odd_limit in any::<f64>(),
    ) {
        let ids = ["0", "1", "2", "3"];
        let shares: Vec<_> = ids.into_iter().zip(limits).collect();
        let limit = ecs_cpu_limit(&task(task_limit, &shares), "0", cpus);
        prop_assert!(limit.is_finite() && limit > 0.0);
        let [a, b, c, d] = counters;
        let sample = EcsStats { online_cpus: Some(cpus), ..stats(a, b, c, d) };
        for limit in [limit, odd_limit] {
            prop_assert!((0.0..=100.0).contains(&sample.cpu_percent(limit).expect("complete")));
            let usage = |used, at| CpuUsage { used: Duration::from_nanos(used), at: Moment::new(Duration::from_nanos(at)) };
            prop_assert!((0.0..=100.0).contains(&usage(a, c).busy_percent(&usage(b, d), limit)));
        }
    }

    #[test]
    fn parsers_answer_to_any_text(text in "\\PC*") {
        if let Ok(stat) = ProcStat::parse(&text) {
            prop_assert!((0.0..=100.0).contains(&stat.busy_percent(&ProcStat::default())));
        }
        for limit in [cgroup_v2_limit(&text, &text), cgroup_v1_limit(&text, &text, &text)].into_iter().flatten() {
            prop_assert!(limit.is_finite() && limit > 0.0);
        }
        prop_assert!(cgroup_v2_usage(&text).is_err() && cpuset_count(&text).is_ok_and(|count| count > 0) == cpuset_count(&text).is_ok());
    }

    #[test]
    fn the_moving_average_stays_within_its_values(values in prop::collection::vec(any::<f64>(), 0..12), alpha in any::<f64>()) {
        if let Some(average) = ema(&values, alpha) {
            prop_assert!(average >= 0.0 && !average.is_nan());
        }
    }
}
