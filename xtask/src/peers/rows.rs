//! Checkpoints within an aggregated record of the Kinesis Producer Library: one side stops in the middle of it, the other goes on behind that.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use super::lab::{Lab, Programs, Report};
use super::producer::put_records;
use super::records::Position;
use super::worker::{Kind, QUICK_OURS};

/// User records of the aggregate that is put.
const PARTS: u64 = 3;
/// Of these, how many the first reader settles.
const SETTLED: u64 = 2;
const PATIENCE: Duration = Duration::from_secs(120);

/// An aggregate of three user records, made by the Python library `aws-kinesis-agg`; the test data of the de-aggregation has it too.
const VECTORS: &str = include_str!("../../../crates/shardfleet-core/tests/vectors/kpl.json");
const VECTOR: &str = "single_key_three_records";

/// A handler that settles part of its first batch and then hangs, in the shell's own words.
const HANDLER: &str = "read -r initialize; read -r records; \
    batch=$(printf %s \"$records\" | sed 's/.*\"batch\":\\([0-9]*\\).*/\\1/'); \
    printf '{\"batch\": %s, \"settled\": [0, 1]}\\n' \"$batch\"; \
    printf '%s\\n' \"$records\" > \"$0\"; \
    while read -r line; do :; done";

/// Both directions, one shard each.
pub(crate) fn run(programs: &Programs, report: &mut Report) -> Result<(), String> {
    let mut lab = Lab::start(programs, report, 1)?;
    lab.java("java-1", &["--checkpoint", "every-n=2"])?;
    lab.warm_up()?;
    report.step(&mut lab, "java-to-ours", |lab| {
        // The count of records before the aggregate is even, so that every second checkpoint falls into it.
        let aggregate = put_aggregate(lab)?;
        lab.until("Java's checkpoint lies in the aggregate", PATIENCE, |lab| {
            Ok(position(lab) == Some(aggregate.part(SETTLED - 1)))
        })?;
        lab.kill("java-1")?;
        lab.ours("ours-1", "")?;
        goes_on(lab, "ours-1", &aggregate)
    });
    lab.stop("ours-1")?;
    report.step(&mut lab, "ours-to-java", |lab| {
        let note = lab.folder().join("ours-2.batch");
        let handler = json!(["sh", "-c", HANDLER, note.to_string_lossy()]);
        let more = [
            QUICK_OURS.to_owned(),
            // A Java worker waits until a dead leader's lock has run out: by default two minutes after its first look.
            "[fleet]\nleader_lease_duration = \"6s\"\nleader_heartbeat = \"2s\"\n".to_owned(),
            format!("[handler]\ntype = \"command\"\ncommand = {handler}\ntimeout = \"120s\"\n"),
        ];
        lab.worker_with("ours-2", Kind::Ours, &more)?;
        lab.until_shared(1, PATIENCE)?;
        let aggregate = put_aggregate(lab)?;
        lab.until("our checkpoint lies in the aggregate", PATIENCE, |lab| {
            Ok(position(lab) == Some(aggregate.part(SETTLED - 1)))
        })
        .map_err(|why| {
            let batch = fs::read_to_string(&note).unwrap_or_default();
            format!("{why}; the handler got {batch}")
        })?;
        lab.kill("ours-2")?;
        lab.java("java-2", &[])?;
        let figures = goes_on(lab, "java-2", &aggregate)?;
        let began = lab.worker("java-2")?.events("initialized");
        let from = began
            .last()
            .map(|event| format!("{} {}", event["seq"], event["sub"]));
        Ok(format!("{figures}; Java began at {}", from.unwrap_or_default()))
    });
    report.step(&mut lab, "java-log", |lab| lab.java_logs());
    Ok(())
}

/// Where the aggregate is.
struct Aggregate {
    sequence: String,
}

impl Aggregate {
    fn part(&self, sub: u64) -> Position {
        Position::new(&self.sequence, sub).unwrap_or_else(|| unreachable!("Kinesis gave a number"))
    }
}

fn put_aggregate(lab: &Lab) -> Result<Aggregate, String> {
    let vectors: Value = serde_json::from_str(VECTORS).map_err(|e| format!("kpl.json: {e}"))?;
    let vector = vectors
        .as_array()
        .into_iter()
        .flatten()
        .find(|vector| vector["name"] == VECTOR)
        .ok_or_else(|| format!("kpl.json has no {VECTOR}"))?;
    let record = json!({"Data": vector["record_base64"], "PartitionKey": vector["partition_key"]});
    let put = put_records(&lab.clients, "orders", &[record])?;
    let (_, position) = put.first().ok_or("nothing was put")?;
    Ok(Aggregate {
        sequence: position.sequence().to_owned(),
    })
}

fn position(lab: &Lab) -> Option<Position> {
    lab.table.rows().values().find_map(super::table::Row::position)
}

/// The next reader delivers the rest of the aggregate and nothing before it.
fn goes_on(lab: &mut Lab, name: &str, aggregate: &Aggregate) -> Result<String, String> {
    let last = aggregate.part(PARTS - 1);
    let by = |lab: &Lab| -> Vec<Position> {
        let delivered = lab.delivered();
        let own = delivered.into_iter().filter(|d| d.worker == name);
        own.map(|d| d.position).collect()
    };
    lab.until("the rest of the aggregate is delivered", PATIENCE, |lab| {
        Ok(by(lab).contains(&last))
    })?;
    let found = by(lab);
    let expected: Vec<Position> = (SETTLED..PARTS).map(|sub| aggregate.part(sub)).collect();
    if found == expected {
        Ok(format!("went on at part {SETTLED} of {PARTS}"))
    } else {
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        Err(format!(
            "{name} delivered {}; only the rest of the aggregate was due",
            found.join(", ")
        ))
    }
}
