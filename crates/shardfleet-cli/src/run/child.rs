//! A handler that is a child process: JSON lines in, JSON lines out. `docs/handlers.md` describes them.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use shardfleet::clock::{Clock, SystemClock};
use shardfleet::{
    Checkpointer, InitializationInput, ProcessRecordsInput, ProcessorError, RecordProcessor, ShardId,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::CHILD_PATIENCE;

/// The longest line that a child may answer.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// The child process of one shard. It is started with the first call and again after each failure.
pub(crate) struct ChildProcessor {
    shard_id: ShardId,
    command: Arc<Vec<String>>,
    timeout: Duration,
    initialization: Option<InitializationInput>,
    running: Option<Running>,
    batches: u64,
    clock: SystemClock,
}

struct Running {
    /// Dropped first or last, it takes whatever the child started along.
    group: ProcessGroup,
    /// Whether it has settled anything: one that has not may be unable to.
    has_settled: bool,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

/// The process group of a child: the child and whatever it started, such as the program behind a shell. Killed when dropped, so that a handler that was given up
/// never works beside its successor.
struct ProcessGroup(Option<rustix::process::Pid>);

impl ProcessGroup {
    fn of(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(rustix::process::Pid::from_raw))
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // An error means that nothing of it is left.
            rustix::process::kill_process_group(leader, rustix::process::Signal::KILL).ok();
        }
    }
}

/// What a child says about the records of a batch.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    /// Ids of settled records, or the text `all`.
    #[serde(default)]
    settled: Option<Settled>,
    /// The id of a record that it cannot process.
    #[serde(default)]
    failed: Option<usize>,
    /// Why.
    #[serde(default)]
    reason: Option<String>,
    /// The batch it speaks of, which an answer about records must name.
    #[serde(default)]
    batch: Option<u64>,
    /// Takes note of an event other than records.
    #[serde(default)]
    done: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Settled {
    All(String),
    Ids(Vec<usize>),
}

impl ChildProcessor {
    pub(crate) fn new(shard_id: ShardId, command: Arc<Vec<String>>, timeout: Duration) -> Self {
        Self {
            shard_id,
            command,
            timeout,
            initialization: None,
            running: None,
            batches: 0,
            clock: SystemClock::new(),
        }
    }

