//! One table of the file after the other: values are taken out, checked, and what nobody asked for is unknown.

use std::fmt::Display;
use std::time::Duration;

use toml::{Table, Value};

use super::kcl;

/// What is found in a whole file.
#[derive(Debug, Default)]
pub(super) struct Findings {
    problems: Vec<String>,
    /// Every key that was asked for, in full.
    known: Vec<String>,
    /// Table and key of what nobody asked for.
    unknown: Vec<(&'static str, String)>,
}

impl Findings {
    /// Every problem, the unknown keys last: what they were meant to be is looked for in all tables.
    pub(super) fn into_problems(self) -> Vec<String> {
        let Self {
            mut problems,
            known,
            unknown,
        } = self;
        for (table, key) in unknown {
            let path = join(table, &key);
            let hint = meant(table, &key, &known);
            problems.push(format!("{path}: is not a known key; {hint}"));
        }
        problems
    }

    /// Every key that was asked for, in full.
    #[cfg(test)]
    pub(super) fn known(&self) -> &[String] {
        &self.known
    }
}

fn join(table: &str, key: &str) -> String {
    if table.is_empty() {
        key.to_owned()
    } else {
        format!("{table}.{key}")
    }
}

fn last_part(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// What an unknown key was probably meant to be.
fn meant(table: &str, key: &str, known: &[String]) -> String {
    if let Some(path) = known.iter().find(|path| last_part(path) == key) {
        return format!("it belongs elsewhere; did you mean {path}?");
    }
    if let Some(hint) = kcl::hint(key) {
        return hint;
    }
    let is_here = |path: &&String| {
        path.strip_suffix(last_part(path))
            .is_some_and(|prefix| prefix.trim_end_matches('.') == table)
    };
    let here: Vec<&str> = known.iter().filter(is_here).map(|path| last_part(path)).collect();
    if let Some(near) = nearest(key, here.iter().copied()) {
        return format!("did you mean {}?", join(table, near));
    }
    if let Some(near) = nearest(key, known.iter().map(|path| last_part(path)))
        && let Some(path) = known.iter().find(|path| last_part(path) == near)
    {
        return format!("did you mean {path}?");
    }
    if let Some(hint) = kcl::near_hint(key) {
        return hint;
    }
    format!("remove it; known here: {}", here.join(", "))
}

/// A table whose values are being taken out.
pub(super) struct Section<'a> {
    name: &'static str,
    table: Table,
    findings: &'a mut Findings,
}

impl<'a> Section<'a> {
    pub(super) fn new(name: &'static str, table: Table, findings: &'a mut Findings) -> Self {
        Self {
            name,
            table,
            findings,
        }
    }

    pub(super) fn problem(&mut self, key: &str, reason: &str) {
        let path = join(self.name, key);
        self.findings.problems.push(format!("{path}: {reason}"));
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Lets `alias` stand for `key`.
    pub(super) fn also(&mut self, alias: &'static str, key: &'static str) {
        if self.has(key) && self.has(alias) {
            self.table.remove(alias);
            self.problem(
                alias,
                &format!("is the same setting as {key}; remove one of the two"),
            );
        } else if let Some(value) = self.table.remove(alias) {
            self.table.insert(key.to_owned(), value);
        }
    }

    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.findings.known.push(join(self.name, key));
        self.table.remove(key)
    }

    fn wrong(&mut self, key: &str, value: &Value, expected: &str, fix: &str) {
        let fix = if fix.is_empty() {
            String::new()
        } else {
            format!("; {fix}")
        };
        self.problem(key, &format!("is {value}; {expected} is expected{fix}"));
    }

    pub(super) fn text(&mut self, key: &'static str) -> Option<String> {
        match self.take(key)? {
            Value::String(text) if !text.is_empty() => Some(text),
            other => {
                self.wrong(key, &other, "a text that is not empty", "");
                None
            }
        }
    }

    pub(super) fn required_text(&mut self, key: &'static str) -> String {
        let is_there = self.has(key);
        let text = self.text(key);
        if !is_there {
            self.problem(key, "is missing");
        }
        text.unwrap_or_default()
    }

    pub(super) fn texts(&mut self, key: &'static str) -> Option<Vec<String>> {
        let value = self.take(key)?;
        let texts = value.as_array().and_then(|array| {
            array
                .iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect::<Option<Vec<_>>>()
        });
        if texts.is_none() {
            self.wrong(key, &value, "a list of texts", "");
        }
        texts
    }

