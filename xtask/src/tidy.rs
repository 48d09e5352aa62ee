//! Rules of the workspace that no compiler knows.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which crates of the workspace a crate may depend on. A crate that is not listed here has to be added, with thought.
const ARROWS: &[(&str, &[&str])] = &[
    ("shardfleet-core", &[]),
    ("shardfleet-clock", &["shardfleet-core"]),
    ("shardfleet-status", &["shardfleet-core", "shardfleet-clock"]),
    (
        "shardfleet",
        &["shardfleet-core", "shardfleet-clock", "shardfleet-status"],
    ),
    // An independent witness: it must not share code with what it is used to test.
    ("shardfleet-local", &[]),
    (
        "shardfleet-cli",
        &["shardfleet", "shardfleet-local", "shardfleet-status"],
    ),
    ("shardfleet-sim", &["shardfleet-core"]),
    ("xtask", &[]),
];

/// What the pure core must not name.
const NOT_IN_CORE: &[&str] = &[
    "SystemTime",
    "std::time::Instant",
    "tokio",
    "aws_sdk",
    "rand::",
    "std::fs",
    "std::net",
    "std::env",
    "HashMap",
    "HashSet",
];

/// Lines of one Rust file beyond which it is to be split.
const LINES_MAX: usize = 600;

/// Runs every check; all findings in one error.
pub(crate) fn run() -> Result<(), String> {
    let root = root()?;
    let mut findings = Vec::new();
    check_arrows(&root, &mut findings)?;
    for path in tracked(&root)? {
        let Ok(text) = fs::read_to_string(root.join(&path)) else {
            continue;
        };
        check_file(&path, &text, &mut findings);
    }
    if findings.is_empty() {
        Ok(())
    } else {
        Err(format!("tidy found:\n  {}", findings.join("\n  ")))
    }
}

/// The workspace's folder. Asked for when this runs: what was compiled in would be another clone's, where two share a target folder.
pub(crate) fn root() -> Result<PathBuf, String> {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    own.as_deref()
        .and_then(Path::parent)
        .map(Path::to_owned)
        .ok_or_else(|| "the workspace's folder is not known; run this as `cargo xtask`".to_owned())
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?} failed: {e}"))?;
    if !output.status.success() {
        return Err(format!(
            "{command:?} failed: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    String::from_utf8(output.stdout).map_err(|e| format!("{command:?} printed no text: {e}"))
}

fn tracked(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut git = Command::new("git");
    git.current_dir(root)
        .args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    Ok(output(&mut git)?.lines().map(PathBuf::from).collect())
}

fn check_arrows(root: &Path, findings: &mut Vec<String>) -> Result<(), String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(root)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    let metadata: serde_json::Value =
        serde_json::from_str(&output(&mut cargo)?).map_err(|e| format!("cargo metadata: {e}"))?;
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let packages = metadata["packages"]
        .as_array()
        .ok_or("cargo metadata lists no packages")?;
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(may) = allowed.get(name) else {
            findings.push(format!(
                "crate {name} is not in the list of arrows between crates"
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let on = dependency["name"].as_str().unwrap_or_default();
            // Tests may use what the crate itself must not.
            let is_for_tests = dependency["kind"].as_str() == Some("dev");
            if allowed.contains_key(on) && !may.contains(&on) && !is_for_tests {
                findings.push(format!("crate {name} must not depend on {on}"));
            }
        }
    }
    Ok(())
}

fn check_file(path: &Path, text: &str, findings: &mut Vec<String>) {
    let shown = path.display();
    let is_rust = path.extension().is_some_and(|e| e == "rs");
    let lines = text.lines().count();
    if is_rust && lines > LINES_MAX {
        findings.push(format!("{shown}: {lines} lines; split it below {LINES_MAX}"));
    }
    let is_core = path.starts_with("crates/shardfleet-core/src") && !path.ends_with("tests.rs");
    let is_this_file = path.ends_with("xtask/src/tidy.rs");
    for (i, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        if is_core && let Some(word) = NOT_IN_CORE.iter().find(|word| code.contains(**word)) {
            findings.push(format!("{shown}:{}: the core must not name {word}", i + 1));
        }
        let unfinished = ["todo!(", "unimplemented!(", "TODO", "FIXME"];
        if is_rust && !is_this_file && unfinished.iter().any(|word| line.contains(word)) {
            findings.push(format!("{shown}:{}: unfinished", i + 1));
        }
        if is_rust && line.trim_start().starts_with("#[ignore") {
            findings.push(format!(
                "{shown}:{}: a test that is never run proves nothing",
                i + 1
            ));
        }
    }
}
