//! Over which path a request goes: a state machine for one worker. Pure: it is told the time and what happened.
//!
//! A worker may be reached over RDMA, by one path for each network card, and over TCP. While any RDMA path is up, requests
//! go there, to a random one of those with the fewest requests under way; a request is never split. A path that fails is
//! left out, and probed after `retry_after`; no request waits for a probe. With none left, the policy says whether TCP
//! takes over ([`Fallback::Auto`]) or requests fail with the reason ([`Fallback::Never`]), so that they go to another
//! replica. TCP is the last path: it is never left out here, for then the worker as a whole is, by its health.

use std::time::{Duration, Instant};

/// What to do when no RDMA path is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// Fail with the reason.
    Never,
    /// Use TCP until one is back.
    Auto,
}

/// Which kind of path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// Through a network card that reads and writes memory by itself.
    Rdma,
    /// Through the kernel's TCP.
    Tcp,
}

/// How the paths of a worker are used.
#[derive(Clone, Copy, Debug)]
pub struct PathPolicy {
    /// What to do when no RDMA path is up.
    pub fallback: Fallback,
    /// How long after its failure a path is probed, and again after each probe that failed, while TCP takes its place.
    pub retry_after: Duration,
}

/// How long, at most, when nothing takes its place: nobody is served until it is back.
const RETRY_WITHOUT_FALLBACK: Duration = Duration::from_secs(1);

impl PathPolicy {
    /// How long after its failure a path is probed.
    #[must_use]
    pub fn probe_after(&self) -> Duration {
        match self.fallback {
            Fallback::Auto => self.retry_after,
            Fallback::Never => self.retry_after.min(RETRY_WITHOUT_FALLBACK),
        }
    }
}

/// What changed for the worker as a whole, or one card: for one log line and one count each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Switch {
    /// A path is left out; others of its kind remain.
    PathDown(usize),
    /// A path is used again; others of its kind had remained.
    PathUp(usize),
    /// The last RDMA path failed: requests go over TCP from now on.
    FellBack,
    /// The last RDMA path failed, and the policy allows no other.
    Unreachable,
    /// An RDMA path is up again after [`Switch::FellBack`] or [`Switch::Unreachable`].
    FailedBack,
}

/// What to do with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Send it over this path, and say so when it has ended.
    Use(usize),
    /// No path is allowed: why the last one failed.
    Refuse(String),
}

#[derive(Debug)]
struct Path {
    kind: PathKind,
    in_flight: u32,
    /// Whether it is being found out if a request that got no answer in time was the path's fault.
    suspected: bool,
    down: Option<Down>,
}

#[derive(Debug)]
struct Down {
    probe_at: Instant,
    probing: bool,
    cause: String,
}

/// The paths of one worker.
#[derive(Debug)]
pub struct PathSelector {
    policy: PathPolicy,
    paths: Vec<Path>,
    /// Why there are no RDMA paths, if there are none.
    without: String,
}

impl PathSelector {
    /// Paths of these kinds, all up.
    #[must_use]
    pub fn new(policy: PathPolicy, kinds: impl IntoIterator<Item = PathKind>) -> Self {
        let paths = kinds.into_iter().map(|kind| Path { kind, in_flight: 0, suspected: false, down: None }).collect();
        Self { policy, paths, without: "the worker offers no RDMA".to_owned() }
    }

    /// The same, with the reason why there are no RDMA paths.
    #[must_use]
    pub fn without_because(mut self, reason: String) -> Self {
        self.without = reason;
        self
    }

    /// The same, with every RDMA path down until a probe, which is due at once, has found it up: they take the place of
    /// paths that were down.
    #[must_use]
    pub fn on_probation(mut self, cause: &str, now: Instant) -> Self {
        for path in self.paths.iter_mut().filter(|path| path.kind == PathKind::Rdma) {
            path.down = Some(Down { probe_at: now, probing: false, cause: cause.to_owned() });
        }
        self
    }

