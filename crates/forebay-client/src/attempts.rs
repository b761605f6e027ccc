//! The way of one request through the workers: which to ask, and which to ask next.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_cluster::{Backoff, Pauses, PlacementKey, Turn};
use forebay_transport::{CallError, LinkError, Op, Reply};
use forebay_types::{Failure, FailureKind};
use tokio::time::Instant;

use crate::hedging::Raced;
use crate::judge::Judge;
use crate::routes::{Link, Order, Routes};

/// Workers that are asked about one request when those before them answered that they cannot: three origins that are
/// down are one origin that is down.
const MAX_ANSWERS: usize = 3;
/// Paths of one worker that are tried for one request: more than any machine has network cards.
const MAX_PATHS: u32 = 16;
/// How long requests pause before they try again, while no worker can be reached: a worker that is restarted is found soon, and one
/// that stays away is not asked by each of a thousand requests all the time.
const AWAY: Backoff = Backoff { initial: Duration::from_millis(100), max: Duration::from_secs(2) };

/// See above.
pub(crate) struct Attempts<'a> {
    judge: &'a Judge,
    pub(crate) routes: Arc<Routes>,
    key: PlacementKey,
    replicas: u8,
    order: Order,
    /// Members that were left out because they failed lately: a last resort.
    passed_over: Vec<usize>,
    /// Members that are slow to answer this are left out, too.
    avoids_slow: Option<Op>,
    /// Those: they are there at least, and are asked before the last resort.
    slow: Vec<usize>,
    /// Whether the worker that is asked now is one of those.
    is_slow_resort: bool,
    started: Instant,
    /// How long it may take in all.
    timeout: Duration,
    tries: u32,
    /// Workers that said that they cannot: none is asked twice.
    answered: Vec<Arc<Link>>,
    /// The worker to ask again, over another path.
    again: Option<Arc<Link>>,
    /// Paths that failed.
    pub(crate) paths: u32,
    /// Whether a worker is there, and does not want to talk to us or may not be talked to: to wait does not help.
    is_refused: bool,
    /// Whether a worker gave no answer for another reason than that identities do not fit, and so may give one later.
    may_answer: bool,
    /// Whether a worker does not know yet what is mounted: it will.
    is_not_ready: bool,
    /// Between rounds over all workers.
    pauses: Pauses,
    last: Option<Failure>,
}

/// What came of one attempt.
pub(crate) enum Verdict {
    /// This is the answer.
    Settled(Result<Reply, Failure>),
    /// The next attempt may bring one.
    AskNext,
}

impl<'a> Attempts<'a> {
    /// The attempts at a request about `key`, which so many workers own; `turn` counts requests. They may take so long in all.
    pub(crate) fn new(
        judge: &'a Judge,
        routes: Arc<Routes>,
        (key, replicas, turn): (PlacementKey, u8, u64),
        timeout: Duration,
    ) -> Self {
        let started = Instant::now();
        Self {
            judge,
            order: routes.order(key, replicas, turn),
            routes,
            key,
            replicas,
            passed_over: Vec::new(),
            avoids_slow: None,
            slow: Vec::new(),
            is_slow_resort: false,
            started,
            timeout,
            tries: 0,
            answered: Vec::new(),
            again: None,
            paths: 0,
            is_refused: false,
            may_answer: false,
            is_not_ready: false,
            pauses: Pauses::until((started + timeout).into_std(), AWAY),
            last: None,
        }
    }

    /// The same, which leave out members that are slow to answer `op`: any worker's answer is as good.
    pub(crate) fn avoiding_slow(mut self, op: Option<Op>) -> Self {
        self.avoids_slow = op;
        self
    }