    fn start(&self) -> Result<Running, ProcessorError> {
        let program = self.command.first().map_or("", String::as_str);
        let mut child = Command::new(program)
            .args(self.command.iter().skip(1))
            .env("SHARDFLEET_SHARD_ID", self.shard_id.as_str())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for the worker, which lets the child finish what it has in hand.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| ProcessorError::new(format!("starting {program:?} failed: {e}")))?;
        let missing = || ProcessorError::new("the child has no standard input or output");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        Ok(Running {
            group: ProcessGroup::of(&child),
            has_settled: false,
            child,
            stdin,
            stdout,
        })
    }

    /// The running child; a fresh one is told where it starts.
    async fn running(&mut self) -> Result<&mut Running, ProcessorError> {
        if self.running.is_none() {
            let mut running = self.start()?;
            if let Some(input) = &self.initialization {
                let event = json!({
                    "event": "initialize",
                    "shard_id": input.shard_id.as_str(),
                    "checkpoint": input.checkpoint.checkpoint_text(),
                    "checkpoint_sub_sequence_number": input.checkpoint.sub_sequence_number(),
                });
                let sent = within(&self.clock, CHILD_PATIENCE, send(&mut running.stdin, &event)).await;
                sent.unwrap_or_else(|| Err("it does not read its standard input".to_owned()))
                    .map_err(ProcessorError::new)?;
            }
            self.running = Some(running);
        }
        self.running
            .as_mut()
            .ok_or_else(|| ProcessorError::new("the child is not running"))
    }

    async fn process(
        &mut self,
        input: &ProcessRecordsInput<'_>,
        event: &Value,
        settled: &mut [bool],
    ) -> Result<(), (Option<usize>, String)> {
        let (batch, timeout, clock) = (self.batches, self.timeout, self.clock.clone());
        let running = self.running().await.map_err(|e| (None, e.to_string()))?;
        let Running {
            stdin,
            stdout,
            has_settled,
            ..
        } = running;
        // Both at once: a child that answers while it still reads would otherwise fill its pipe and wait for ever.
        let write = async { send(stdin, event).await.map_err(|e| (None, e)) };
        let read = async {
            let mut noted = 0;
            while !settled.iter().all(|settled| *settled) {
                let answer = answer(stdout).await.map_err(|e| (None, e))?;
                match answer.batch {
                    Some(about) if about == batch => {}
                    // Said once too often about a batch that is settled.
                    Some(about) if about < batch => continue,
                    Some(about) => {
                        return Err((
                            None,
                            format!("it answered about batch {about}, which did not come yet"),
                        ));
                    }
                    None => {
                        return Err((
                            None,
                            format!("its answer names no batch; \"batch\": {batch} is missing"),
                        ));
                    }
                }
                let result = apply(answer, input.records.len(), settled);
                *has_settled |= settled.iter().any(|settled| *settled);
                // Checkpoints follow while the rest of the batch is still in the child's hands.
                let done = settled.iter().take_while(|settled| **settled).count();
                if done > noted
                    && let Some(last) = input.records.get(done - 1)
                {
                    noted = done;
                    input
                        .checkpointer
                        .settle_at(&last.position)
                        .map_err(|error| (None, error.to_string()))?;
                }
                result?;
            }
            Ok(())
        };
        let talk = async { tokio::try_join!(write, read).map(|_| ()) };
        let result = within(&clock, timeout, talk).await;
        result.unwrap_or_else(|| Err((None, format!("it did not settle the batch within {timeout:?}"))))
    }

    /// Sends an event that asks for no settling, and waits until the child took note or ended.
    async fn tell(&mut self, event: &str) {
        let clock = self.clock.clone();
        let Some(running) = self.running.as_mut() else {
            return;
        };
        let talk = async {
            send(&mut running.stdin, &json!({ "event": event })).await?;
            while answer(&mut running.stdout).await?.done.as_deref() != Some(event) {}
            Ok::<_, String>(())
        };
        if let Some(Err(reason)) = within(&clock, CHILD_PATIENCE, talk).await {
            tracing::debug!(shard_id = %self.shard_id, event, reason, "the child took no note");
        }
        self.end().await;
    }

    /// Closes the child's input, which asks it to end, and kills it if it does not.
    async fn end(&mut self) {
        let Some(Running {
            group,
            mut child,
            stdin,
            stdout,
            ..
        }) = self.running.take()
        else {
            return;
        };
        drop((stdin, stdout));
        if within(&self.clock, CHILD_PATIENCE, child.wait()).await.is_none() {
            child.kill().await.ok();
        }
        drop(group);
    }
}

fn apply(answer: Answer, records: usize, settled: &mut [bool]) -> Result<(), (Option<usize>, String)> {
    match answer.settled {
        Some(Settled::All(text)) if text == "all" => settled.fill(true),
        Some(Settled::All(text)) => {
            return Err((
                None,
                format!("it answered settled = {text:?}; a list of ids or \"all\" is expected"),
            ));
        }
        Some(Settled::Ids(ids)) => {
            for id in ids {
                match settled.get_mut(id) {
                    Some(settled) => *settled = true,
                    None => return Err((None, format!("it settled record {id} of a batch of {records}"))),
                }
            }
        }
        None => {}
    }
    match answer.failed {
        Some(id) if id < records => Err((
            Some(id),
            answer.reason.unwrap_or_else(|| "no reason given".to_owned()),
        )),
        Some(id) => Err((
            None,
            format!("it says that record {id} of a batch of {records} failed"),
        )),
        None => Ok(()),
    }
}

