//! How often each caller may ask for what costs everybody: that names are forgotten, that blocks leave the cache, that
//! a block is checked again.
//!
//! Such a request is small, and dear to make up for. So each caller has a token bucket for each kind of them, by the
//! identity that it has proved. All who proved none share theirs, and what is in the worker's own process has none.
//! Reads have none either. Neither have questions about names, for which an origin may be asked: those about one name share
//! requests ([`crate::coalescing`]), and a store is sent `origin.max_concurrency` at once.
//!
//! Whoever is over its rate waits, and nobody waits for it: honest callers lose some time at most. Who would have to
//! wait for long is refused, and may ask again. A client that is refused about one name has everything forgotten before
//! it asks again, and it cannot use a worker that does not do that. So this is never refused, and those who wait for it
//! share it: what is forgotten once answers all who asked before. A thousand mounts that come back at once cost a few
//! times, and so does one that never stops asking.
//!
//! [`Callers`] decides, by the time that it is handed; [`Rates`] waits.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use forebay_transport::{Caller, Flags, Op, Request};
use forebay_types::{Failure, FailureKind};
use serde::Serialize;

/// Callers that are told apart, some 200 bytes each: more than a worker has clients. Those beyond share the buckets of
/// those who prove nothing.
const MAX_CALLERS: usize = 4096;
/// The longest wait for a token. Clients wait for five seconds to have a name forgotten; and it bounds how many wait.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Requests of those who asked too often: they waited, or were refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LimitedCounts {
    /// Requests to forget what is known of one name.
    pub refresh: u64,
    /// Requests to forget everything that is known of names.
    pub refresh_below: u64,
    /// Requests to drop blocks.
    pub free: u64,
    /// Reads that have their block checked first.
    pub scrub: u64,
}

/// What there is a rate for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limited {
    Refresh,
    RefreshBelow,
    Free,
    Scrub,
}

/// So many at once, and one more each time that this has passed.
#[derive(Clone, Copy, Debug)]
struct Rate {
    burst: u32,
    every: Duration,
}

impl Limited {
    const COUNT: usize = 4;

    /// What `request` is, if there is a rate for it and it has to have a token before anything else.
    fn of(request: &Request) -> Option<Self> {
        match request.op {
            Op::Refresh if !request.flags.contains(Flags::BELOW) => Some(Self::Refresh),
            Op::Free => Some(Self::Free),
            Op::Read if request.flags.contains(Flags::SCRUB) => Some(Self::Scrub),
            _ => None,
        }
    }

    const fn rate(self) -> Rate {
        let (burst, millis) = match self {
            // One for each directory that is made or removed, and for each change while a worker is away. Without
            // `security.mode` all mounts share this. A name costs a question or two to the origin.
            Self::Refresh => (2000, 1),
            // All names are asked for again. A client asks for it once in a while, before each of the questions that it
            // has just then.
            Self::RefreshBelow => (16, 500),
            // A job sends one after the other, each for 2000 files, which take some 10 ms. No origin lists as many.
            Self::Free => (40, 50),
            // Up to 4 MiB of memory are checked, in some 0.3 ms. Clients ask for it when bytes arrived corrupt.
            Self::Scrub => (100, 10),
        };
        Rate { burst, every: Duration::from_millis(millis) }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Refresh => "a refresh of a name",
            Self::RefreshBelow => "a refresh of all names",
            Self::Free => "a request to free blocks",
            Self::Scrub => "a check of a block",
        }
    }
}

/// A token bucket.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// When it is full, if nothing more is taken. The further away, the emptier it is.
    full_at: Instant,
}

impl Bucket {
    /// How long whoever takes the next token has to wait for it.
    fn wait(self, rate: Rate, now: Instant) -> Duration {
        let full_again = self.full_at.max(now) + rate.every;
        full_again.saturating_duration_since(now).saturating_sub(rate.every * rate.burst)
    }

    fn take(&mut self, rate: Rate, now: Instant) {
        self.full_at = self.full_at.max(now) + rate.every;
    }
}

