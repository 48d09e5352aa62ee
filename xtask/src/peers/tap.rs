//! Counts what one worker asks of DynamoDB: a TCP relay of its own in front of the service, which passes every byte on unchanged and counts
//! the names of operations as they go by.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What stands before the operation's name in each request.
const MARK: &[u8] = b"DynamoDB_20120810.";

/// Calls by operation.
pub(crate) type Calls = BTreeMap<String, u64>;

/// A relay. It ends when dropped; connections that are open end with their worker.
pub(crate) struct Tap {
    address: String,
    shared: Arc<Shared>,
}

struct Shared {
    target: String,
    calls: Mutex<Calls>,
    is_over: AtomicBool,
}

impl Tap {
    /// Listens on a free port of 127.0.0.1 and passes on to `target`.
    pub(crate) fn open(target: &str) -> Result<Self, String> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|e| format!("a relay: {e}"))?;
        let address = listener
            .local_addr()
            .map_err(|e| format!("a relay: {e}"))?
            .to_string();
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            calls: Mutex::new(Calls::new()),
            is_over: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || accept(&listener, &of_thread));
        Ok(Self { address, shared })
    }

    /// Where the worker is to go.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The calls so far.
    pub(crate) fn calls(&self) -> Calls {
        self.shared.calls().clone()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for a connection.
        drop(TcpStream::connect(&self.address));
    }
}

impl Shared {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for socket in listener.incoming() {
        if shared.is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(near) = socket else { continue };
        // The worker sees a connection that closes, and tries again.
        let Ok(far) = TcpStream::connect(&shared.target) else {
            continue;
        };
        near.set_nodelay(true).ok();
        far.set_nodelay(true).ok();
        let (Ok(near_back), Ok(far_back)) = (near.try_clone(), far.try_clone()) else {
            continue;
        };
        let of_thread = Arc::clone(shared);
        std::thread::spawn(move || {
            let mut counter = Counter::default();
            relay(near, far, |bytes| {
                for operation in counter.feed(bytes) {
                    *of_thread.calls().entry(operation).or_default() += 1;
                }
            });
        });
        std::thread::spawn(move || relay(far_back, near_back, |_| {}));
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, mut see: impl FnMut(&[u8])) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(read) = from.read(&mut bytes) {
        if read == 0 {
            break;
        }
        see(&bytes[..read]);
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    to.shutdown(Shutdown::Write).ok();
    from.shutdown(Shutdown::Read).ok();
}

/// Finds the names of operations in a stream of bytes that comes in pieces.
#[derive(Default)]
struct Counter {
    /// The end of what came, as far as a name may have begun in it.
    rest: Vec<u8>,
}

impl Counter {
    fn feed(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let mut found = Vec::new();
        let mut at = 0;
        while let Some(mark) = position(&self.rest[at..], MARK) {
            let name = at + mark + MARK.len();
            let letters = self.rest[name..]
                .iter()
                .take_while(|byte| byte.is_ascii_alphabetic())
                .count();
            if name + letters == self.rest.len() {
                // The name may go on in the next piece.
                self.rest.drain(..at + mark);
                return found;
            }
            found.push(String::from_utf8_lossy(&self.rest[name..name + letters]).into_owned());
            at = name + letters;
        }
        let keep = (self.rest.len() - at).min(MARK.len() - 1);
        self.rest.drain(..self.rest.len() - keep);
        found
    }
}

fn position(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_however_the_bytes_are_cut() {
        let request = b"POST / HTTP/1.1\r\nX-Amz-Target: DynamoDB_20120810.UpdateItem\r\n\r\n{}\
                        POST / HTTP/1.1\r\nx-amz-target: DynamoDB_20120810.Scan\r\n\r\n";
        for piece in 1..request.len() {
            let mut counter = Counter::default();
            let found: Vec<String> = request
                .chunks(piece)
                .flat_map(|bytes| counter.feed(bytes))
                .collect();
            assert_eq!(found, ["UpdateItem", "Scan"], "in pieces of {piece}");
        }
    }
}
