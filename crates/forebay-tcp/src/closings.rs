//! Connections that the server closed or refused: counted by reason, and logged once in a while, so that whoever makes
//! thousands of them fills no disk.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_locks::Mutex;

/// How long the log is silent about connections that are closed for the same reason as one that it told of.
const SILENCE: Duration = Duration::from_secs(10);

/// Why a server closed or refused a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Too many had not said hello yet: of its host, or of all.
    GreetingLimit,
    /// Its host had all the connections that one may have.
    ClientLimit,
    /// The server had all its connections.
    Limit,
    /// It said no hello in time.
    LateHello,
    /// The rest of a request did not arrive in time.
    LateRequest,
    /// A large body arrived too slowly.
    SlowUpload,
    /// It did not take its replies.
    RepliesNotTaken,
    /// It did not keep to the protocol, or is of another cluster or release.
    Protocol,
    /// It was idle for as long as a connection may be.
    Idle,
    /// It was idle, and another needed its place.
    MadeWay,
    /// It did not prove who it is.
    Unproved,
    /// It was admitted, and then denied, or it began to send what it may not.
    Denied,
    /// The certificate that it was admitted with has expired.
    Expired,
}

impl CloseReason {
    /// All of them, each at its own number.
    pub const ALL: [Self; 13] = [
        Self::GreetingLimit,
        Self::ClientLimit,
        Self::Limit,
        Self::LateHello,
        Self::LateRequest,
        Self::SlowUpload,
        Self::RepliesNotTaken,
        Self::Protocol,
        Self::Idle,
        Self::MadeWay,
        Self::Unproved,
        Self::Denied,
        Self::Expired,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::GreetingLimit => "greeting_limit",
            Self::ClientLimit => "client_limit",
            Self::Limit => "limit",
            Self::LateHello => "late_hello",
            Self::LateRequest => "late_request",
            Self::SlowUpload => "slow_upload",
            Self::RepliesNotTaken => "replies_not_taken",
            Self::Protocol => "protocol",
            Self::Idle => "idle",
            Self::MadeWay => "made_way",
            Self::Unproved => "unauthenticated",
            Self::Denied => "denied",
            Self::Expired => "expired",
        }
    }
}

/// The counters of one server.
#[derive(Debug, Default)]
pub(crate) struct Closings([Closing; CloseReason::ALL.len()]);

/// Of one reason.
#[derive(Debug, Default)]
struct Closing {
    count: AtomicU64,
    log: Mutex<LogLimit>,
}

impl Closings {
    /// Counts one.
    pub(crate) fn count(&self, reason: CloseReason) {
        self.of(reason).count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one, and tells an operator unless one was told just now. `cause` is for people.
    #[cold]
    pub(crate) fn tell(&self, reason: CloseReason, peer: SocketAddr, cause: &dyn Display) {
        self.count(reason);
        let line = self.of(reason).log.lock().admits(Instant::now());
        match line {
            Some(0) => tracing::warn!(%peer, reason = %cause, "closed a connection"),
            Some(others) => tracing::warn!(%peer, reason = %cause, others, "closed connections"),
            None => tracing::debug!(%peer, reason = %cause, "closed a connection"),
        }
    }

    /// How many of each reason there were.
    pub(crate) fn now(&self) -> [(CloseReason, u64); CloseReason::ALL.len()] {
        CloseReason::ALL.map(|reason| (reason, self.of(reason).count.load(Ordering::Relaxed)))
    }

    fn of(&self, reason: CloseReason) -> &Closing {
        &self.0[reason as usize]
    }
}

/// Lets one line through, and the next when it was silent for a while.
#[derive(Debug, Default)]
struct LogLimit {
    silent_until: Option<Instant>,
    withheld: u64,
}

impl LogLimit {
    /// Whether there is to be a line now, and for how many others, of which there was none.
    fn admits(&mut self, now: Instant) -> Option<u64> {
        if self.silent_until.is_some_and(|until| now < until) {
            self.withheld += 1;
            return None;
        }
        self.silent_until = Some(now + SILENCE);
        Some(std::mem::take(&mut self.withheld))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_number_and_name() {
        let mut names: Vec<_> = CloseReason::ALL.iter().map(|reason| reason.name()).collect();
        for (number, reason) in CloseReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, number);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CloseReason::ALL.len());
    }

    #[test]
    fn a_thousand_connections_make_one_line_and_the_next_says_how_many_there_were() {
        let (mut log, start) = (LogLimit::default(), Instant::now());
        assert_eq!(log.admits(start), Some(0));
        for _ in 0..1000 {
            assert_eq!(log.admits(start + SILENCE / 2), None);
        }
        assert_eq!(log.admits(start + SILENCE), Some(1000));
        assert_eq!(log.admits(start + SILENCE), None);
        assert_eq!(log.admits(start + 3 * SILENCE), Some(1));
    }

    #[test]
    fn each_is_counted_by_its_reason() {
        let closings = Closings::default();
        closings.count(CloseReason::Idle);
        closings.tell(CloseReason::Idle, ([127, 0, 0, 1], 1).into(), &"it was idle");
        closings.tell(CloseReason::Protocol, ([127, 0, 0, 1], 1).into(), &"it says nonsense");
        let counts = closings.now().into_iter().filter(|(_, count)| *count > 0).collect::<Vec<_>>();
        assert_eq!(counts, [(CloseReason::Protocol, 1), (CloseReason::Idle, 2)]);
    }
}
