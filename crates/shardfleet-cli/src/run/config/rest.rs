//! The table `[rest]`: where a worker answers as a Kafka Connect worker does.

use std::net::SocketAddr;

use super::section::Section;

/// Reads `[rest]`. Without an address there is no interface: several workers of one machine cannot share a default.
pub(super) fn read(mut section: Section<'_>) -> Option<SocketAddr> {
    let text = section.text("listen");
    let listen = text.as_ref().and_then(|text| text.parse().ok());
    if let (Some(text), None) = (text, listen) {
        section.problem(
            "listen",
            &format!("{text:?} is no address and port, such as \"127.0.0.1:8083\" or \"[::1]:8083\""),
        );
    }
    section.finish();
    listen
}