    /// The next worker to ask and how long it may take.
    pub(crate) fn next(&mut self) -> Option<(Arc<Link>, Duration)> {
        let now = Instant::now();
        let left = self.timeout.checked_sub(now - self.started).filter(|left| !left.is_zero())?;
        // A slow one that was left out may have what the others would need the origin for.
        let is_enough = self.answered.len() >= MAX_ANSWERS;
        if is_enough && self.slow.is_empty() {
            return None;
        }
        if let Some(link) = self.again.take() {
            return Some((link, left));
        }
        let admitted = loop {
            if is_enough {
                break None;
            }
            let Some(at) = self.order.next(&self.routes) else { break None };
            if self.answered.iter().any(|link| Arc::ptr_eq(link, &self.routes.links[at])) {
                continue;
            }
            if let Some(op) = self.avoids_slow
                && self.routes.links[at].speed_of(op).turn(now.into_std()) == Turn::Avoid
            {
                self.slow.push(at);
                continue;
            }
            if self.judge.admits(&self.routes.links[at]) {
                break Some(at);
            }
            self.passed_over.push(at);
        };
        if admitted.is_some() && self.tries == 0 && !self.slow.is_empty() {
            self.judge.stats.avoided_reads.fetch_add(1, Ordering::Relaxed);
        }
        self.is_slow_resort = admitted.is_none() && !self.slow.is_empty();
        let admitted = if self.is_slow_resort { Some(self.slow.remove(0)) } else { admitted };
        // All others failed: better a worker that was dead a moment ago than none.
        let is_last_resort = !self.passed_over.is_empty() && !self.judge.has_resort;
        let at = admitted.or_else(|| is_last_resort.then(|| self.passed_over.remove(0)))?;
        self.tries += 1;
        if self.tries > 1 {
            self.judge.stats.failovers.fetch_add(1, Ordering::Relaxed);
        }
        Some((Arc::clone(&self.routes.links[at]), left))
    }

    /// `link` was left without an answer: as one that is slow, it is asked again when the others cannot.
    fn leave(&mut self, link: &Arc<Link>) {
        self.slow.extend(self.routes.links.iter().position(|of| Arc::ptr_eq(of, link)));
    }

    /// The worker that was next is not asked, since it would say what was before a change.
    pub(crate) fn pass_over(&mut self, link: &Arc<Link>, error: CallError) {
        match error {
            CallError::Link(_) => drop(self.judge(link, Err(error))),
            CallError::Service(failure) if failure.kind() == FailureKind::NotReady => {
                drop(self.judge(link, Err(CallError::Service(failure))));
            }
            CallError::Service(failure) => {
                self.answered.push(Arc::clone(link));
                self.last = Some(failure.context(format!("{} could not be told of a change", link.member)));
            }
        }
    }

    /// What is to be done after `link` answered so.
    pub(crate) fn judge(&mut self, link: &Arc<Link>, answer: Result<Reply, CallError>) -> Verdict {
        match answer {
            Err(CallError::Link(error @ LinkError::OtherPath { .. })) if self.paths < MAX_PATHS => {
                self.paths += 1;
                self.again = Some(Arc::clone(link));
                self.last = Some(CallError::Link(error).into());
                Verdict::AskNext
            }
            Err(CallError::Link(error)) => {
                self.judge.unreachable(link, &error);
                self.unanswered(error);
                Verdict::AskNext
            }
            answered => {
                self.judge.reached(link);
                match answered.map_err(Failure::from) {
                    Err(failure) if failure.kind() == FailureKind::NotReady => {
                        self.is_not_ready = true;
                        self.last = Some(failure);
                        Verdict::AskNext
                    }
                    Err(failure) if failure.kind().is_transient() => {
                        self.answered.push(Arc::clone(link));
                        self.last = Some(failure);
                        Verdict::AskNext
                    }
                    settled => Verdict::Settled(settled),
                }
            }
        }
    }

    /// What is to be done after `link` answered so, and others that were asked as well: an answer settles it, whoever gave it.
    /// Otherwise what counts is what the one said that was asked first, if it said anything.
    pub(crate) fn judge_all(&mut self, link: &Arc<Link>, raced: Raced) -> Verdict {
        let mut others = Verdict::AskNext;
        if raced.is_left {
            self.leave(link);
        }
        for (by, answer) in raced.others {
            let verdict = match (by, answer) {
                (Some(by), answer) => self.judge(&by, answer),
                (None, Ok(reply)) => Verdict::Settled(Ok(reply)),
                (None, Err(_)) => Verdict::AskNext,
            };
            if let Verdict::Settled(_) = verdict {
                others = verdict;
            }
        }
        let Some(first) = raced.first else { return others };
        match (self.judge(link, first), others) {
            (Verdict::AskNext, others) => others,
            (Verdict::Settled(Err(_)), Verdict::Settled(Ok(reply))) => Verdict::Settled(Ok(reply)),
            (first, _) => first,
        }
    }