async fn send(stdin: &mut ChildStdin, event: &Value) -> Result<(), String> {
    let mut line = event.to_string();
    line.push('\n');
    let failed = |e: std::io::Error| format!("writing to it failed: {e}");
    stdin.write_all(line.as_bytes()).await.map_err(failed)?;
    stdin.flush().await.map_err(failed)
}

async fn answer(stdout: &mut BufReader<ChildStdout>) -> Result<Answer, String> {
    let mut line = Vec::new();
    let mut limited = stdout.take(LINE_BYTES_MAX);
    let read = limited
        .read_until(b'\n', &mut line)
        .await
        .map_err(|e| format!("reading from it failed: {e}"))?;
    if read == 0 {
        return Err("it ended".to_owned());
    }
    serde_json::from_slice(&line).map_err(|e| {
        let shown: String = String::from_utf8_lossy(&line).chars().take(200).collect();
        format!("it answered {shown:?}, which is no answer ({e})")
    })
}

#[async_trait]
impl RecordProcessor for ChildProcessor {
    async fn initialize(&mut self, input: InitializationInput) -> Result<(), ProcessorError> {
        self.initialization = Some(input);
        self.running().await.map(|_| ())
    }

    async fn process_records(&mut self, input: ProcessRecordsInput<'_>) -> Result<(), ProcessorError> {
        self.batches += 1;
        let event = records_event(self.batches, &input);
        let mut settled = vec![false; input.records.len()];
        let Err((failed, reason)) = self.process(&input, &event, &mut settled).await else {
            return Ok(());
        };
        // What state a child is in that died, hung or spoke nonsense, nobody knows; and one that goes on with a batch behind a record it refused would
        // answer about records that come again under other ids.
        let has_settled = self.running.take().is_some_and(|running| running.has_settled);
        let mut error = ProcessorError::new(format!("the handler of shard {}: {reason}", self.shard_id));
        if failed.is_none() && !has_settled {
            // A program that never settled anything says nothing about a record by its death: more likely it cannot work at all.
            error = error.unrelated_to_records();
        }
        let position = |index: usize| input.records.get(index).map(|record| record.position.clone());
        // Everything before the first unsettled record need not come again.
        let first_unsettled = settled.iter().position(|settled| !settled);
        Err(match (failed, first_unsettled) {
            (Some(failed), Some(first)) if failed == first => match position(failed) {
                Some(at) => error.at(at),
                None => error,
            },
            (_, Some(first)) => match position(first) {
                Some(at) => error.settled_before(at),
                None => error,
            },
            // All are settled, and one of them failed all the same: the last word counts.
            (failed, None) => match failed.and_then(position) {
                Some(at) => error.at(at),
                None => error,
            },
        })
    }

    async fn lease_lost(&mut self) {
        self.tell("lease_lost").await;
    }

    async fn shard_ended(&mut self, _: &Checkpointer) -> Result<(), ProcessorError> {
        self.tell("shard_ended").await;
        Ok(())
    }

    async fn shutdown_requested(&mut self, _: &Checkpointer) -> Result<(), ProcessorError> {
        self.tell("shutdown_requested").await;
        Ok(())
    }
}

fn records_event(batch: u64, input: &ProcessRecordsInput<'_>) -> Value {
    let records: VecDeque<Value> = input
        .records
        .iter()
        .enumerate()
        .map(|(id, record)| {
            json!({
                "id": id,
                "sequence_number": record.position.checkpoint_text(),
                "sub_sequence_number": record.position.sub_sequence_number(),
                "partition_key": record.partition_key.as_deref(),
                "arrived_at_millis": record.arrived_at.map(shardfleet::Timestamp::millis),
                "data_base64": STANDARD.encode(&record.data),
            })
        })
        .collect();
    json!({
        "event": "records",
        "batch": batch,
        "attempt": input.attempt,
        "millis_behind_latest": input.millis_behind_latest,
        "records": records,
    })
}

async fn within<T>(clock: &SystemClock, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = clock.sleep_until(clock.now() + limit) => None,
    }
}