    /// The value that goes with one of the names; the first is the default.
    pub(super) fn choice<T: Copy>(&mut self, key: &'static str, allowed: &[(&str, T)]) -> T {
        let default = allowed[0].1;
        let Some(value) = self.take(key) else {
            return default;
        };
        match value.as_str().map(|text| chosen(text, allowed)) {
            Some(Ok(choice)) => choice,
            other => {
                let fix = other.and_then(Result::err).flatten();
                let fix = fix
                    .map(|near| format!("did you mean {near:?}?"))
                    .unwrap_or_default();
                self.wrong(key, &value, &format!("one of {}", names(allowed)), &fix);
                default
            }
        }
    }

    /// As [`choice`](Self::choice), for a list.
    pub(super) fn choices<T: Copy>(&mut self, key: &'static str, allowed: &[(&str, T)]) -> Option<Vec<T>> {
        let texts = self.texts(key)?;
        let mut choices = Vec::with_capacity(texts.len());
        for text in texts {
            match chosen(&text, allowed) {
                Ok(choice) => choices.push(choice),
                Err(near) => {
                    let fix = near
                        .map(|near| format!("; did you mean {near:?}?"))
                        .unwrap_or_default();
                    let reason = format!("names {text:?}; only {} are allowed{fix}", names(allowed));
                    self.problem(key, &reason);
                }
            }
        }
        Some(choices)
    }

    pub(super) fn flag(&mut self, key: &'static str, default: bool) -> bool {
        let Some(value) = self.take(key) else {
            return default;
        };
        value.as_bool().unwrap_or_else(|| {
            let fix = match value.as_str() {
                Some(text @ ("true" | "false")) => format!("write {text} without quotes"),
                _ => String::new(),
            };
            self.wrong(key, &value, "true or false", &fix);
            default
        })
    }

    pub(super) fn integer(&mut self, key: &'static str, default: u64, low: u64, high: u64) -> u64 {
        let Some(value) = self.take(key) else {
            return default;
        };
        let given = value.as_integer();
        match given.and_then(|n| u64::try_from(n).ok()) {
            Some(n) if (low..=high).contains(&n) => n,
            _ => {
                let beyond = given.map(|n| i128::from(n) < i128::from(low));
                let fix = fix(beyond, low, high, default);
                self.wrong(key, &value, &format!("a whole number from {low} to {high}"), &fix);
                default
            }
        }
    }

    /// A whole number of at least 1, or `"unlimited"`, which is `None` and the default.
    pub(super) fn limit(&mut self, key: &'static str) -> Option<usize> {
        let value = self.take(key)?;
        if value.as_str() == Some("unlimited") {
            return None;
        }
        let limit = value.as_integer().and_then(|n| usize::try_from(n).ok());
        let limit = limit.filter(|n| *n >= 1);
        if limit.is_none() {
            let fix = "raise it to at least 1, or leave it out for no limit";
            self.wrong(
                key,
                &value,
                "a whole number of at least 1, or \"unlimited\",",
                fix,
            );
        }
        limit
    }

    /// A number of `unit`, whole or not.
    pub(super) fn number(&mut self, key: &'static str, default: f64, low: f64, high: f64, unit: &str) -> f64 {
        let Some(value) = self.take(key) else {
            return default;
        };
        let given = as_number(&value);
        match given {
            Some(n) if (low..=high).contains(&n) => n,
            _ => {
                let beyond = given.filter(|n| !n.is_nan()).map(|n| n < low);
                let fix = fix(beyond, low, high, default);
                let expected = format!("a number from {low} to {high}{unit}");
                self.wrong(key, &value, &expected, &fix);
                default
            }
        }
    }

    /// A number of `unit` above 0; or `"unlimited"`, where that is allowed, which is `None` and the default.
    pub(super) fn positive(
        &mut self,
        key: &'static str,
        unit: &str,
        is_unlimited_allowed: bool,
    ) -> Option<f64> {
        let value = self.take(key)?;
        if is_unlimited_allowed && value.as_str() == Some("unlimited") {
            return None;
        }
        let given = as_number(&value).filter(|n| n.is_finite() && *n > 0.0);
        if given.is_none() {
            let (or, fix) = if is_unlimited_allowed {
                (
                    ", or \"unlimited\",",
                    "raise it above 0, or leave it out for no limit",
                )
            } else {
                ("", "")
            };
            self.wrong(key, &value, &format!("a number above 0{unit}{or}"), fix);
        }
        given
    }

