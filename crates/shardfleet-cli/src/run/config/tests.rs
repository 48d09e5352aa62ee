use super::*;

mod example;

fn problems_of(text: &str) -> Vec<String> {
    parse(text).expect("TOML").problems
}

/// The file's problems, those between settings too.
async fn all_problems_of(text: &str) -> Vec<String> {
    let mut parsed = parse(text).expect("TOML");
    let aws = shardfleet::AwsSettings::builder().region("us-east-1");
    let aws = aws.credentials("id", "secret").load().await;
    if let Err(shardfleet::KinesisError::Settings(error)) =
        super::super::described(&parsed.config, &aws).build()
    {
        parsed.add(&error.problems);
    }
    parsed.problems
}

#[test]
fn the_smallest_file_gets_the_defaults() {
    let parsed = parse("stream = \"orders\"").expect("TOML");
    assert_eq!(parsed.problems, [""; 0]);
    let config = parsed.config;
    assert_eq!(config.application, "orders");
    assert_eq!(
        config.lease_store,
        LeaseStoreConfig::DynamoDb(DynamoDbConfig {
            table: "orders".into(),
            application: "orders".into(),
            ..DynamoDbConfig::default()
        })
    );
    assert_eq!(config.fleet, FleetSettings::default());
    assert_eq!(config.handler, HandlerConfig::Stdout);
    assert_eq!((config.reading.batch_size, config.errors.attempts), (1000, 10));
}

