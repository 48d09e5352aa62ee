//! Reading a request's fields, with the service's own complaints.
//!
//! A value of the wrong kind is a `SerializationException` at once; values outside the model's constraints are collected and
//! answered together in one `ValidationException`, as the service does.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::model::{ApiError, StreamRef};
use crate::wire::{Value, millis_of_seconds};

/// Complaints are listed up to this many.
const MAX_PROBLEMS: usize = 10;

const NAME_PATTERN: &str = "[a-zA-Z0-9_.-]+";

/// The fields of one request.
#[derive(Debug)]
pub(crate) struct Input<'v> {
    value: &'v Value<'v>,
    problems: Vec<String>,
    malformed: Option<ApiError>,
}

impl<'v> Input<'v> {
    pub(crate) fn new(value: &'v Value<'v>) -> Self {
        let malformed = (!matches!(value, Value::Map(_)))
            .then(|| ApiError::serialization("The body must be an object with the operation's fields."));
        Self {
            value,
            problems: Vec::new(),
            malformed,
        }
    }

    /// True where anything was wrong so far.
    pub(crate) fn is_faulty(&self) -> bool {
        self.malformed.is_some() || !self.problems.is_empty()
    }

    /// Ends the reading: an error where anything was wrong.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        if let Some(malformed) = self.malformed {
            return Err(malformed);
        }
        let count = self.problems.len();
        if count == 0 {
            return Ok(());
        }
        let plural = if count == 1 { "" } else { "s" };
        let mut problems = self.problems;
        problems.truncate(MAX_PROBLEMS);
        Err(ApiError::validation(format!(
            "{count} validation error{plural} detected: {}",
            problems.join("; ")
        )))
    }

    /// Notes that a value breaks a constraint.
    pub(crate) fn refuse(&mut self, value: &str, field: &str, constraint: &str) {
        let shown: String = value.chars().take(256).collect();
        let place = member_name(field);
        self.problems.push(format!(
            "Value '{shown}' at '{place}' failed to satisfy constraint: Member must {constraint}"
        ));
    }

    fn missing(&mut self, field: &str) {
        let place = member_name(field);
        self.problems.push(format!(
            "Value null at '{place}' failed to satisfy constraint: Member must not be null"
        ));
    }

    fn mistyped(&mut self, field: &str, expected: &str) {
        self.malformed
            .get_or_insert_with(|| ApiError::serialization(format!("{field} must be {expected}.")));
    }

    fn field(&self, name: &str) -> Option<&'v Value<'v>> {
        self.value.get(name).filter(|v| **v != Value::Null)
    }

    /// True where the field was given.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.field(name).is_some()
    }

    pub(crate) fn text(&mut self, name: &str) -> Option<&'v str> {
        let value = self.field(name)?;
        if !matches!(value, Value::Text(_)) {
            self.mistyped(name, "a text");
        }
        value.as_text()
    }

    pub(crate) fn required_text(&mut self, name: &str) -> &'v str {
        if !self.has(name) {
            self.missing(name);
        }
        self.text(name).unwrap_or_default()
    }

    fn check_length(&mut self, text: &str, name: &str, max: usize) {
        if text.is_empty() {
            self.refuse(text, name, "have length greater than or equal to 1");
        } else if text.chars().nth(max).is_some() {
            self.refuse(text, name, &format!("have length less than or equal to {max}"));
        }
    }

    /// A name of letters, digits, `_`, `.` and `-`.
    pub(crate) fn name(&mut self, name: &str) -> Option<&'v str> {
        let text = self.text(name)?;
        self.check_length(text, name, 128);
        if !text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
        {
            self.refuse(
                text,
                name,
                &format!("satisfy regular expression pattern: {NAME_PATTERN}"),
            );
        }
        Some(text)
    }

    pub(crate) fn required_name(&mut self, name: &str) -> &'v str {
        if !self.has(name) {
            self.missing(name);
        }
        self.name(name).unwrap_or_default()
    }

    /// An ARN of a stream, or of a consumer of one.
    pub(crate) fn arn(&mut self, name: &str) -> Option<&'v str> {
        let text = self.text(name)?;
        self.check_length(text, name, 2048);
        let fits = text.starts_with("arn:aws") && text.contains(":kinesis:") && text.contains(":stream/");
        if !fits && !text.is_empty() {
            let pattern = "arn:aws.*:kinesis:.*:\\d{12}:.*stream/\\S+";
            self.refuse(
                text,
                name,
                &format!("satisfy regular expression pattern: {pattern}"),
            );
        }
        Some(text)
    }

    pub(crate) fn required_arn(&mut self, name: &str) -> &'v str {
        if !self.has(name) {
            self.missing(name);
        }
        self.arn(name).unwrap_or_default()
    }

    /// The stream that `StreamName` and `StreamARN` name.
    pub(crate) fn stream(&mut self) -> StreamRef<'v> {
        StreamRef {
            name: self.name("StreamName"),
            arn: self.arn("StreamARN"),
        }
    }

    pub(crate) fn integer(&mut self, name: &str, min: i64, max: i64) -> Option<u64> {
        let value = match self.field(name)? {
            Value::Int(number) => *number,
            #[expect(clippy::cast_possible_truncation, reason = "a whole number in range")]
            Value::Float(number) if number.fract() == 0.0 && number.abs() < 9.0e15 => *number as i64,
            _ => {
                self.mistyped(name, "a whole number");
                return None;
            }
        };
        if value < min {
            self.refuse(
                &value.to_string(),
                name,
                &format!("have value greater than or equal to {min}"),
            );
        } else if value > max {
            self.refuse(
                &value.to_string(),
                name,
                &format!("have value less than or equal to {max}"),
            );
        }
        u64::try_from(value).ok()
    }

    pub(crate) fn required_integer(&mut self, name: &str, min: i64, max: i64) -> u64 {
        if !self.has(name) {
            self.missing(name);
        }
        self.integer(name, min, max).unwrap_or_default()
    }

    pub(crate) fn boolean(&mut self, name: &str) -> bool {
        match self.field(name) {
            Some(Value::Bool(value)) => *value,
            None => false,
            Some(_) => {
                self.mistyped(name, "true or false");
                false
            }
        }
    }

    /// One of a set of texts; the index of the one that was given.
    pub(crate) fn choice(&mut self, name: &str, choices: &[&str]) -> Option<usize> {
        let text = self.text(name)?;
        let found = choices.iter().position(|c| *c == text);
        if found.is_none() {
            self.refuse(
                text,
                name,
                &format!("satisfy enum value set: [{}]", choices.join(", ")),
            );
        }
        found
    }

    pub(crate) fn required_choice(&mut self, name: &str, choices: &[&str]) -> usize {
        if !self.has(name) {
            self.missing(name);
        }
        self.choice(name, choices).unwrap_or_default()
    }

    /// A time, in milliseconds.
    pub(crate) fn time(&mut self, name: &str) -> Option<u64> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "whole seconds of any real time are exact"
        )]
        let ms = match self.field(name)? {
            Value::Time(ms) => Some(*ms),
            Value::Int(seconds) => millis_of_seconds(*seconds as f64),
            Value::Float(seconds) => millis_of_seconds(*seconds),
            _ => None,
        };
        if ms.is_none() {
            self.mistyped(name, "a time in seconds since 1970");
        }
        ms
    }

    /// A nested object, read with the same rules; its complaints join this request's.
    pub(crate) fn nested<T>(&mut self, name: &str, read: impl FnOnce(&mut Input<'v>) -> T) -> Option<T> {
        let value = self.field(name)?;
        let mut inner = Input::new(value);
        let result = read(&mut inner);
        self.absorb(name, inner);
        Some(result)
    }

    /// The items of a list of objects.
    pub(crate) fn items(&mut self, name: &str, min: usize, max: usize) -> &'v [Value<'v>] {
        let items: &'v [Value<'v>] = match self.field(name) {
            Some(Value::List(items)) => items,
            None => {
                self.missing(name);
                return &[];
            }
            Some(_) => {
                self.mistyped(name, "a list");
                return &[];
            }
        };
        if items.len() < min {
            self.refuse("[]", name, &format!("have length greater than or equal to {min}"));
        } else if items.len() > max {
            self.refuse("[...]", name, &format!("have length less than or equal to {max}"));
        }
        items
    }

    /// Takes over what was wrong with a part of this request.
    pub(crate) fn absorb(&mut self, place: &str, inner: Input<'_>) {
        let place = member_name(place);
        self.malformed = self.malformed.take().or(inner.malformed);
        self.problems.extend(
            inner
                .problems
                .into_iter()
                .map(|p| p.replacen(" at '", &format!(" at '{place}."), 1)),
        );
    }

    /// Texts of a list.
    pub(crate) fn texts(&mut self, name: &str, max: usize) -> Vec<&'v str> {
        let items = self.items(name, 1, max);
        let texts: Vec<&str> = items.iter().filter_map(Value::as_text).collect();
        if texts.len() != items.len() {
            self.mistyped(name, "a list of texts");
        }
        texts
    }

    /// Tags: up to 200 in one request.
    pub(crate) fn tags(&mut self, name: &str, required: bool) -> BTreeMap<String, String> {
        let fields = match self.field(name) {
            Some(Value::Map(fields)) => fields,
            None => {
                if required {
                    self.missing(name);
                }
                return BTreeMap::new();
            }
            Some(_) => {
                self.mistyped(name, "an object of texts");
                return BTreeMap::new();
            }
        };
        if fields.is_empty() {
            self.refuse("{}", name, "have length greater than or equal to 1");
        } else if fields.len() > 200 {
            self.refuse("{...}", name, "have length less than or equal to 200");
        }
        let mut tags = BTreeMap::new();
        for (key, value) in fields {
            let Some(value) = value.as_text() else {
                self.mistyped(name, "an object of texts");
                continue;
            };
            self.check_length(key, name, 128);
            if value.chars().nth(256).is_some() {
                self.refuse(value, name, "have length less than or equal to 256");
            }
            tags.insert(key.clone().into_owned(), value.to_owned());
        }
        tags
    }

    /// Appends a blob to `arena` and says whether there was one: base64 text in JSON, a byte string in CBOR.
    pub(crate) fn blob_into(&mut self, name: &str, arena: &mut Vec<u8>) {
        match self.field(name) {
            Some(Value::Bytes(bytes)) => arena.extend_from_slice(bytes),
            Some(Value::Text(text)) => {
                if STANDARD.decode_vec(text.as_bytes(), arena).is_err() {
                    self.mistyped(name, "base64 text");
                }
            }
            Some(_) => self.mistyped(name, "a blob"),
            None => self.missing(name),
        }
    }

    /// A partition key of 1 to 256 characters.
    pub(crate) fn partition_key(&mut self) -> Option<&'v str> {
        let key = self.text("PartitionKey")?;
        self.check_length(key, "PartitionKey", 256);
        Some(key)
    }

    /// A hash key: a decimal number without leading zeros. `Some(Err)` where it is beyond 2^128 - 1.
    pub(crate) fn hash_key(&mut self, name: &str) -> Option<Result<u128, &'v str>> {
        let text = self.text(name)?;
        let digits = !text.is_empty() && text.len() <= 39 && text.bytes().all(|b| b.is_ascii_digit());
        if !digits || (text.len() > 1 && text.starts_with('0')) {
            self.refuse(
                text,
                name,
                "satisfy regular expression pattern: 0|([1-9]\\d{0,38})",
            );
            return None;
        }
        Some(text.parse().map_err(|_| text))
    }

    /// A sequence number as the model allows it: up to 129 digits without leading zeros.
    pub(crate) fn sequence_number(&mut self, name: &str) -> Option<&'v str> {
        let text = self.text(name)?;
        let digits = !text.is_empty() && text.len() <= 129 && text.bytes().all(|b| b.is_ascii_digit());
        if !digits || (text.len() > 1 && text.starts_with('0')) {
            self.refuse(
                text,
                name,
                "satisfy regular expression pattern: 0|([1-9]\\d{0,128})",
            );
        }
        Some(text)
    }
}

/// A field's name as complaints spell it: the first letter is small.
fn member_name(field: &str) -> String {
    let mut chars = field.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_ascii_lowercase().to_string() + chars.as_str()
    })
}