/// Those of one caller, in the order of [`Limited`].
#[derive(Clone, Copy, Debug)]
struct Buckets([Bucket; Limited::COUNT]);

impl Buckets {
    fn full(now: Instant) -> Self {
        Self([Bucket { full_at: now }; Limited::COUNT])
    }

    fn are_full(&self, now: Instant) -> bool {
        self.0.iter().all(|bucket| bucket.full_at <= now)
    }
}

/// What becomes of a request to forget everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forgetting {
    /// It was done since the request came.
    Done,
    /// It is to be done now.
    Now,
    /// Ask again after this time.
    After(Duration),
}

/// The buckets of all callers.
#[derive(Debug)]
struct Callers {
    /// By identity.
    proved: HashMap<Box<str>, Buckets>,
    others: Buckets,
    /// How often everything was forgotten.
    forgotten: u64,
}

impl Callers {
    fn new(now: Instant) -> Self {
        Self { proved: HashMap::new(), others: Buckets::full(now), forgotten: 0 }
    }

    /// Takes a token of `caller`, who waits no longer than `patience` for it. Returns how long it has to wait.
    ///
    /// # Errors
    /// How long it would have to: nothing is taken.
    fn take(
        &mut self,
        limited: Limited,
        caller: &Caller,
        patience: Duration,
        now: Instant,
    ) -> Result<Duration, Duration> {
        if matches!(caller, Caller::Local) {
            return Ok(Duration::ZERO);
        }
        let rate = limited.rate();
        let bucket = &mut self.of(caller, now).0[limited as usize];
        let wait = bucket.wait(rate, now);
        if wait > patience {
            return Err(wait);
        }
        bucket.take(rate, now);
        Ok(wait)
    }

    /// What becomes of the request of `caller` to forget everything, which came when that had been done `before` times.
    /// At [`Forgetting::Now`] it is counted: who asks does it before anybody else is told that it was done.
    fn forget_all(&mut self, caller: &Caller, before: u64, now: Instant) -> Forgetting {
        if self.forgotten > before {
            return Forgetting::Done;
        }
        match self.take(Limited::RefreshBelow, caller, Duration::ZERO, now) {
            Ok(_) => {
                self.forgotten += 1;
                Forgetting::Now
            }
            Err(wait) => Forgetting::After(wait),
        }
    }

    fn of(&mut self, caller: &Caller, now: Instant) -> &mut Buckets {
        let Some(identity) = caller.identity() else { return &mut self.others };
        if !self.proved.contains_key(identity) {
            if self.proved.len() >= MAX_CALLERS {
                // Full ones are as good as new ones.
                self.proved.retain(|_, buckets| !buckets.are_full(now));
            }
            if self.proved.len() < MAX_CALLERS {
                self.proved.insert(identity.into(), Buckets::full(now));
            }
        }
        match self.proved.get_mut(identity) {
            Some(buckets) => buckets,
            None => &mut self.others,
        }
    }
}

/// See above.
pub(crate) struct Rates {
    callers: Mutex<Callers>,
    /// Requests that waited or were refused, in the order of [`Limited`].
    limited: [AtomicU64; Limited::COUNT],
}

impl Rates {
    pub(crate) fn new() -> Self {
        Self { callers: Mutex::new(Callers::new(now())), limited: Default::default() }
    }

    /// Waits until `request` may be done, if there is a rate for it.
    ///
    /// # Errors
    /// [`FailureKind::Unavailable`] when it would have to wait for long.
    pub(crate) async fn pace(&self, request: &Request) -> Result<(), Failure> {
        let Some(limited) = Limited::of(request) else { return Ok(()) };
        let patience = MAX_WAIT.min(request.deadline);
        let taken = self.callers.lock().take(limited, &request.caller, patience, now());
        if taken == Ok(Duration::ZERO) {
            return Ok(());
        }
        self.count(limited);
        match taken {
            Ok(wait) => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            Err(wait) => Err(refused(limited, &request.caller, wait)),
        }
    }

