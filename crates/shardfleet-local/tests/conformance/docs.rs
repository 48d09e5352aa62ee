//! The differences as a table of `docs/embedded-kinesis.md`.

use std::fmt::Write as _;

use crate::differences::Difference;

const FILE: &str = "docs/embedded-kinesis.md";
const BEGIN: &str = "<!-- differences: begin -->\n";
const END: &str = "<!-- differences: end -->";

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*")
}

/// Steps, with those of one case together.
fn steps(all: &[&str]) -> String {
    let mut out = String::new();
    let mut case = "";
    for step in all {
        let (of, name) = step.split_once(": ").expect("a step has a case");
        match (out.is_empty(), of == case) {
            (true, _) => write!(out, "{step}"),
            (false, true) => write!(out, ", {name}"),
            (false, false) => write!(out, "; {step}"),
        }
        .expect("a String takes all");
        case = of;
    }
    out
}

fn table(differences: &[Difference]) -> String {
    let mut out =
        String::from("| case: steps | embedded | kinesis-local | AWS | right |\n|---|---|---|---|---|\n");
    for d in differences {
        let steps = cell(&steps(d.steps));
        let [ours, peer, aws] = [d.ours, d.peer, d.aws].map(cell);
        writeln!(out, "| {steps} | {ours} | {peer} | {aws} | {} |", d.right.word())
            .expect("a String takes all");
    }
    out
}

/// Compares the file's table with the list, or writes it.
pub(crate) fn check(differences: &[Difference]) {
    let path = &crate::peer::repository().join(FILE);
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{FILE}: {e}"));
    let wanted = table(differences);
    let (before, rest) = text.split_once(BEGIN).expect("the line before the table");
    let (found, after) = rest.split_once(END).expect("the line after the table");
    if found == wanted {
        return;
    }
    if std::env::var_os("SHARDFLEET_WRITE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{wanted}{END}{after}"))
            .expect("the file can be written");
        return;
    }
    panic!(
        "the table of docs/embedded-kinesis.md is not that of differences.rs: run this test with SHARDFLEET_WRITE_DOCS=1"
    );
}
