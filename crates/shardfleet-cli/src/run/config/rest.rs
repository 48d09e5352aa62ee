//! The table `[rest]`: where a worker answers as a Kafka Connect worker does.

use std::net::{Ipv4Addr, SocketAddr};

use super::section::Section;

/// Connect's own port, and nobody else's machine.
const DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8083);

/// Reads `[rest]`, which is there.
pub(super) fn read(mut section: Section<'_>) -> SocketAddr {
    let listen = section.text("listen").map(|text| {
        text.parse().unwrap_or_else(|_| {
            section.problem(
                "listen",
                &format!("{text:?} is no address and port, such as \"127.0.0.1:8083\" or \"[::1]:8083\""),
            );
            DEFAULT
        })
    });
    section.finish();
    listen.unwrap_or(DEFAULT)
}
