//! Hedged reads: a read that its worker keeps waiting goes to another one as well, and the first answer counts. So does a
//! question about a name. The decisions are [`forebay_cluster`]'s; this waits and counts. Whom to ask instead, the caller says
//! ([`crate::blocks`], [`crate::names`]).
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
use crate::speed::Speed;
use crate::stats::ClientStats;

/// How long a hedge may take for its answer when the worker that was asked first has failed: as long as a read may of a
/// worker of which nothing is known. Then the next one is asked, whose read is hedged like any other.
const AFTER_FAILURE: Duration = Duration::from_millis(400);

/// How long a read at least waits that finds out how a worker is that was left out, because it was slow or could not be
/// reached. It may be well and merely cold: others have its blocks by now, and would win every race against its origin.
/// So it would never be taken back, nor would it become known how long it takes now.
const PATIENCE: Duration = Duration::from_millis(100);

/// A request for which others may be asked, and the worker that is asked first.
#[derive(Clone, Copy)]
pub(crate) struct Race<'l> {
    link: &'l Link,
    op: Op,
    /// What it asks for, in bytes: how long it takes goes by that.
    length: u32,
}

impl<'l> Race<'l> {
    /// `request`, of `link`.
    pub(crate) fn of(link: &'l Link, request: &Request) -> Self {
        // A page of a listing takes longer than a name.
        let length = if request.op == Op::List { u32::MAX } else { request.length };
        Self { link, op: request.op, length }
    }

