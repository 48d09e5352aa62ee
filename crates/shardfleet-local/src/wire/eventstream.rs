//! Frames of `application/vnd.amazon.eventstream`.
//!
//! ```text
//! u32 total length | u32 headers length | u32 CRC32 of those | headers | payload | u32 CRC32 of everything before
//! header = u8 name length, name, u8 type (7 = text), u16 value length, value
//! ```

/// One frame of text headers and a payload.
pub(crate) fn frame(headers: &[(&str, &str)], payload: &[u8]) -> Vec<u8> {
    let mut head = Vec::with_capacity(128);
    for (name, value) in headers {
        // Both come from this crate or from a fault rule; what does not fit is cut rather than misframed.
        let name = &name.as_bytes()[..name.len().min(255)];
        let value = &value.as_bytes()[..value.len().min(32_767)];
        head.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        head.extend_from_slice(name);
        head.push(7);
        head.extend_from_slice(&u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
        head.extend_from_slice(value);
    }
    let total = 12 + head.len() + payload.len() + 4;
    let mut out = Vec::with_capacity(total);
    out.extend_from_slice(&u32::try_from(total).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(&u32::try_from(head.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(&crc32fast::hash(&out).to_be_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(payload);
    out.extend_from_slice(&crc32fast::hash(&out).to_be_bytes());
    out
}

/// An event of the given type.
pub(crate) fn event(event_type: &str, content_type: &str, payload: &[u8]) -> Vec<u8> {
    let headers = [
        (":message-type", "event"),
        (":event-type", event_type),
        (":content-type", content_type),
    ];
    frame(&headers, payload)
}

/// A modelled error inside the stream.
pub(crate) fn exception(exception_type: &str, content_type: &str, payload: &[u8]) -> Vec<u8> {
    let headers = [
        (":message-type", "exception"),
        (":exception-type", exception_type),
        (":content-type", content_type),
    ];
    frame(&headers, payload)
}
