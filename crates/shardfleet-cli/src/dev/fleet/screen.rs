//! Where a run's progress is shown: a table that is redrawn in place on a terminal, a line for each change elsewhere, or nothing.

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use crate::output::{draw, say};

/// The size of a terminal that does not tell.
const SIZE: (usize, usize) = (80, 24);

/// Shows progress on standard error.
#[derive(Debug)]
pub(super) enum Screen {
    /// Redrawn in place; the number of lines drawn last.
    Terminal(usize),
    /// A line for each change.
    Lines,
    /// Nothing.
    Quiet,
}

impl Screen {
    pub(super) fn new(is_quiet: bool) -> Self {
        if is_quiet {
            Self::Quiet
        } else if std::io::stderr().is_terminal() {
            Self::Terminal(0)
        } else {
            Self::Lines
        }
    }

    /// Whether a table is drawn.
    pub(super) fn has_table(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// Says something that stays, above the table.
    pub(super) fn note(&mut self, text: &str) {
        match self {
            Self::Quiet => {}
            Self::Lines => say(text),
            Self::Terminal(drawn) => {
                draw(&format!("{}\x1b[J{text}\n", back(*drawn)));
                *drawn = 0;
            }
        }
    }

    /// Draws the table that `table` makes for so many columns and lines.
    pub(super) fn show(&mut self, table: impl FnOnce(usize, usize) -> Vec<String>) {
        let Self::Terminal(drawn) = self else { return };
        let (columns, lines) = size();
        // The cursor stands on a line of its own below the table.
        let table = table(columns, lines.saturating_sub(1));
        let mut text = back((*drawn).min(lines.saturating_sub(1)));
        for line in &table {
            // Written over, not cleared first: clearing is what flickers.
            let _infallible = writeln!(text, "{line}\x1b[K");
        }
        text.push_str("\x1b[J");
        draw(&text);
        *drawn = table.len();
    }

    /// Takes the table away.
    pub(super) fn clear(&mut self) {
        if let Self::Terminal(drawn) = self {
            draw(&format!("{}\x1b[J", back(*drawn)));
            *drawn = 0;
        }
    }
}

/// To the start of the line so many lines above.
fn back(lines: usize) -> String {
    match lines {
        0 => "\r".to_owned(),
        lines => format!("\r\x1b[{lines}A"),
    }
}

fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(std::io::stderr()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => SIZE,
    }
}