    fn speed(self) -> &'l Speed {
        self.link.speed_of(self.op)
    }

    fn is_of_names(self) -> bool {
        self.op != Op::Read
    }

    /// Whether this is an answer. That there is nothing of a name is one; that a worker cannot read is none.
    fn is_answer(self, answer: &Result<Reply, CallError>) -> bool {
        match answer {
            Ok(_) => true,
            Err(CallError::Service(failure)) => {
                self.is_of_names() && matches!(failure.kind(), FailureKind::NotFound | FailureKind::NotADirectory)
            }
            Err(CallError::Link(_)) => false,
        }
    }
}

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
    /// The answers of the others, which settle nothing but for the last.
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

    /// Whether another worker's answer to this is as good: not if the worker is to look at what itself holds, or to learn what
    /// a name is now.
    pub(crate) fn applies_to(&self, request: &Request) -> bool {
        let has = |flag| request.flags.contains(flag);
        let is_of_one_worker = match request.op {
            Op::Read => has(Flags::SCRUB) || has(Flags::CACHED),
            Op::Stat | Op::StatRead | Op::List => has(Flags::REVALIDATE),
            _ => true,
        };
        self.options.is_some() && !is_of_one_worker
    }

    /// Whether there may be a worker that is slow.
    #[inline]
    pub(crate) fn has_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed) > 0
    }

    /// What comes of `call`, the first request of `race`, and of what `hedge` names in its place when it is overdue.
    pub(crate) async fn race<'h, C, H>(&self, race: Race<'_>, call: C, hedge: &mut H) -> Raced
    where
        C: Future<Output = Result<Reply, CallError>> + Send,
        H: FnMut() -> Result<Hedge<'h>, NoHedge> + Send,
    {
        let least = self.options.map_or(Duration::MAX, |options| options.min_delay);
        let speed = race.speed();
        let mut overdue_after = speed.overdue_after(race.length).max(least);
        if speed.is_slow() || race.link.health.lock().is_down() {
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
                return Box::pin(self.overdue(race, (began, overdue_after), call, hedge)).await;
            }
        };
        self.answered(race, began, &answer, true);
        Raced::of(answer)
    }

    async fn overdue<'h, C, H>(
        &self,
        race: Race<'_>,
        (began, overdue_after): (Instant, Duration),
        mut call: Pin<&mut C>,
        hedge: &mut H,
    ) -> Raced
    where
        C: Future<Output = Result<Reply, CallError>> + Send,
        H: FnMut() -> Result<Hedge<'h>, NoHedge> + Send,
    {
        let mut watch = Watch::new(overdue_after);
        let speed = race.speed();
        let answers_before = speed.answers();
        let mut others = Vec::new();
        while watch.step() == Step::Hedge {
            let is_urgent = watch.is_urgent(began.elapsed());
            let sent = self.send(race, is_urgent, hedge);
            // Where all memory is that of readers who wait for a worker that stands still, somebody has to make room.
            if sent.as_ref().err() == Some(&NoHedge::NoMemory) && (is_urgent || speed.is_slow()) {
                self.lost(race, began.elapsed(), Some(false));
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
                self.answered(race, began, &answer, false);
                return Raced { first: Some(answer), others, is_left: false };
            };
            watch.sent();
            tokio::select! {
                biased;
                first = call.as_mut() => {
                    if race.is_answer(&first) {
                        self.stats.hedges_wasted.fetch_add(1, Ordering::Relaxed);
                        self.answered(race, began, &first, true);
                        return Raced { first: Some(first), others, is_left: false };
                    }
                    if !is_denied(&first)
                        && let Ok(second) = tokio::time::timeout(AFTER_FAILURE, answer).await
                    {
                        self.ended(race.is_answer(&second));
                        others.push((by, second));
                    } else {
                        self.stats.hedges_wasted.fetch_add(1, Ordering::Relaxed);
                    }
                    return Raced { first: Some(first), others, is_left: false };
                }
                second = &mut answer => {
                    let is_answer = race.is_answer(&second);
                    self.ended(is_answer);
                    let from_origin = second.as_ref().is_ok_and(|reply| reply.provenance.origin > 0);
                    let is_worker = by.is_some();
                    others.push((by, second));
                    if is_answer {
                        let stands_still = is_urgent && speed.answers() == answers_before;
                        let is_clear = match is_worker {
                            // What another says of a name it has from the origin.
                            true if race.is_of_names() => Some(stands_still),
                            true => Some(!from_origin),
                            false => stands_still.then_some(true),
                        };
                        self.lost(race, began.elapsed(), is_clear);
                        return Raced { first: None, others, is_left: false };
                    }
                }
            }
        }
        let answer = call.await;
        self.answered(race, began, &answer, true);
        Raced { first: Some(answer), others, is_left: false }
    }

    /// Another to ask, if there is one and the budget allows it. Who waits for a worker that has been found slow must
    /// leave it, as must who has waited for very long.
    fn send<'h>(
        &self,
        race: Race<'_>,
        is_urgent: bool,
        hedge: &mut impl FnMut() -> Result<Hedge<'h>, NoHedge>,
    ) -> Result<Hedge<'h>, NoHedge> {
        let speed = race.speed();
        if !self.budget.take(is_urgent || speed.is_slow()) {
            self.is_slow_if(race, speed.still_waits(Instant::now().into_std()));
            return Err(NoHedge::Unasked);
        }
        let sent = hedge();
        match sent {
            Ok(_) => drop(self.stats.hedges_sent.fetch_add(1, Ordering::Relaxed)),
            Err(_) => self.budget.give_back(),
        }
        sent
    }

    /// A hedge ended, with an answer or without.
    fn ended(&self, has_won: bool) {
        let counter = if has_won { &self.stats.hedges_won } else { &self.stats.hedges_wasted };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The worker that was asked first answered, and nobody before it; `in_time`: not later than it should have, or than
    /// others did.
    #[inline]
    fn answered(&self, race: Race<'_>, began: Instant, answer: &Result<Reply, CallError>, in_time: bool) {
        if !race.is_answer(answer) {
            return;
        }
        let (now, speed) = (Instant::now(), race.speed());
        speed.took(race.length, now - began);
        if in_time && speed.in_time(now.into_std()) {
            self.slow.fetch_sub(1, Ordering::Relaxed);
            info!(worker = %race.link.member, op = race.op.name(), "worker is no longer slow");
        }
    }

    /// Another answered before the worker that was asked first; `is_clear`: from its cache. Nothing: that does not tell how this worker
    /// is, because it was the origin, asked by this process. A worker that has too much to do must not lose its readers to that, or
    /// all mounts would read the origin.
    #[cold]
    fn lost(&self, race: Race<'_>, waited: Duration, is_clear: Option<bool>) {
        let speed = race.speed();
        speed.gave_up(race.length, waited);
        if let Some(is_clear) = is_clear {
            self.is_slow_if(race, speed.lost(Instant::now().into_std(), is_clear));
        }
    }

    fn is_slow_if(&self, race: Race<'_>, is_news: bool) {
        if is_news {
            self.slow.fetch_add(1, Ordering::Relaxed);
            self.stats.slow_workers.fetch_add(1, Ordering::Relaxed);
            let what = if race.is_of_names() { "questions about its names" } else { "reads of its blocks" };
            warn!(worker = %race.link.member, "worker is slow: others answer {what}");
        }
    }
}
