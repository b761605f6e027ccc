//! How many refusals of those who proved nothing are written. Pure.

use std::time::{Duration, Instant};

/// In each second. A day of them is 500 MiB at 300 bytes, what the defaults keep of files.
const PER_SECOND: u32 = 20;

/// What is left of this second's.
#[derive(Debug, Default)]
pub(super) struct Ration {
    since: Option<Instant>,
    taken: u32,
}

impl Ration {
    /// Whether one more may be written at `now`.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= Duration::from_secs(1)) {
            *self = Self { since: Some(now), taken: 0 };
        }
        let may = self.taken < PER_SECOND;
        self.taken += u32::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_gets_its_ration_of_each_second() {
        let (mut ration, start) = (Ration::default(), Instant::now());
        let mut taken = |at: u64| (0..1000).filter(|_| ration.take(start + Duration::from_millis(at))).count();
        assert_eq!((taken(0), taken(999), taken(1000), taken(5000)), (20, 0, 20, 20));
    }
}
