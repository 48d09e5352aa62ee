//! The one place that prints: results on standard output, everything else on standard error.

use std::io::{self, Write};

/// Prints a line for a person.
pub(crate) fn say(line: &str) {
    // Nobody may be reading, which is no reason to stop working.
    writeln!(io::stderr().lock(), "{line}").ok();
}

/// Writes to a person's terminal as it is, control sequences included.
pub(crate) fn draw(text: &str) {
    let mut out = io::stderr().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
}

/// Prints a line of the result.
///
/// # Errors
/// When nobody reads standard output any more, as after `| head`.
pub(crate) fn result_line(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
