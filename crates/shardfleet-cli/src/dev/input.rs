//! From a file of lines to records.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use shardfleet::kinesis::PutRecord;

use crate::exit::Failure;

/// `AWS: PutRecords`, 256 characters.
const KEY_CHARS_MAX: usize = 256;

/// AWS: a record and its partition key, 1 MiB by default.
const RECORD_BYTES_MAX: usize = 1 << 20;

/// Reads the lines of `path` (`-` is standard input) as records. Empty lines are left out. Without `key_field` the partition key is the line's number.
pub(crate) fn read(path: &Path, key_field: Option<&str>) -> Result<Vec<PutRecord>, Failure> {
    let name = path.display().to_string();
    if name == "-" {
        return parse(
            BufReader::new(std::io::stdin().lock()),
            "standard input",
            key_field,
        );
    }
    let file = std::fs::File::open(path)
        .map_err(|e| Failure::usage(format!("--input: opening {name} failed: {e}")))?;
    parse(BufReader::new(file), &name, key_field)
}

fn parse(mut lines: impl BufRead, name: &str, key_field: Option<&str>) -> Result<Vec<PutRecord>, Failure> {
    let mut records = Vec::new();
    let mut number = 0_u64;
    let mut line = Vec::new();
    loop {
        line.clear();
        number += 1;
        let at = || format!("--input: {name}, line {number}");
        // One byte more than a record may hold shows that a line is too long without reading all of it.
        let read = (&mut lines)
            .take(RECORD_BYTES_MAX as u64 + 2)
            .read_until(b'\n', &mut line);
        if read.map_err(|e| Failure::usage(format!("{}: {e}", at())))? == 0 {
            return Ok(records);
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        if text.is_empty() {
            continue;
        }
        let partition_key = match key_field {
            None => number.to_string(),
            Some(field) => {
                key_of(text, field).map_err(|reason| Failure::usage(format!("{}: {reason}", at())))?
            }
        };
        if text.len() + partition_key.len() > RECORD_BYTES_MAX {
            return Err(Failure::usage(format!(
                "{}: a record and its partition key hold at most {RECORD_BYTES_MAX} bytes together",
                at()
            )));
        }
        records.push(PutRecord {
            partition_key,
            explicit_hash_key: None,
            data: text.to_vec().into(),
        });
    }
}

fn key_of(line: &[u8], field: &str) -> Result<String, String> {
    let value: serde_json::Value =
        serde_json::from_slice(line).map_err(|e| format!("--key-field needs a JSON object: {e}"))?;
    let object = value
        .as_object()
        .ok_or("--key-field needs a JSON object, this is another JSON value")?;
    let key = match object.get(field) {
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(serde_json::Value::Null) | None => {
            let fields: Vec<_> = object.keys().take(12).map(String::as_str).collect();
            return Err(format!(
                "there is no field {field:?}; the object has {}",
                fields.join(", ")
            ));
        }
        Some(other) => other.to_string(),
    };
    if key.is_empty() || key.chars().count() > KEY_CHARS_MAX {
        let length = key.chars().count();
        return Err(format!(
            "field {field:?} is {length} characters long; a partition key has 1 to {KEY_CHARS_MAX}"
        ));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str, field: Option<&str>) -> Result<Vec<String>, String> {
        let records = parse(text.as_bytes(), "test", field).map_err(|failure| failure.message)?;
        Ok(records.into_iter().map(|record| record.partition_key).collect())
    }

    #[test]
    fn keys_come_from_the_field_or_the_line_number() {
        assert_eq!(keys("a\r\n\nb", None), Ok(vec!["1".into(), "3".into()]));
        assert_eq!(
            keys("{\"k\":\"x\"}\n{\"k\":5}\n", Some("k")),
            Ok(vec!["x".into(), "5".into()])
        );
    }

    #[test]
    fn bad_lines_are_named() {
        let error = keys("{\"k\":\"x\"}\n{\"city\":\"y\"}\n", Some("k")).expect_err("no such field");
        assert!(
            error.contains("line 2") && error.contains("\"k\"") && error.contains("city"),
            "{error}"
        );
        assert!(
            keys("{\"k\":\"\"}", Some("k"))
                .expect_err("empty")
                .contains("1 to 256")
        );
        assert!(
            keys("[1]", Some("k"))
                .expect_err("no object")
                .contains("JSON object")
        );
        let long = "x".repeat((1 << 20) + 1);
        assert!(keys(&long, None).expect_err("too long").contains("1048576"));
    }
}
