//! As much of an HTTP client as loopback services need: one call, one connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(10);
/// The embedded DynamoDB wants a signature to be there; nobody checks it.
const SIGNATURE: &str = "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0";

/// Makes a call and returns status and body.
pub(crate) fn call(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<(u16, String), String> {
    let fail =
        |what: &str, error: &dyn std::fmt::Display| format!("{method} {address}{path}: {what}: {error}");
    let mut socket = TcpStream::connect(address).map_err(|e| fail("connecting", &e))?;
    socket
        .set_read_timeout(Some(PATIENCE))
        .map_err(|e| fail("a deadline", &e))?;
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        request.extend([name, ": ", value, "\r\n"]);
    }
    request += "\r\n";
    request += body;
    socket
        .write_all(request.as_bytes())
        .map_err(|e| fail("writing", &e))?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).map_err(|e| fail("reading", &e))?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or_else(|| fail("reading", &"no HTTP answer"))?;
    let status = head
        .split_whitespace()
        .nth(1)
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| fail("reading", &"no HTTP status"))?;
    Ok((status, body.to_owned()))
}

/// Calls an operation of an AWS service that speaks JSON, such as `Kinesis_20131202.PutRecords`.
pub(crate) fn aws(address: &str, operation: &str, input: &Value) -> Result<Value, String> {
    // Each service knows one version of the format.
    let format = if operation.starts_with("DynamoDB") {
        "application/x-amz-json-1.0"
    } else {
        "application/x-amz-json-1.1"
    };
    let headers = [
        ("X-Amz-Target", operation),
        ("Content-Type", format),
        ("X-Amz-Date", "20260101T000000Z"),
        ("Authorization", SIGNATURE),
    ];
    let (status, body) = call(address, "POST", "/", &headers, &input.to_string())?;
    if status != 200 {
        return Err(format!("{operation}: {status}: {body}"));
    }
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_str(&body).map_err(|e| format!("{operation}: {e}: {body}"))
}
