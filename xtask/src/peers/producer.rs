//! Puts records at a steady pace, and remembers each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::records::{Position, Put};
use super::services::Clients;
use super::time::{now_ms, pause};

/// How records are put.
#[derive(Clone)]
pub(crate) struct Pace {
    /// The stream.
    pub(crate) stream: String,
    /// One record for each of so many equal parts of the hash range at a time.
    pub(crate) parts: u32,
    /// Between two times.
    pub(crate) every: Duration,
    /// Bytes of each record.
    pub(crate) bytes: usize,
}

/// A producer on a thread of its own. It ends when dropped.
pub(crate) struct Producer {
    done: Arc<Mutex<Done>>,
    is_over: Arc<AtomicBool>,
}

#[derive(Default)]
struct Done {
    puts: Vec<Put>,
    trouble: Option<String>,
}

impl Producer {
    /// Starts to put.
    pub(crate) fn start(clients: &Clients, pace: &Pace) -> Self {
        let done: Arc<Mutex<Done>> = Arc::default();
        let is_over: Arc<AtomicBool> = Arc::default();
        let (to, over) = (Arc::clone(&done), Arc::clone(&is_over));
        let (clients, pace) = (clients.clone(), pace.clone());
        std::thread::spawn(move || {
            let start_ms = now_ms();
            let every = u64::try_from(pace.every.as_millis()).unwrap_or(u64::MAX);
            let mut round = 0;
            while !over.load(Ordering::Relaxed) {
                match put_round(&clients, &pace, round) {
                    Ok(put) => lock(&to).puts.extend(put),
                    Err(trouble) => {
                        lock(&to).trouble = Some(trouble);
                        return;
                    }
                }
                round += 1;
                let next_ms = start_ms + round * every;
                pause(Duration::from_millis(next_ms.saturating_sub(now_ms())));
            }
        });
        Self { done, is_over }
    }

    /// What was put so far; an error where no more is put, since what may have arrived all the same is not known.
    pub(crate) fn puts(&self) -> Result<Vec<Put>, String> {
        let done = lock(&self.done);
        match &done.trouble {
            None => Ok(done.puts.clone()),
            Some(trouble) => Err(format!("the producer failed: {trouble}")),
        }
    }
}

fn lock(done: &Mutex<Done>) -> MutexGuard<'_, Done> {
    done.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Puts one record into each part of the hash range.
pub(crate) fn put_round(clients: &Clients, pace: &Pace, round: u64) -> Result<Vec<Put>, String> {
    let part = u128::MAX / u128::from(pace.parts);
    let mut put = Vec::new();
    let parts: Vec<u32> = (0..pace.parts).collect();
    // AWS: PutRecords, at most 500 records at once.
    for some in parts.chunks(500) {
        let records: Vec<Value> = some
            .iter()
            .map(|i| {
                // Moves through the part, so that after a split both children get records.
                let within = part / 16 * u128::from(round % 15) + part / 32;
                let text = format!("{{\"round\":{round},\"part\":{i}}}");
                json!({
                    "Data": base64(format!("{text:<width$}", width = pace.bytes).as_bytes()),
                    "PartitionKey": format!("part-{i}"),
                    "ExplicitHashKey": (part * u128::from(*i) + within).to_string(),
                })
            })
            .collect();
        put.extend(put_records(clients, &pace.stream, &records)?);
    }
    Ok(put)
}

/// Puts records as they are.
pub(crate) fn put_records(clients: &Clients, stream: &str, records: &[Value]) -> Result<Vec<Put>, String> {
    let answer = clients.kinesis("PutRecords", &json!({"StreamName": stream, "Records": records}))?;
    let results = answer["Records"].as_array().ok_or("PutRecords told no records")?;
    let put = |result: &Value| {
        let position = Position::new(result["SequenceNumber"].as_str()?, 0)?;
        Some((result["ShardId"].as_str()?.to_owned(), position))
    };
    results
        .iter()
        .map(|result| put(result).ok_or_else(|| format!("PutRecords refused a record: {result}")))
        .collect()
}

/// Base64 with padding, which Kinesis wants in JSON.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three
            .iter()
            .enumerate()
            .fold(0_u32, |word, (i, byte)| word | u32::from(*byte) << (16 - 8 * i));
        for i in 0..4 {
            if i <= three.len() {
                let letter = (word >> (18 - 6 * i)) & 63;
                text.push(char::from(LETTERS[letter as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), text);
        }
    }
}