    /// Has `forget` forget everything, now or later, or waits until it has for somebody else: between the request of
    /// `caller` and the answer it does so at least once.
    pub(crate) async fn forget_all(&self, caller: &Caller, forget: impl Fn() + Send + Sync) {
        let before = self.callers.lock().forgotten;
        let mut has_waited = false;
        while let Some(wait) = self.try_forget_all(caller, before, &forget) {
            if !has_waited {
                self.count(Limited::RefreshBelow);
                has_waited = true;
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// How long to wait before the next try, if it is not done.
    fn try_forget_all(&self, caller: &Caller, before: u64, forget: impl FnOnce()) -> Option<Duration> {
        let mut callers = self.callers.lock();
        match callers.forget_all(caller, before, now()) {
            Forgetting::Done => None,
            Forgetting::Now => {
                // Under the lock: whoever finds it counted finds it done, and begun after its own request came.
                forget();
                None
            }
            Forgetting::After(wait) => Some(wait),
        }
    }

    fn count(&self, limited: Limited) {
        self.limited[limited as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Those who asked too often.
    pub(crate) fn limited(&self) -> LimitedCounts {
        let of = |limited: Limited| self.limited[limited as usize].load(Ordering::Relaxed);
        LimitedCounts {
            refresh: of(Limited::Refresh),
            refresh_below: of(Limited::RefreshBelow),
            free: of(Limited::Free),
            scrub: of(Limited::Scrub),
        }
    }
}

#[cold]
fn refused(limited: Limited, caller: &Caller, wait: Duration) -> Failure {
    let (name, every) = (limited.name(), limited.rate().every);
    let message = format!(
        "{caller} asks too often: {name} may come once in {every:?} on the average; ask again in {} ms",
        wait.as_millis()
    );
    Failure::new(FailureKind::Unavailable, message)
}

/// Now, by the clock that waits go by.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use forebay_types::Role;

    use super::*;

    const ALL: [Limited; Limited::COUNT] = [Limited::Refresh, Limited::RefreshBelow, Limited::Free, Limited::Scrub];
    const SECOND: Duration = Duration::from_secs(1);

    fn somebody(name: &str) -> Caller {
        Caller::proved(Role::Writer, name, &format!("spiffe://d/forebay/c/writer/{name}"))
    }

    /// How many tokens of one caller there are in `span`, for one who takes each as soon as it is there.
    fn taken(limited: Limited, span: Duration) -> u32 {
        let start = Instant::now();
        let (mut callers, mut now, mut taken) = (Callers::new(start), start, 0);
        while now < start + span {
            match callers.take(limited, &somebody("mallory"), Duration::ZERO, now) {
                Ok(_) => taken += 1,
                Err(wait) => now += wait,
            }
        }
        taken
    }

    #[test]
    fn a_burst_passes_at_once_and_after_it_the_rate_does() {
        for limited in ALL {
            let Rate { burst, every } = limited.rate();
            assert_eq!(taken(limited, every), burst, "{limited:?}");
            assert_eq!(taken(limited, every * 100), burst + 99, "{limited:?}");
        }
    }

    #[test]
    fn who_waits_gets_its_token_in_turn_and_who_would_wait_for_long_takes_none() {
        let now = Instant::now();
        let (mut callers, caller) = (Callers::new(now), somebody("mallory"));
        let Rate { burst, every } = Limited::Free.rate();
        let waits: Vec<_> = (0..).map_while(|_| callers.take(Limited::Free, &caller, SECOND, now).ok()).collect();
        let expected = (0..burst).map(|_| Duration::ZERO).chain((1..).map(|turn| every * turn));
        assert!(waits.iter().copied().eq(expected.take_while(|wait| *wait <= SECOND)), "{waits:?}");
        assert_eq!(callers.take(Limited::Free, &caller, SECOND, now), Err(SECOND + every));
        assert_eq!(callers.take(Limited::Free, &caller, SECOND, now + every), Ok(SECOND), "a refusal takes nothing");
    }

    #[test]
    fn whoever_floods_leaves_the_tokens_of_others_alone() {
        let now = Instant::now();
        let mut callers = Callers::new(now);
        for limited in ALL {
            while callers.take(limited, &somebody("mallory"), Duration::ZERO, now).is_ok() {}
            for other in [somebody("team-a"), Caller::Unproved, Caller::Local] {
                assert_eq!(
                    callers.take(limited, &other, Duration::ZERO, now),
                    Ok(Duration::ZERO),
                    "{limited:?} {other}"
                );
            }
        }
        for _ in 0..100_000 {
            assert_eq!(callers.take(Limited::Scrub, &Caller::Local, Duration::ZERO, now), Ok(Duration::ZERO));
        }
    }

    #[test]
    fn callers_are_remembered_for_as_long_as_they_owe_and_never_too_many() {
        let now = Instant::now();
        let mut callers = Callers::new(now);
        for number in 0..2 * MAX_CALLERS {
            let wait = callers.take(Limited::Refresh, &somebody(&number.to_string()), SECOND, now);
            assert!(wait.is_ok_and(|wait| wait <= SECOND) || number >= MAX_CALLERS, "{number}: {wait:?}");
        }
        assert_eq!(callers.proved.len(), MAX_CALLERS);
        callers.take(Limited::Refresh, &somebody("new"), SECOND, now + SECOND).unwrap();
        assert_eq!(callers.proved.len(), 1);
    }

    #[test]
    fn those_who_wait_to_have_everything_forgotten_share_it() {
        let start = Instant::now();
        let mut callers = Callers::new(start);
        let Rate { burst, every } = Limited::RefreshBelow.rate();
        let (mallory, other) = (somebody("mallory"), somebody("team-a"));
        for done in 0..u64::from(burst) {
            assert_eq!(callers.forget_all(&mallory, done, start), Forgetting::Now);
        }
        let before = callers.forgotten;
        for _ in 0..1000 {
            assert_eq!(callers.forget_all(&mallory, before, start), Forgetting::After(every));
        }
        assert_eq!(callers.forget_all(&other, before, start), Forgetting::Now, "nobody waits for another");
        assert_eq!(callers.forget_all(&mallory, before, start), Forgetting::Done, "it was done after the request came");
        assert_eq!(callers.forget_all(&mallory, before + 1, start), Forgetting::After(every));
        assert_eq!(callers.forget_all(&mallory, before + 1, start + every), Forgetting::Now);
        assert_eq!(callers.forget_all(&mallory, before + 1, start + every), Forgetting::Done);
    }

    #[test]
    fn a_rate_is_for_what_costs_others_and_for_no_read() {
        let of = |op: Op, flags: Flags| {
            let request = Request::on_path(op, bytes::Bytes::new(), SECOND);
            Limited::of(&request.with_flags(flags))
        };
        let plain = (0..=u8::MAX).filter_map(Op::from_wire).filter(|op| of(*op, Flags::default()).is_some());
        assert_eq!(plain.collect::<Vec<_>>(), [Op::Free, Op::Refresh]);
        assert_eq!(of(Op::Read, Flags::CHECKSUMS.and(Flags::SCRUB)), Some(Limited::Scrub));
        assert_eq!(of(Op::Read, Flags::CHECKSUMS.and(Flags::CACHED)), None);
        assert_eq!(of(Op::Refresh, Flags::BELOW), None, "it is never refused, and waits elsewhere");
    }

    #[test]
    fn a_refusal_says_who_asks_too_often_and_when_to_ask_again() {
        let failure = refused(Limited::Free, &somebody("team-a"), SECOND);
        assert!(failure.kind().is_transient());
        let expected = "`spiffe://d/forebay/c/writer/team-a` asks too often: a request to free blocks may come once in \
                        50ms on the average; ask again in 1000 ms";
        assert_eq!(failure.message(), expected);
    }
}
