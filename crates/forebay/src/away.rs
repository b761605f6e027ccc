//! How long a command that follows something bears that no coordinator answers: another one takes over in less.
//!
//! It is the time that counts, and not the questions: each of them may wait for half a minute by itself.

use std::time::{Duration, Instant};

use forebay_coordinator::ApiError;

/// Longer than another coordinator takes to take over.
const BORNE: Duration = Duration::from_secs(60);

/// Since when the coordinator does not answer.
#[derive(Debug, Default)]
pub(crate) struct Away {
    since: Option<Instant>,
}

impl Away {
    /// It has answered.
    pub(crate) fn answered(&mut self) {
        self.since = None;
    }

    /// It has not, as is known `now`. Whether it is to be asked again.
    pub(crate) fn is_borne(&mut self, error: &ApiError, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        error.is_unavailable() && now.saturating_duration_since(since) < BORNE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coordinator_that_is_away_is_waited_for_a_minute_however_long_each_question_takes() {
        let timed_out = ApiError::TimedOut { address: "c:1".into(), within: Duration::from_secs(35) };
        let seconds = Duration::from_secs;
        let (mut away, start) = (Away::default(), Instant::now());
        assert!(away.is_borne(&timed_out, start) && away.is_borne(&timed_out, start + seconds(36)));
        assert!(!away.is_borne(&timed_out, start + seconds(72)));
        away.answered();
        assert!(away.is_borne(&timed_out, start + seconds(100)), "it had come back");
        let denied = ApiError::Denied { address: "c:1".into() };
        assert!(!Away::default().is_borne(&denied, start), "no wait cures that");
    }
}
