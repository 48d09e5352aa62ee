//! The embedded Kinesis against kinesis-local, an independent one: the same calls of both, over plain HTTP.
//!
//! Answers are compared field by field, with what cannot be equal (times, sequence numbers, iterators, tokens, texts of errors)
//! replaced by what it is. Every difference is in [`differences::DIFFERENCES`] with what AWS does: one that is not listed fails
//! the test, and so does a listed one that is gone. The same list is the table in `docs/embedded-kinesis.md`.
//!
//! Needs kinesis-local (`scripts/peers.sh install`). Where it is absent the test fails, unless `SHARDFLEET_WITHOUT_PEERS=1` is
//! set outside CI. `SHARDFLEET_WRITE_DOCS=1` writes the table anew.

mod cases;
mod client;
mod differences;
mod docs;
mod normal;
mod peer;
mod probe;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;
use shardfleet_local::{KinesisSettings, LocalKinesis};

use client::Client;
use differences::{DIFFERENCES, Difference};
use peer::Peer;
use probe::{Probe, Transcript};

/// Operations that have no error answer to ask for: they name nothing that could be missing.
const WITHOUT_ERROR: [&str; 2] = ["DescribeAccountSettings", "DescribeLimits"];

/// How long streams and consumers stay CREATING, UPDATING and DELETING on both sides: long enough to be seen.
pub(crate) const TRANSITION: Duration = Duration::from_millis(400);

#[tokio::test(flavor = "current_thread")]
async fn answers_are_those_of_kinesis_local_or_the_difference_is_known() {
    let Some(main_js) = peer::find() else { return };
    let peer = Peer::start(&main_js).await;
    let settings = KinesisSettings::default().with_transition_time(TRANSITION);
    let kinesis = LocalKinesis::builder()
        .settings(settings)
        .start()
        .await
        .expect("a free port");
    let controls = kinesis.controls();

    let mut ours = Probe::new(Client::new(kinesis.port()), Some(controls));
    let mut theirs = Probe::new(Client::new(peer.port()), None);
    for (name, run) in cases::all() {
        ours.begin(name);
        theirs.begin(name);
        futures::join!(run(&mut ours), run(&mut theirs));
    }
    let (ours, theirs) = (ours.into_transcript(), theirs.into_transcript());
    kinesis.stop().await;

    let mut complaints = uncovered(&ours);
    let found = compare(&ours, &theirs);
    judge(&found, &mut complaints);
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn the_documented_table_is_the_list() {
    docs::check(DIFFERENCES);
}

#[test]
fn the_list_names_each_step_once() {
    let mut names = BTreeSet::new();
    for step in DIFFERENCES.iter().flat_map(|d| d.steps) {
        assert!(names.insert(step), "{step} is listed twice");
    }
}

/// Every operation that was not called, or never answered with success and with an error.
fn uncovered(transcript: &Transcript) -> Vec<String> {
    let mut complaints = Vec::new();
    for operation in cases::OPERATIONS {
        let answered = |ok: bool| transcript.outcomes.contains(&(operation.to_owned(), ok));
        if !answered(true) {
            complaints.push(format!("{operation} never succeeded"));
        }
        if !answered(false) && !WITHOUT_ERROR.contains(&operation) {
            complaints.push(format!("{operation} never failed"));
        }
    }
    complaints
}

/// What differs: step, and how either side shows it.
fn compare(ours: &Transcript, theirs: &Transcript) -> BTreeMap<String, (String, String)> {
    let names: BTreeSet<&String> = ours.steps.keys().chain(theirs.steps.keys()).collect();
    let mut found = BTreeMap::new();
    for name in names {
        let (a, b) = (ours.steps.get(name), theirs.steps.get(name));
        if a != b {
            let absent = Value::String("no such step".to_owned());
            found.insert(
                name.clone(),
                normal::show_difference(a.unwrap_or(&absent), b.unwrap_or(&absent)),
            );
        }
    }
    found
}

fn judge(found: &BTreeMap<String, (String, String)>, complaints: &mut Vec<String>) {
    let by_step = |d: &'static Difference| d.steps.iter().map(move |step| (*step, d));
    let listed: BTreeMap<&str, &Difference> = DIFFERENCES.iter().flat_map(by_step).collect();
    for (step, (ours, theirs)) in found {
        let known = listed.get(step.as_str());
        if known.is_some_and(|d| d.ours == ours && d.peer == theirs) {
            continue;
        }
        let mut text = format!(
            "{} difference:\n    Difference {{\n        steps: &[{step:?}],\n        ours: {ours:?},\n        peer: {theirs:?},",
            if known.is_some() { "another" } else { "an unlisted" }
        );
        if let Some(known) = known {
            write!(
                text,
                "\n    listed are ours: {:?}, peer: {:?}",
                known.ours, known.peer
            )
            .expect("a String takes all");
        }
        complaints.push(text);
    }
    for step in listed.keys().filter(|step| !found.contains_key(**step)) {
        complaints.push(format!("a listed difference is gone: {step}"));
    }
}