    /// The path for a request that begins now. `random` decides among equals.
    pub fn choose(&mut self, random: u64) -> Choice {
        let rdma = |path: &Path| path.kind == PathKind::Rdma && path.down.is_none();
        let least = self.paths.iter().filter(|path| rdma(path)).map(|path| path.in_flight).min();
        let chosen = match least {
            Some(least) => {
                let idle = |(_, path): &(usize, &Path)| rdma(path) && path.in_flight == least;
                let count = self.paths.iter().enumerate().filter(idle).count() as u64;
                // At least one has the least.
                let nth = (random % count.max(1)) as usize;
                self.paths.iter().enumerate().filter(idle).nth(nth).map(|(index, _)| index)
            }
            None if self.may_use_tcp() => self.paths.iter().position(|path| path.kind == PathKind::Tcp),
            None => None,
        };
        match chosen {
            Some(index) => {
                self.paths[index].in_flight += 1;
                Choice::Use(index)
            }
            None => Choice::Refuse(self.cause()),
        }
    }

    /// TCP is for workers without RDMA, and for the time until it is back.
    fn may_use_tcp(&self) -> bool {
        self.policy.fallback == Fallback::Auto
    }

    /// Why the RDMA path that failed last did.
    fn cause(&self) -> String {
        let down = self.paths.iter().filter_map(|path| path.down.as_ref());
        down.max_by_key(|down| down.probe_at).map_or_else(|| self.without.clone(), |down| down.cause.clone())
    }

    /// Of each path, why it is down, if it is.
    pub fn causes(&self) -> impl Iterator<Item = Option<&str>> {
        self.paths.iter().map(|path| path.down.as_ref().map(|down| &*down.cause))
    }