    pub(super) fn duration(
        &mut self,
        key: &'static str,
        default: Duration,
        low: Duration,
        high: Duration,
    ) -> Duration {
        let default_text = humantime::format_duration(default).to_string();
        self.optional_duration(key, &default_text, low, high)
            .unwrap_or(default)
    }

    /// A time whose default, in words, is worked out from other settings.
    pub(super) fn optional_duration(
        &mut self,
        key: &'static str,
        default: &str,
        low: Duration,
        high: Duration,
    ) -> Option<Duration> {
        let value = self.take(key)?;
        let given = value
            .as_str()
            .and_then(|text| humantime::parse_duration(text).ok());
        if let Some(time) = given
            && (low..=high).contains(&time)
        {
            return Some(time);
        }
        // The Java KCL's times are numbers of milliseconds.
        let millis = value.as_integer().and_then(|n| u64::try_from(n).ok());
        let millis = millis
            .map(Duration::from_millis)
            .filter(|time| (low..=high).contains(time));
        let (low_text, high_text) = (humantime::format_duration(low), humantime::format_duration(high));
        let fix = match millis {
            Some(time) => format!(
                "if milliseconds are meant, write \"{}\"",
                humantime::format_duration(time)
            ),
            None => fix(given.map(|time| time < low), &low_text, &high_text, default),
        };
        let expected = format!("a time such as \"10s\" or \"250ms\", from {low_text} to {high_text},");
        self.wrong(key, &value, &expected, &fix);
        None
    }

    pub(super) fn bytes(&mut self, key: &'static str, default: u64, low: u64) -> u64 {
        let Some(value) = self.take(key) else {
            return default;
        };
        let bytes = match &value {
            Value::Integer(n) => u64::try_from(*n).ok(),
            Value::String(text) => parse_bytes(text),
            _ => None,
        };
        match bytes {
            Some(bytes) if bytes >= low => bytes,
            _ => {
                let expected =
                    format!("a size such as \"32MiB\" or a number of bytes, at least {low} bytes,");
                let fix = format!("leave it out for {default} bytes");
                self.wrong(key, &value, &expected, &fix);
                default
            }
        }
    }

    pub(super) fn table(&mut self, key: &'static str) -> Table {
        match self.take(key) {
            None => Table::new(),
            Some(Value::Table(table)) => table,
            Some(other) => {
                self.wrong(key, &other, &format!("a table, [{key}],"), "");
                Table::new()
            }
        }
    }

    /// Whatever nobody asked for is unknown.
    pub(super) fn finish(self) {
        let keys = self.table.keys().map(|key| (self.name, key.clone()));
        self.findings.unknown.extend(keys);
    }
}

/// What to do about a value that is too low (`Some(true)`), too high (`Some(false)`), or no such value at all.
fn fix(is_below: Option<bool>, low: impl Display, high: impl Display, default: impl Display) -> String {
    match is_below {
        Some(true) => format!("raise it to at least {low}, or leave it out for {default}"),
        Some(false) => format!("lower it to at most {high}, or leave it out for {default}"),
        None => format!("leave it out for {default}"),
    }
}

fn names<T>(allowed: &[(&str, T)]) -> String {
    let names: Vec<&str> = allowed.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// What the text stands for, or else the nearest name. Names as the Java KCL writes them are near.
fn chosen<'n, T: Copy>(text: &str, allowed: &[(&'n str, T)]) -> Result<T, Option<&'n str>> {
    let exact = allowed.iter().find(|(name, _)| *name == text);
    exact.map(|(_, choice)| *choice).ok_or_else(|| {
        let usual = text.to_lowercase().replace('_', "-");
        nearest(&usual, allowed.iter().map(|(name, _)| *name))
    })
}

/// The name that is so near that the text is probably a slip of it.
pub(super) fn nearest<'k>(text: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let scored = known.map(|k| (strsim::damerau_levenshtein(text, k), k));
    scored
        .filter(|(distance, k)| *distance <= k.len().max(4) / 3)
        .min()
        .map(|(_, k)| k)
}

#[expect(clippy::cast_precision_loss, reason = "settings are small numbers")]
fn as_number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|n| n as f64))
}

fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim() {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}
