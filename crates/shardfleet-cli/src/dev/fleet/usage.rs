//! How much CPU a process takes, as the kernel counts it. Says nothing on a system without `/proc`.

/// The CPU time of a process at two looks.
#[derive(Clone, Debug, Default)]
pub(super) struct Usage {
    last: Option<(u64, u64)>,
    /// Percent of one core between the last two looks.
    pub(super) percent: Option<f64>,
}

impl Usage {
    /// Looks at process `pid`; `now` in microseconds.
    pub(super) fn observe(&mut self, pid: u32, now: u64) {
        let ticks = std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .ok()
            .and_then(|stat| ticks_of(&stat));
        let per_second = rustix::param::clock_ticks_per_second();
        self.add(
            ticks.map(|ticks| ticks.saturating_mul(1_000_000) / per_second.max(1)),
            now,
        );
    }

    /// The process is gone.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    #[expect(clippy::cast_precision_loss, reason = "microseconds of a few minutes")]
    fn add(&mut self, cpu_micros: Option<u64>, now: u64) {
        let Some(cpu) = cpu_micros else {
            return self.end();
        };
        if let Some((cpu_before, before)) = self.last.replace((cpu, now))
            && now > before
        {
            self.percent = Some(cpu.saturating_sub(cpu_before) as f64 * 100.0 / (now - before) as f64);
        }
    }
}

/// User and system time of `/proc/PID/stat`, in clock ticks. The command's name, the second field, may hold spaces and parentheses.
fn ticks_of(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    // The state, right behind the name, is the third field; utime is the 14th.
    let mut fields = rest.split_ascii_whitespace().skip(14 - 3);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    user.checked_add(system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_found_behind_any_name() {
        let stat = "4242 (a (b) c 1 2) S 1 4242 4242 0 -1 4194560 900 0 1 0 31 11 7 8 20 0 9 0 5000 1 2 3";
        assert_eq!(ticks_of(stat), Some(42));
        for bad in ["", "1 (x", "1 (x) S 1 2", "1 (x) S 1 1 1 0 -1 1 1 0 1 0 a b"] {
            assert_eq!(ticks_of(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_share_needs_two_looks() {
        let mut usage = Usage::default();
        usage.add(Some(1_000_000), 5_000_000);
        assert_eq!(usage.percent, None);
        usage.add(Some(1_250_000), 6_000_000);
        assert_eq!(usage.percent, Some(25.0));
        usage.add(None, 7_000_000);
        assert_eq!(usage.percent, None, "it is gone");
    }
}