    /// Notes why a worker gave no answer. That identities do not fit is the outcome only if it is so with all: what is wrong with
    /// another may pass.
    fn unanswered(&mut self, error: LinkError) {
        let is_unproved = matches!(error, LinkError::Unproved { .. });
        self.is_refused |= is_unproved || matches!(error, LinkError::Refused { .. } | LinkError::NotAllowed { .. });
        let has_hope = self.may_answer || self.is_not_ready || self.is_answered();
        if !(is_unproved && has_hope) {
            self.last = Some(CallError::Link(error).into());
        }
        self.may_answer |= !is_unproved;
    }

    /// Whether `link` is asked in the place of another, which alone owns what it is about. The number of tries does not tell: one
    /// that was asked as well and has another path is asked next, which is no new try.
    pub(crate) fn is_stand_in(&self, link: &Arc<Link>) -> bool {
        let owner = self.order.first().map(|at| &self.routes.links[at]);
        owner.is_none_or(|owner| !Arc::ptr_eq(owner, link))
    }

    /// Whether the worker that is asked now is slow, and is asked because there is no other.
    pub(crate) fn is_slow_resort(&self) -> bool {
        self.is_slow_resort
    }

    /// Whether a worker said that it cannot.
    pub(crate) fn is_answered(&self) -> bool {
        !self.answered.is_empty()
    }

    /// Whether no worker said anything but that it is not ready, and one may yet if it is given time.
    pub(crate) fn reached_nobody(&self) -> bool {
        !self.is_answered() && !self.is_refused
    }

    /// Whether identities fit with none of the workers that were asked: a moment later they will not, either.
    pub(crate) fn is_denied(&self) -> bool {
        self.last.as_ref().is_some_and(|last| last.kind() == FailureKind::PermissionDenied)
    }

    /// Whether a worker said that it is not ready.
    pub(crate) fn is_not_ready(&self) -> bool {
        self.is_not_ready
    }

    /// Why no worker was reached, if there was one to ask.
    pub(crate) fn cause(&self) -> Option<&Failure> {
        self.last.as_ref()
    }

    /// How long it pauses before it begins again.
    pub(crate) fn pauses(&mut self) -> &mut Pauses {
        &mut self.pauses
    }

    /// How many workers own what it is about.
    pub(crate) fn replicas(&self) -> u8 {
        self.replicas
    }

    /// How long it may take from now.
    pub(crate) fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.started.elapsed())
    }

    /// Goes on by these routes, if they are others: a worker that has joined since may have an answer. Whether they are.
    pub(crate) fn go_on(&mut self, routes: &Arc<Routes>, turn: u64) -> bool {
        let are_others = !Arc::ptr_eq(routes, &self.routes);
        if are_others {
            self.follow(Arc::clone(routes), turn);
        }
        are_others
    }

    fn follow(&mut self, routes: Arc<Routes>, turn: u64) {
        self.order = routes.order(self.key, self.replicas, turn);
        self.routes = routes;
        self.passed_over.clear();
        self.slow.clear();
    }

    /// Begins again, by these routes, with whatever time there is left.
    pub(crate) fn renew(&mut self, routes: Arc<Routes>, turn: u64) {
        self.follow(routes, turn);
        // It is no failover to ask the same worker again.
        (self.tries, self.again, self.paths) = (0, None, 0);
        (self.is_not_ready, self.may_answer) = (false, false);
    }

    /// No worker is left to ask.
    pub(crate) fn exhausted(&mut self) -> Failure {
        self.last.take().unwrap_or_else(|| {
            if self.routes.links.is_empty() {
                return no_workers();
            }
            Failure::new(FailureKind::Unavailable, format!("no worker answered within {:?}", self.timeout))
        })
    }
}

/// What is wrong with a cluster without workers.
pub(crate) fn no_workers() -> Failure {
    let message = "there are no workers; start one, or name them with --workers or `cluster.workers`";
    Failure::new(FailureKind::Unavailable, message)
}
