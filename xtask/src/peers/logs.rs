//! What a Java worker may complain about in its log. Anything else at level WARN or ERROR fails a scenario: it may be our rows' fault.

/// A part of the line, and why it is no fault of ours.
const ALLOWED: &[(&str, &str)] = &[(
    "Cannot get the shard for this ProcessTask, so duplicate KPL user records",
    "a child shard that a leader in Java has not listed yet; Java alone says so after each reshard",
)];

/// The lines that nothing explains.
pub(crate) fn complaints(log: &str) -> Vec<&str> {
    log.lines()
        .filter(|line| line.contains(" [WARN] ") || line.contains(" [ERROR] "))
        .filter(|line| ALLOWED.iter().all(|(part, _)| !line.contains(part)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::complaints;

    #[test]
    fn only_what_is_allowed_passes() {
        let log = "2026-01-31T10:00:00.000Z [main] [INFO] a.B - fine\n\
                   2026-01-31T10:00:00.000Z [main] [WARN] a.ProcessTask - Cannot get the shard for this ProcessTask, so duplicate KPL user records may come\n\
                   2026-01-31T10:00:00.000Z [main] [ERROR] a.B - Failed to parse a row\n";
        let found = complaints(log);
        assert_eq!(found.len(), 1);
        assert!(found[0].ends_with("Failed to parse a row"));
    }
}