    /// Whether every path is up.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.paths.iter().all(|path| path.down.is_none())
    }

    /// A request over `path` was answered, or its caller left.
    pub fn ended(&mut self, path: usize) {
        self.release(path);
    }

    /// The link failed under a request over `path`.
    pub fn failed(&mut self, path: usize, cause: String, now: Instant) -> Option<Switch> {
        self.release(path);
        self.is_down(path, cause, now)
    }

    fn is_down(&mut self, path: usize, cause: String, now: Instant) -> Option<Switch> {
        let probe_at = now + self.policy.probe_after();
        let failed = self.paths.get_mut(path).filter(|failed| failed.kind == PathKind::Rdma)?;
        if let Some(down) = &mut failed.down {
            // One of those that were under way when it failed: when it is probed stays as it is.
            down.cause = cause;
            return None;
        }
        failed.down = Some(Down { probe_at, probing: false, cause });
        Some(match (self.any_rdma_up(), self.policy.fallback) {
            (true, _) => Switch::PathDown(path),
            (false, Fallback::Auto) => Switch::FellBack,
            (false, Fallback::Never) => Switch::Unreachable,
        })
    }

    /// A request over `path` got no answer in time, which may be the worker's fault or the origin's: whether to ping it.
    /// [`PathSelector::cleared`] must follow then.
    pub fn suspect(&mut self, path: usize) -> bool {
        self.release(path);
        let suspected = self.paths.get_mut(path).filter(|path| path.kind == PathKind::Rdma && path.down.is_none());
        suspected.is_some_and(|path| !std::mem::replace(&mut path.suspected, true))
    }

    /// What a ping of a suspected path found: nothing wrong, or why it is down.
    pub fn cleared(&mut self, path: usize, outcome: Result<(), String>, now: Instant) -> Option<Switch> {
        self.paths.get_mut(path)?.suspected = false;
        self.is_down(path, outcome.err()?, now)
    }

    /// A path whose time for a probe has come: [`PathSelector::probed`] must follow.
    pub fn due(&mut self, now: Instant) -> Option<usize> {
        let due = |path: &Path| path.down.as_ref().is_some_and(|down| !down.probing && now >= down.probe_at);
        let index = self.paths.iter().position(due)?;
        if let Some(down) = &mut self.paths[index].down {
            down.probing = true;
        }
        Some(index)
    }

    /// What a probe of `path` found: nothing wrong, or why the path is still down.
    pub fn probed(&mut self, path: usize, outcome: Result<(), String>, now: Instant) -> Option<Switch> {
        let others = self.any_rdma_up();
        let probe_at = now + self.policy.probe_after();
        let probed = self.paths.get_mut(path)?;
        probed.down.as_ref()?;
        match outcome {
            Ok(()) => {
                probed.down = None;
                Some(if others { Switch::PathUp(path) } else { Switch::FailedBack })
            }
            Err(cause) => {
                probed.down = Some(Down { probe_at, probing: false, cause });
                None
            }
        }
    }

    /// Whether another path is there for a request that just failed.
    #[must_use]
    pub fn has_another(&self) -> bool {
        self.any_rdma_up() || (self.may_use_tcp() && self.paths.iter().any(|path| path.kind == PathKind::Tcp))
    }

    /// Whether there are RDMA paths, and all are down.
    #[must_use]
    pub fn has_fallen(&self) -> bool {
        self.paths.iter().any(|path| path.kind == PathKind::Rdma) && !self.any_rdma_up()
    }

    fn any_rdma_up(&self) -> bool {
        self.paths.iter().any(|path| path.kind == PathKind::Rdma && path.down.is_none())
    }

    fn release(&mut self, path: usize) {
        if let Some(path) = self.paths.get_mut(path) {
            path.in_flight = path.in_flight.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RETRY: Duration = Duration::from_secs(300);
    const TWO_CARDS: [PathKind; 3] = [PathKind::Rdma, PathKind::Rdma, PathKind::Tcp];

    fn selector(fallback: Fallback, kinds: &[PathKind]) -> PathSelector {
        PathSelector::new(PathPolicy { fallback, retry_after: RETRY }, kinds.iter().copied())
    }

    #[test]
    fn requests_go_to_a_random_idle_card_and_never_to_tcp_while_one_is_up() {
        let mut paths = selector(Fallback::Auto, &TWO_CARDS);
        assert_eq!(paths.choose(1), Choice::Use(1));
        assert_eq!(paths.choose(1), Choice::Use(0), "the other one is busy");
        paths.ended(1);
        assert_eq!(paths.choose(0), Choice::Use(1), "whatever chance says");
    }

    #[test]
    fn a_card_that_fails_is_left_out_and_probed() {
        let mut paths = selector(Fallback::Auto, &TWO_CARDS);
        let start = Instant::now();
        assert_eq!(paths.choose(0), Choice::Use(0));
        assert_eq!(paths.failed(0, "link down".into(), start), Some(Switch::PathDown(0)));
        assert!((0..4).all(|random| paths.choose(random) == Choice::Use(1)));
        assert_eq!(paths.due(start + RETRY - Duration::from_millis(1)), None);
        assert_eq!(paths.due(start + RETRY), Some(0));
        assert_eq!(paths.due(start + RETRY), None, "one probe at a time");
        assert_eq!(paths.probed(0, Err("still".into()), start + RETRY), None);
        assert_eq!(paths.due(start + RETRY), None);
        assert_eq!(paths.due(start + 2 * RETRY), Some(0));
        assert_eq!(paths.probed(0, Ok(()), start + 2 * RETRY), Some(Switch::PathUp(0)));
        assert_eq!(paths.choose(0), Choice::Use(0));
    }

    #[test]
    fn with_auto_the_last_card_gives_way_to_tcp_and_takes_over_again() {
        let mut paths = selector(Fallback::Auto, &[PathKind::Rdma, PathKind::Tcp]);
        let start = Instant::now();
        for _ in 0..3 {
            assert_eq!(paths.choose(0), Choice::Use(0));
        }
        assert_eq!(paths.failed(0, "gone".into(), start), Some(Switch::FellBack));
        assert_eq!(paths.failed(0, "gone".into(), start), None, "one switch, however many requests it cost");
        assert!(paths.has_another());
        assert_eq!(paths.choose(0), Choice::Use(1));
        assert_eq!(paths.failed(1, "gone, too".into(), start), None, "that is for the worker's health");
        assert_eq!(paths.choose(0), Choice::Use(1));
        assert_eq!(paths.due(start + RETRY), Some(0));
        assert_eq!(paths.choose(0), Choice::Use(1), "nobody waits for a probe");
        assert_eq!(paths.probed(0, Ok(()), start + RETRY), Some(Switch::FailedBack));
        assert_eq!(paths.choose(0), Choice::Use(0));
    }

    #[test]
    fn with_never_requests_fail_with_the_reason() {
        let mut paths = selector(Fallback::Never, &[PathKind::Rdma, PathKind::Tcp]);
        let start = Instant::now();
        assert_eq!(paths.choose(0), Choice::Use(0));
        assert_eq!(paths.failed(0, "port 59999 refused".into(), start), Some(Switch::Unreachable));
        assert!(!paths.has_another());
        assert_eq!(paths.choose(0), Choice::Refuse("port 59999 refused".into()));
        let soon = start + RETRY_WITHOUT_FALLBACK;
        assert_eq!(paths.due(soon), Some(0), "nothing takes its place: it is not left alone for long");
        assert_eq!(paths.probed(0, Err("still".into()), soon), None);
        assert_eq!(paths.due(soon + RETRY_WITHOUT_FALLBACK), Some(0));
        assert_eq!(paths.probed(0, Ok(()), soon), Some(Switch::FailedBack));
        assert_eq!(paths.choose(0), Choice::Use(0));
    }

    #[test]
    fn a_request_without_an_answer_does_not_condemn_a_path_that_answers_pings() {
        let mut paths = selector(Fallback::Auto, &[PathKind::Rdma, PathKind::Tcp]);
        let start = Instant::now();
        for _ in 0..3 {
            assert_eq!(paths.choose(0), Choice::Use(0));
        }
        assert!(paths.suspect(0));
        assert!(!paths.suspect(0), "one ping at a time");
        assert_eq!(paths.choose(0), Choice::Use(0));
        assert_eq!(paths.cleared(0, Ok(()), start), None);
        assert!(paths.suspect(0));
        assert_eq!(paths.cleared(0, Err("no answer".into()), start), Some(Switch::FellBack));
        assert!(!paths.suspect(0), "it is down already");
    }

    #[test]
    fn what_was_under_way_when_a_path_failed_does_not_put_its_probe_off() {
        let mut paths = selector(Fallback::Auto, &[PathKind::Rdma, PathKind::Tcp]);
        let start = Instant::now();
        for _ in 0..2 {
            assert_eq!(paths.choose(0), Choice::Use(0));
        }
        assert_eq!(paths.failed(0, "gone".into(), start), Some(Switch::FellBack));
        assert_eq!(paths.due(start + RETRY), Some(0));
        assert_eq!(paths.failed(0, "late".into(), start + RETRY), None);
        assert_eq!(paths.due(start + 3 * RETRY), None, "it is being probed");
    }

    #[test]
    fn paths_in_the_place_of_those_that_were_down_are_probed_before_they_are_used() {
        let start = Instant::now();
        let mut paths = selector(Fallback::Auto, &[PathKind::Rdma, PathKind::Tcp]).on_probation("moved", start);
        assert_eq!(paths.choose(0), Choice::Use(1));
        assert_eq!(paths.due(start), Some(0));
        assert_eq!(paths.probed(0, Ok(()), start), Some(Switch::FailedBack));
        assert_eq!(paths.choose(0), Choice::Use(0));
    }

    #[test]
    fn a_refusal_says_why_there_is_no_rdma() {
        let mut paths = selector(Fallback::Never, &[PathKind::Tcp]).without_because("UCX 1.13 there, 1.20 here".into());
        assert_eq!(paths.choose(0), Choice::Refuse("UCX 1.13 there, 1.20 here".into()));
    }

    #[test]
    fn a_worker_without_rdma_is_reached_over_tcp_if_that_is_allowed() {
        assert_eq!(selector(Fallback::Auto, &[PathKind::Tcp]).choose(7), Choice::Use(0));
        assert!(matches!(selector(Fallback::Never, &[PathKind::Tcp]).choose(7), Choice::Refuse(_)));
    }

    proptest! {
        #[test]
        fn a_request_never_goes_to_a_path_that_is_down_nor_to_tcp_while_a_card_is_up(
            events in prop::collection::vec((0u8..5, 0usize..3, any::<u64>()), 1..200),
            never: bool,
        ) {
            let fallback = if never { Fallback::Never } else { Fallback::Auto };
            let mut paths = selector(fallback, &TWO_CARDS);
            let mut now = Instant::now();
            let (mut up, mut sent) = ([true, true], [0u32; 3]);
            for (event, path, random) in events {
                match event {
                    0 | 1 => match paths.choose(random) {
                        Choice::Use(index) => {
                            let allowed = if index == 2 { up == [false, false] && !never } else { up[index] };
                            prop_assert!(allowed);
                            sent[index] += 1;
                        }
                        Choice::Refuse(_) => prop_assert!(never && up == [false, false]),
                    },
                    2 if sent[path] > 0 => {
                        paths.ended(path);
                        sent[path] -= 1;
                    }
                    3 if sent[path] > 0 => {
                        paths.failed(path, "x".into(), now);
                        sent[path] -= 1;
                        if path < 2 { up[path] = false; }
                    }
                    4 => {
                        now += RETRY;
                        if let Some(index) = paths.due(now) {
                            prop_assert!(index < 2 && !up[index]);
                            let well = random % 2 == 0;
                            paths.probed(index, if well { Ok(()) } else { Err("y".into()) }, now);
                            up[index] = well;
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}
