//! Hedged reads: a read that its worker keeps waiting goes to another one as well, and the first answer counts. The
//! decisions are [`forebay_cluster`]'s; this waits and counts. Whom to ask instead, the caller says ([`crate::blocks`]).
//!
//! Each request has a buffer of its own. The one that is given up is dropped as any call may be: its buffer stays with
//! the transport until nobody can write to it any more (invariant 3), and never comes back to the reader.
//!
//! An answer that is an error settles nothing while another request is under way, which gets a moment then: it may be
//! silent, and others are left to ask. That the caller may not read the bytes settles it.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_cluster::{HedgeBudget, HedgeOptions, Step, Watch};
use forebay_transport::{CallError, Flags, Op, Reply, Request};
use forebay_types::FailureKind;
use futures::future::BoxFuture;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::routes::Link;
use crate::stats::ClientStats;

/// How long a hedge may take for its answer when the worker that was asked first has failed: as long as a read may of a
/// worker of which nothing is known. Then the next one is asked, whose read is hedged like any other.
const AFTER_FAILURE: Duration = Duration::from_millis(400);

/// How long a read at least waits that finds out how a worker is that was left out, because it was slow or could not be
/// reached. It may be well and merely cold: others have its blocks by now, and would win every race against its origin.
/// So it would never be taken back, nor would it become known how long it takes now.
const PATIENCE: Duration = Duration::from_millis(100);

/// A read that is sent to another, when it is polled.
pub(crate) struct Hedge<'h> {
    /// The worker; the origin, where there is none.
    pub(crate) by: Option<Arc<Link>>,
    pub(crate) answer: BoxFuture<'h, Result<Reply, CallError>>,
}

/// Why a read is not sent to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHedge {
    /// There is no other to ask, or no token to do it with.
    Unasked,
    /// There is no memory for a second answer.
    NoMemory,
}

/// Who was asked, the origin where there is none, and what came of it.
pub(crate) type Asked = (Option<Arc<Link>>, Result<Reply, CallError>);

/// What came of a read.
pub(crate) struct Raced {
    /// The answer of the worker that was asked first; `None`: another was faster.
    pub(crate) first: Option<Result<Reply, CallError>>,
    /// The answers of the others, which are errors but for the last.
    pub(crate) others: Vec<Asked>,
    /// Whether the worker was left without any answer, to have its memory for another.
    pub(crate) is_left: bool,
}

impl Raced {
    fn of(first: Result<Reply, CallError>) -> Self {
        Self { first: Some(first), others: Vec::new(), is_left: false }
    }

    /// Whether nobody has answered, because the worker does not know the file version.
    pub(crate) fn needs_description(&self) -> bool {
        let Some(Err(CallError::Service(failure))) = &self.first else { return false };
        failure.kind() == FailureKind::NeedsDescription && self.others.iter().all(|(_, answer)| answer.is_err())
    }
}

/// Whether the caller may not read the bytes: what another worker has not heard of that is not to be found out.
fn is_denied(answer: &Result<Reply, CallError>) -> bool {
    matches!(answer, Err(CallError::Service(failure)) if failure.kind() == FailureKind::PermissionDenied)
}

/// See above.
pub(crate) struct Hedging {
    options: Option<HedgeOptions>,
    budget: HedgeBudget,
    /// How many workers are slow. One that leaves meanwhile still counts: then requests look who is slow, and find nobody.
    slow: AtomicUsize,
    stats: Arc<ClientStats>,
}

impl Hedging {
    /// With these options; without, no read is hedged.
    pub(crate) fn new(options: Option<HedgeOptions>, stats: Arc<ClientStats>) -> Self {
        let budget = HedgeBudget::new(options.map_or(0, |options| options.budget_percent));
        Self { options, budget, slow: AtomicUsize::new(0), stats }
    }

    /// Whether another worker's answer to this is as good: not if the worker is to look at what itself holds.
    pub(crate) fn applies_to(&self, request: &Request) -> bool {
        let is_of_one_worker = request.flags.contains(Flags::SCRUB) || request.flags.contains(Flags::CACHED);
        self.options.is_some() && request.op == Op::Read && !is_of_one_worker
    }

