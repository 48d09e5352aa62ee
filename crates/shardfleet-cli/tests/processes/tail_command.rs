//! `shardfleet tail` and `shardfleet redrive`.

use crate::harness::{World, parse, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tail_prints_what_is_there_from_any_position() {
    let world = World::start().await;
    world
        .kinesis
        .controls()
        .create_stream("orders", 1)
        .expect("a stream");
    let records: Vec<_> = (0..10)
        .map(|n| (format!("k{n}"), format!("record {n}")))
        .collect();
    world.put("orders", &records).await;
    let tail = |from: &str| {
        run(world.command().args([
            "tail", "orders", "--json", "--idle", "2s", "--max", "10", "--from", from,
        ]))
    };
    let (code, out, err) = tail("horizon");
    assert_eq!(code, Some(0), "{err}");
    let all: Vec<_> = out.lines().map(parse).collect();
    assert_eq!(all.len(), 10);
    assert_eq!(
        (all[3]["data"].as_str(), all[3]["partition_key"].as_str()),
        (Some("record 3"), Some("k3"))
    );

    let place = format!(
        "{}:{}",
        "shardId-000000000000",
        all[7]["sequence_number"].as_str().expect("number")
    );
    let (_, out, _) = tail(&place);
    assert_eq!(
        out.lines()
            .map(|line| parse(line)["data"].clone())
            .collect::<Vec<_>>(),
        ["record 7", "record 8", "record 9"]
    );

    let (_, out, _) = tail("1h");
    assert_eq!(out.lines().count(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_are_said_in_one_line_with_exit_code() {
    let world = World::start().await;
    let (code, _, err) = run(world.command().args(["tail", "nowhere"]));
    assert_eq!(code, Some(1));
    assert!(
        err.contains("nowhere") && err.contains("ResourceNotFoundException"),
        "{err}"
    );
    let (code, _, err) = run(world.command().args(["tail", "orders", "--from", "newest"]));
    assert_eq!(code, Some(2));
    assert!(err.contains("newest") && err.contains("horizon"), "{err}");
    let (code, _, err) = run(world.command().args(["run", "--config", "missing.toml"]));
    assert_eq!(code, Some(2));
    assert!(err.contains("missing.toml"), "{err}");
    let config = world.write("bad.toml", "stream = \"orders\"\n[reading]\nbatchsize = 5\n");
    let (code, _, err) = run(world
        .command()
        .arg("run")
        .arg("--check")
        .arg("--config")
        .arg(config));
    assert_eq!(code, Some(2));
    assert!(
        err.contains("reading.batchsize") && err.contains("batch_size"),
        "{err}"
    );
    let (code, _, err) = run(world.command().env_remove("AWS_REGION").args(["tail", "orders"]));
    assert_eq!(code, Some(2));
    assert!(err.contains("AWS_REGION"), "{err}");
}