#[test]
fn all_problems_are_named_at_once_with_key_value_range_and_fix() {
    let text = "
        stream = 5
        aplication = \"x\"
        [leases]
        failover_time = \"1ms\"
        shard_sync_interval = 30000
        max_leases_for_worker = 0
        [fleet]
        dampening_percentage = 120
        variance_balancing_frequency = 0
        handoff_enabled = \"true\"
        assignment_strategy = \"LEASE_COUNT_BASED\"
        max_throughput_per_host_kbps = -1.5
        lease_assignment_interval = \"2h\"
        [worker_metrics]
        ema_alpha = nan
        metrics = [\"cpu\", \"mem\", \"memroy\"]
        source = \"fixed\"
        [reading]
        batch_size = 20000
        memory_budget = \"lots\"
        [handler]
        type = \"stduot\"
        [errors]
        then = \"dead-letter\"
    ";
    let expected = [
        "stream: is 5; a text that is not empty is expected",
        "leases.failover_time: is \"1ms\"; a time such as \"10s\" or \"250ms\", from 300ms to 1h, is expected; raise it to at least 300ms, or leave it out for 10s",
        "leases.shard_sync_interval: is 30000; a time such as \"10s\" or \"250ms\", from 50ms to 1day, is expected; if milliseconds are meant, write \"30s\"",
        "leases.max_leases_for_worker: is 0; a whole number of at least 1, or \"unlimited\", is expected; raise it to at least 1, or leave it out for no limit",
        "fleet.lease_assignment_interval: is \"2h\"; a time such as \"10s\" or \"250ms\", from 20ms to 1h, is expected; lower it to at most 1h, or leave it out for a quarter of leases.failover_time",
        "fleet.handoff_enabled: is \"true\"; true or false is expected; write true without quotes",
        "fleet.variance_balancing_frequency: is 0; a whole number from 1 to 1000 is expected; raise it to at least 1, or leave it out for 3",
        "fleet.assignment_strategy: is \"LEASE_COUNT_BASED\"; one of worker-utilization-aware, lease-count-based is expected; did you mean \"lease-count-based\"?",
        "fleet.dampening_percentage: is 120; a number from 0 to 100 percent is expected; lower it to at most 100, or leave it out for 80",
        "fleet.max_throughput_per_host_kbps: is -1.5; a number above 0 KiB a second, or \"unlimited\", is expected; raise it above 0, or leave it out for no limit",
        "worker_metrics.fixed_percent: is missing; source = \"fixed\" needs a number from 0 to 100 percent",
        "worker_metrics.metrics: names \"mem\"; only cpu, memory, network-in, network-out are allowed",
        "worker_metrics.metrics: names \"memroy\"; only cpu, memory, network-in, network-out are allowed; did you mean \"memory\"?",
        "worker_metrics.ema_alpha: is nan; a number from 0 to 1 is expected; leave it out for 0.5",
        "reading.batch_size: is 20000; a whole number from 1 to 10000 is expected; lower it to at most 10000, or leave it out for 1000",
        "reading.memory_budget: is \"lots\"; a size such as \"32MiB\" or a number of bytes, at least 1048576 bytes, is expected; leave it out for 33554432 bytes",
        "handler.type: is \"stduot\"; one of stdout, command is expected; did you mean \"stdout\"?",
        "errors.dead_letter_file: is missing; then = \"dead-letter\" needs a file to write to",
        "aplication: is not a known key; did you mean application?",
    ];
    assert_eq!(problems_of(text), expected);
}

#[tokio::test]
async fn problems_between_settings_are_named_with_the_others_by_the_keys_of_the_file() {
    let text = "
        stream = \"orders\"
        worker_id = \"Leader\"
        [leases]
        failover_time = \"1s\"
        lease_writes_max = 0
        [fleet]
        leader_heartbeat = \"90s\"
        discovery_interval = \"2s\"
        [worker_metrics]
        source = \"process\"
        metrics = [\"memory\", \"network-in\"]
        report_interval = \"1h\"
        stale_metrics_after = \"1h\"
    ";
    let problems = all_problems_of(text).await;
    let keys: Vec<&str> = problems
        .iter()
        .filter_map(|problem| Some(problem.split_once(": ")?.0))
        .collect();
    let expected = [
        "leases.lease_writes_max",
        "worker_id",
        "fleet.leader_heartbeat",
        "worker_metrics.stale_metrics_after",
        "worker_metrics.metrics",
        "worker_metrics.network_in_bandwidth_mb",
        "fleet.discovery_interval",
    ];
    assert_eq!(keys, expected, "{problems:#?}");
    assert!(
        problems[2].contains("90s") && problems[2].contains("at most half"),
        "{problems:#?}"
    );
    // A key is complained of once.
    assert_eq!(all_problems_of("[leases]").await, ["stream: is missing"]);
}

#[test]
fn an_unknown_key_is_told_its_name_here() {
    for (table, key, expected) in [
        ("leases", "failover_tiem", "did you mean leases.failover_time?"),
        (
            "leases",
            "dampening_percentage",
            "it belongs elsewhere; did you mean fleet.dampening_percentage?",
        ),
        (
            "reading",
            "variance_balancing_frequncy",
            "did you mean fleet.variance_balancing_frequency?",
        ),
        (
            "leases",
            "failoverTimeMillis",
            "the Java KCL's failoverTimeMillis is leases.failover_time here; did you mean that?",
        ),
        (
            "fleet",
            "max_throughput_per_host_k_bps",
            "the Java KCL's maxThroughputPerHostKBps is fleet.max_throughput_per_host_kbps here; did you mean that?",
        ),
        (
            "fleet",
            "reBalanceTresholdPercentage",
            "did you mean fleet.rebalance_threshold_percentage?",
        ),
        (
            "worker_metrics",
            "disableWorkerMetrics",
            "the Java KCL's disableWorkerMetrics is worker_metrics.source = \"none\" here; did you mean that?",
        ),
        (
            "leases",
            "epsilonMillis",
            "the Java KCL's epsilonMillis has no counterpart (leases are renewed three times within leases.failover_time); remove it",
        ),
        (
            "aws",
            "colour",
            "remove it; known here: endpoint_url, region, profile",
        ),
    ] {
        let text = format!("stream = \"s\"\n[{table}]\n{key} = 1\n");
        let expected = format!("{table}.{key}: is not a known key; {expected}");
        assert_eq!(problems_of(&text), [expected]);
    }
    assert_eq!(
        problems_of("stream = \"s\"\n[worker-metrics]\n"),
        ["worker-metrics: is not a known key; did you mean worker_metrics?"]
    );
}

#[test]
fn every_name_of_the_kcl_leads_to_a_key_that_is_there() {
    let mut findings = Findings::default();
    read(Table::new(), &mut findings);
    for (name, key) in kcl::NAMES {
        assert!(
            findings.known().iter().any(|known| known == key),
            "{name} -> {key}"
        );
        let problems = problems_of(&format!("stream = \"s\"\n[errors]\n{name} = 1\n"));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains(key), "{problems:?}");
    }
}

#[test]
fn the_kcls_other_name_of_the_dampening_is_read_but_not_beside_the_first() {
    let text = "stream = \"s\"\n[fleet]\ndampening_percentage_value = 60\n";
    let parsed = parse(text).expect("TOML");
    assert_eq!(parsed.problems, [""; 0]);
    assert!((parsed.config.fleet.assignment.dampening_percentage - 60.0).abs() < 1e-9);
    assert_eq!(
        problems_of(&format!("{text}dampening_percentage = 60")),
        [
            "fleet.dampening_percentage_value: is the same setting as dampening_percentage; remove one of the two"
        ]
    );
}

#[test]
fn a_missing_stream_broken_toml_and_keys_of_another_store_are_said() {
    assert_eq!(problems_of(""), ["stream: is missing"]);
    assert!(parse("stream = ").expect_err("broken").contains("line 1"));
    let text = "stream = \"s\"\n[lease_store]\ntype = \"sqlite\"\ntable = \"t\"\n";
    assert_eq!(
        problems_of(text),
        [
            "lease_store.table: makes no sense without type = \"dynamodb\"; remove it, or set type",
            "lease_store.path: is missing; name the file that holds the leases",
        ]
    );
}

#[test]
fn settings_of_the_lease_table_are_checked() {
    let text = "stream = \"s\"\n[lease_store]\ntags = [\"team\"]\nread_capacity = 3\n";
    let problems = super::parse(text).expect("TOML").problems;
    assert_eq!(
        problems,
        [
            "lease_store.tags: has \"team\"; tags are written \"key=value\"",
            "lease_store.write_capacity: is missing; a table has read and write capacity, or neither of them and is on-demand",
        ]
    );
}

fn status_of(table: &str) -> Result<Option<shardfleet::status::KafkaSettings>, Vec<String>> {
    let parsed = parse(&format!("stream = \"orders\"\n[status]\n{table}")).expect("TOML");
    assert_eq!(parsed.problems, [""; 0]);
    parsed.config.status.kafka()
}

#[test]
fn a_status_topic_is_described_in_toml_in_connects_names_and_in_a_file() {
    assert_eq!(status_of(""), Ok(None));
    let bare = status_of("type = \"kafka\"\nbootstrap_servers = \"k:9092\"");
    let bare = bare.expect("valid").expect("a topic");
    assert_eq!(
        (bare.topic.as_str(), bare.group_id.as_str()),
        ("shardfleet-status", "orders")
    );
    assert!(!bare.is_shared && bare.manage_topic);

    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("worker.properties");
    let file = "bootstrap.servers=file:9092\nstatus.storage.topic=connect-status\ngroup.id=g\n\
        status.storage.retry.max.retries=9\nstatus.storage.retry.jitter.factor=0.5\nsasl.mechanism=PLAIN\n";
    std::fs::write(&path, file).expect("written");
    let all = format!(
        "type = \"kafka\"\nproperties_file = {:?}\nbootstrap_servers = \"toml:9092\"\nshared = true\nstart_deadline = \"3s\"\n\
         [status.properties]\n\"status.storage.retry.max.retries\" = 2\nstatus.storage.partitions = 3\n\
         [status.client]\n\"sasl.password\" = \"hush\"\n\"sasl.mechanism\" = \"SCRAM-SHA-256\"\n",
        path.to_string_lossy()
    );
    let settings = status_of(&all).expect("valid").expect("a topic");
    assert_eq!(settings.bootstrap_servers, "toml:9092");
    assert_eq!(
        (settings.topic.as_str(), settings.group_id.as_str()),
        ("connect-status", "g")
    );
    assert_eq!((settings.partitions, settings.retry.max_retries), (3, 2));
    assert!((settings.retry.jitter_factor - 0.5).abs() < 1e-9);
    assert!(settings.is_shared && settings.start_deadline == Duration::from_secs(3));
    assert_eq!(settings.client_settings["sasl.mechanism"], "SCRAM-SHA-256");
    let parsed = parse(&format!("stream = \"orders\"\n[status]\n{all}")).expect("TOML");
    let shown = format!("{:#?}", parsed.config);
    assert!(
        shown.contains("sasl.password") && !shown.contains("hush"),
        "{shown}"
    );
}

#[test]
fn everything_that_is_wrong_with_a_status_topic_is_said() {
    let text =
        "stream = \"s\"\n[status]\ntopic = \"t\"\nbootstrap_server = \"k:1\"\n[status.client]\nx = [1]\n";
    assert_eq!(
        problems_of(text),
        [
            "status.topic: makes no sense without type = \"kafka\"; remove it, or set type",
            "status.client: makes no sense without type = \"kafka\"; remove it, or set type",
            "status.client: x has a value that is no text, number, true or false",
            "status.bootstrap_server: is not a known key; did you mean status.bootstrap_servers?",
        ]
    );
    let missing = status_of("type = \"kafka\"").expect_err("no broker");
    assert_eq!(
        missing,
        ["status.bootstrap_servers: is missing; name the brokers, HOST:PORT, several with commas"]
    );
    let kafka = "type = \"kafka\"\nbootstrap_servers = \"k:1\"\n";
    let wrong = status_of(&format!(
        "{kafka}topic = \"a b\"\n[status.properties]\n\"status.storage.retry.initial.backoff.ms\" = 20000\n\"status.storage.retry.max.retries\" = \"many\"\n"
    ));
    let wrong = wrong.expect_err("three mistakes");
    for (problem, expected) in wrong.iter().zip([
        "status: status.storage.retry.max.retries is \"many\"",
        "status: status.storage.topic is \"a b\"",
        "status: status.storage.retry.initial.backoff.ms is 20000",
    ]) {
        assert!(problem.starts_with(expected), "{wrong:#?}");
    }
    assert_eq!(wrong.len(), 3, "{wrong:#?}");
    let absent = status_of(&format!("{kafka}properties_file = \"/no/such/file\"")).expect_err("no file");
    assert!(
        absent[0].starts_with("status.properties_file: /no/such/file: No such file"),
        "{absent:?}"
    );
    let forced = status_of(&format!("{kafka}[status.client]\nacks = 1\n")).expect_err("forced");
    assert!(
        forced[0].contains("the client setting acks cannot be set"),
        "{forced:?}"
    );
}