    /// Whether there may be a worker that is slow.
    #[inline]
    pub(crate) fn has_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed) > 0
    }

    /// What comes of `call`, a read of `length` bytes of `link`, and of what `hedge` names in its place when it is overdue.
    pub(crate) async fn race<'h, C, H>(&self, link: &Link, length: u32, call: C, hedge: &mut H) -> Raced
    where
        C: Future<Output = Result<Reply, CallError>> + Send,
        H: FnMut() -> Result<Hedge<'h>, NoHedge> + Send,
    {
        let least = self.options.map_or(Duration::MAX, |options| options.min_delay);
        let mut overdue_after = link.speed.overdue_after(length).max(least);
        if link.speed.is_slow() || link.health.lock().is_down() {
            overdue_after = overdue_after.max(PATIENCE);
        }
        self.budget.read();
        let began = Instant::now();
        let mut call = pin!(call);
        // The timer is armed when the call has to be waited for.
        let answer = tokio::select! {
            biased;
            answer = &mut call => answer,
            () = tokio::time::sleep(overdue_after) => {
                return Box::pin(self.overdue(link, length, (began, overdue_after), call, hedge)).await;
            }
        };
        self.answered(link, length, began, &answer, true);
        Raced::of(answer)
    }

    async fn overdue<'h, C, H>(
        &self,
        link: &Link,
        length: u32,
        (began, overdue_after): (Instant, Duration),
        mut call: Pin<&mut C>,
        hedge: &mut H,
    ) -> Raced
    where
        C: Future<Output = Result<Reply, CallError>> + Send,
        H: FnMut() -> Result<Hedge<'h>, NoHedge> + Send,
    {
        let mut watch = Watch::new(overdue_after);
        let answers_before = link.speed.answers();
        let mut others = Vec::new();
        while watch.step() == Step::Hedge {
            let is_urgent = watch.is_urgent(began.elapsed());
            let sent = self.send(link, is_urgent, hedge);
            // Where all memory is that of readers who wait for a worker that stands still, somebody has to make room.
            if sent.as_ref().err() == Some(&NoHedge::NoMemory) && (is_urgent || link.speed.is_slow()) {
                self.lost(link, length, began.elapsed(), Some(false));
                return Raced { first: None, others, is_left: true };
            }
            let Ok(Hedge { by, mut answer }) = sent else {
                let pause = watch.refused();
                let answer = tokio::select! {
                    biased;
                    answer = call.as_mut() => Some(answer),
                    () = tokio::time::sleep(pause) => None,
                };
                let Some(answer) = answer else { continue };
                // There was no race that it could have won.
                self.answered(link, length, began, &answer, false);
                return Raced { first: Some(answer), others, is_left: false };
            };
            watch.sent();
            tokio::select! {
                biased;
                first = call.as_mut() => {
                    if first.is_ok() {
                        self.stats.hedges_wasted.fetch_add(1, Ordering::Relaxed);
                        self.answered(link, length, began, &first, true);
                        return Raced { first: Some(first), others, is_left: false };
                    }
                    if !is_denied(&first)
                        && let Ok(second) = tokio::time::timeout(AFTER_FAILURE, answer).await
                    {
                        self.ended(&second);
                        others.push((by, second));
                    } else {
                        self.stats.hedges_wasted.fetch_add(1, Ordering::Relaxed);
                    }
                    return Raced { first: Some(first), others, is_left: false };
                }
                second = &mut answer => {
                    self.ended(&second);
                    let from_origin = second.as_ref().ok().map(|reply| reply.provenance.origin > 0);
                    let is_worker = by.is_some();
                    others.push((by, second));
                    if let Some(from_origin) = from_origin {
                        let stands_still = || is_urgent && link.speed.answers() == answers_before;
                        let is_clear = if is_worker { Some(!from_origin) } else { stands_still().then_some(true) };
                        self.lost(link, length, began.elapsed(), is_clear);
                        return Raced { first: None, others, is_left: false };
                    }
                }
            }
        }
        let answer = call.await;
        self.answered(link, length, began, &answer, true);
        Raced { first: Some(answer), others, is_left: false }
    }

    /// Another to ask, if there is one and the budget allows it. Who waits for a worker that has been found slow must
    /// leave it, as must who has waited for very long.
    fn send<'h>(
        &self,
        link: &Link,
        is_urgent: bool,
        hedge: &mut impl FnMut() -> Result<Hedge<'h>, NoHedge>,
    ) -> Result<Hedge<'h>, NoHedge> {
        if !self.budget.take(is_urgent || link.speed.is_slow()) {
            self.is_slow_if(link, link.speed.still_waits(Instant::now().into_std()));
            return Err(NoHedge::Unasked);
        }
        let sent = hedge();
        match sent {
            Ok(_) => drop(self.stats.hedges_sent.fetch_add(1, Ordering::Relaxed)),
            Err(_) => self.budget.give_back(),
        }
        sent
    }

    fn ended(&self, hedge: &Result<Reply, CallError>) {
        let counter = if hedge.is_ok() { &self.stats.hedges_won } else { &self.stats.hedges_wasted };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The worker that was asked first answered, and nobody before it; `in_time`: not later than it should have, or than
    /// others did.
    #[inline]
    fn answered(&self, link: &Link, length: u32, began: Instant, answer: &Result<Reply, CallError>, in_time: bool) {
        if answer.is_err() {
            return;
        }
        let now = Instant::now();
        link.speed.took(length, now - began);
        if in_time && link.speed.in_time(now.into_std()) {
            self.slow.fetch_sub(1, Ordering::Relaxed);
            info!(worker = %link.member, "worker is no longer slow");
        }
    }

    /// Another answered before the worker that was asked first; `is_clear`: from its cache. Nothing: that does not tell how this worker
    /// is, because it was the origin, asked by this process. A worker that has too much to do must not lose its readers to that, or
    /// all mounts would read the origin.
    #[cold]
    fn lost(&self, link: &Link, length: u32, waited: Duration, is_clear: Option<bool>) {
        link.speed.gave_up(length, waited);
        if let Some(is_clear) = is_clear {
            self.is_slow_if(link, link.speed.lost(Instant::now().into_std(), is_clear));
        }
    }

    fn is_slow_if(&self, link: &Link, is_news: bool) {
        if is_news {
            self.slow.fetch_add(1, Ordering::Relaxed);
            self.stats.slow_workers.fetch_add(1, Ordering::Relaxed);
            warn!(worker = %link.member, "worker is slow: others answer reads of its blocks");
        }
    }
}
