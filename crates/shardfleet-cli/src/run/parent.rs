//! A worker that must not outlive the process that started it.

use std::io::Read;

/// Ends this process as soon as standard input closes, which happens however the parent ends: the kernel closes its side of the pipe.
///
/// At once, not in order: the parent of such a worker runs the services that an orderly end would need. A thread of its own watches, so that nothing that
/// hangs elsewhere holds it up.
pub(super) fn end_with_standard_input() {
    std::thread::spawn(|| {
        let mut ignored = [0; 64];
        let mut input = std::io::stdin().lock();
        loop {
            match input.read(&mut ignored) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        std::process::exit(1);
    });
}
