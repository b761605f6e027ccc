//! Over which path a request goes: a state machine for one worker. Pure: it is told the time and what happened.
//!
//! A worker may be reached over RDMA, by one path for each network card, and over TCP. While any RDMA path is up,
//! requests go there, to a random one of those with the fewest requests under way. Where reads are striped
//! ([`PathLoads`]), they go to the one that is done first, by bytes under way and bandwidth, and large reads are
//! divided among several. A path that fails is left out, and probed after `retry_after`, whether or not there are
//! requests. With none left, the policy says whether TCP takes over ([`Fallback::Auto`]) or requests fail with the
//! reason ([`Fallback::Never`]), so that they go to another replica. A request that would fail while a probe is under
//! way waits for what that finds. TCP is the last path: it is never left out here, for then the worker as a whole is,
//! by its health.
//!
//! A link finds out by itself that it is dead, after a while of silence. What makes one card silent, a switch or the
//! worker's host, often makes all of them: so when one of several is silent, all are asked at once whether they live,
//! and those that do not answer are passed over while there is another way. A request then waits for one link to be
//! found dead, not for each of them in turn.

use std::time::{Duration, Instant};

use super::striping::{Division, PathLoads};

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
    /// How long none of the requests over one of several cards may be answered until all cards are asked whether they
    /// live, and how long they may take to answer that before others are preferred. Also of a single card, for requests
    /// whose callers have left.
    pub silence: Duration,
}

/// The limit of `retry_after` when nothing takes the path's place: no request is served until the path is back.
const RETRY_WITHOUT_FALLBACK: Duration = Duration::from_secs(1);

/// Why TCP is not used for what goes over RDMA.
const NO_TCP: &str = "network.rdma.data.fallback = \"never\" allows no TCP";

impl PathPolicy {
    /// How long after its failure a path is probed, and the worker asked for its paths, again and again.
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
    /// No path is allowed, but one is being probed: ask again when that has ended.
    Wait,
    /// No path is allowed: why the last one failed.
    Refuse(String),
}

/// What is to be done now without a request, and when to look again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Paths to ping, each followed by [`PathSelector::probed`] or [`PathSelector::cleared`].
    pub pings: Vec<Ping>,
    /// When to look again, unless something happens before.
    pub next: Option<Instant>,
    /// Nothing has to be watched any more, until [`PathSelector::begin_watch`] says so.
    pub done: bool,
}

/// Why a path is pinged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ping {
    /// It is down: [`PathSelector::probed`] must follow.
    Probe(usize),
    /// It may be: [`PathSelector::cleared`] must follow.
    Suspected(usize),
}

#[derive(Debug)]
struct Path {
    kind: PathKind,
    in_flight: u32,
    /// When it last answered, or its first request began; as much earlier as those before waited in vain.
    heard: Option<Instant>,
    /// How long requests had waited since then when the last of them was left: the time without any does not count.
    unheard: Duration,
    suspicion: Option<Suspicion>,
    down: Option<Down>,
}

/// It is being found out whether the path is why requests are not answered.
#[derive(Debug)]
struct Suspicion {
    since: Instant,
    pinged: bool,
}

#[derive(Debug)]
struct Down {
    probe_at: Instant,
    probing: bool,
    cause: String,
}

impl Path {
    fn is_rdma(&self) -> bool {
        self.kind == PathKind::Rdma
    }

    fn is_up(&self) -> bool {
        self.is_rdma() && self.down.is_none()
    }

    /// When it will have been silent for `silence` with requests under way, if nothing is known against it.
    fn silent_at(&self, silence: Duration) -> Option<Instant> {
        let watched = self.is_up() && self.in_flight > 0 && self.suspicion.is_none();
        self.heard.filter(|_| watched).map(|heard| heard + silence)
    }
}

/// The paths of one worker.
#[derive(Debug)]
pub struct PathSelector {
    policy: PathPolicy,
    paths: Vec<Path>,
    /// Whether there are several RDMA paths.
    has_several: bool,
    /// How busy and how fast the paths are, where there are several and reads are striped.
    loads: Option<PathLoads>,
    /// Whether a task looks when it is time.
    watched: bool,
    /// Why there are no RDMA paths, if there are none.
    without: String,
}

impl PathSelector {
    /// Paths of these kinds, all up.
    #[must_use]
    pub fn new(policy: PathPolicy, kinds: impl IntoIterator<Item = PathKind>) -> Self {
        let path =
            |kind| Path { kind, in_flight: 0, heard: None, unheard: Duration::ZERO, suspicion: None, down: None };
        let paths: Vec<_> = kinds.into_iter().map(path).collect();
        let has_several = paths.iter().filter(|path| path.is_rdma()).count() > 1;
        let without = "the worker offers no RDMA".to_owned();
        Self { policy, paths, has_several, loads: None, watched: false, without }
    }

    /// The same, whose reads are striped if there are several RDMA paths. Each is over a card next to one of these NUMA
    /// nodes.
    #[must_use]
    pub(super) fn striping(mut self, nodes: impl IntoIterator<Item = Option<u32>>) -> Self {
        self.loads = self.has_several.then(|| PathLoads::new(nodes));
        self
    }

    /// How busy and how fast the paths are; none where reads are not striped.
    pub(super) fn loads(&mut self) -> Option<&mut PathLoads> {
        self.loads.as_mut()
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
        for path in self.paths.iter_mut().filter(|path| path.is_rdma()) {
            path.down = Some(Down { probe_at: now, probing: false, cause: cause.to_owned() });
        }
        self
    }

    /// The path for a request that begins now. `random` decides among equals.
    pub fn choose(&mut self, random: u64, now: Instant) -> Choice {
        self.choose_for((0, None), random, now)
    }

    /// The same for one that brings so many bytes, into memory on this NUMA node.
    pub(super) fn choose_for(&mut self, into: (u32, Option<u32>), random: u64, now: Instant) -> Choice {
        let answers = |path: &Path| self.answers(path, now);
        let tcp = || self.paths.iter().position(|path| path.kind == PathKind::Tcp).filter(|_| self.may_use_tcp());
        let chosen = self.idlest(into, random, now, |path| path.is_up() && answers(path));
        let chosen = chosen.or_else(tcp).or_else(|| self.idlest(into, random, now, Path::is_up));
        match chosen {
            Some(index) => {
                self.begin(index, now);
                Choice::Use(index)
            }
            None if self.is_being_probed(now) => Choice::Wait,
            None => Choice::Refuse(self.cause()),
        }
    }

    /// How a read of `length` bytes is divided among paths; none: it is not.
    pub(super) fn divide(&mut self, length: u32, now: Instant) -> Option<Division> {
        let mut loads = self.loads.take()?;
        let will_do = |path: usize| self.paths.get(path).is_some_and(|path| path.is_up() && self.answers(path, now));
        let division = loads.divide(length, will_do, now);
        self.loads = Some(loads);
        division
    }

    /// The RDMA path for a part of a read that `path` has not brought, or TCP if `may_use_tcp`.
    pub(super) fn instead_of(
        &self,
        path: usize,
        into: (u32, Option<u32>),
        may_use_tcp: bool,
        random: u64,
        now: Instant,
    ) -> Option<usize> {
        let failed = self.paths.get(path)?;
        let others = |other: &Path| !std::ptr::eq(other, failed) && other.is_up() && self.answers(other, now);
        let tcp = || self.paths.iter().position(|path| path.kind == PathKind::Tcp);
        let tcp = || tcp().filter(|tcp| may_use_tcp && self.may_use_tcp() && *tcp != path);
        self.idlest(into, random, now, others).or_else(tcp)
    }

    /// A request begins over `path`.
    pub(super) fn begin(&mut self, path: usize, now: Instant) {
        let Some(path) = self.paths.get_mut(path) else { return };
        if path.in_flight == 0 {
            path.heard = now.checked_sub(std::mem::take(&mut path.unheard)).or(Some(now));
        }
        path.in_flight += 1;
    }

    /// Whether nothing is known against a path that is up, or it has time to answer.
    fn answers(&self, path: &Path, now: Instant) -> bool {
        path.suspicion.as_ref().is_none_or(|it| !it.pinged || now < it.since + self.policy.silence)
    }

    /// The path that is done first, among those that will do: by what is known of them, or else by the requests under
    /// way.
    fn idlest(
        &self,
        (bytes, near): (u32, Option<u32>),
        random: u64,
        now: Instant,
        will_do: impl Fn(&Path) -> bool,
    ) -> Option<usize> {
        match &self.loads {
            Some(loads) => loads.best(bytes, near, |path| self.paths.get(path).is_some_and(&will_do), random, now),
            None => self.least_used(random, will_do),
        }
    }

    /// One of the paths with the fewest requests under way among those that will do.
    fn least_used(&self, random: u64, will_do: impl Fn(&Path) -> bool) -> Option<usize> {
        let least = self.paths.iter().filter(|path| will_do(path)).map(|path| path.in_flight).min()?;
        let idle = |(_, path): &(usize, &Path)| will_do(path) && path.in_flight == least;
        let count = self.paths.iter().enumerate().filter(idle).count() as u64;
        // At least one has the least.
        let nth = (random % count.max(1)) as usize;
        self.paths.iter().enumerate().filter(idle).nth(nth).map(|(index, _)| index)
    }

    /// TCP is for workers without RDMA, and for the time until it is back.
    #[must_use]
    pub fn may_use_tcp(&self) -> bool {
        self.policy.fallback == Fallback::Auto
    }

    /// Whether it is being found out if a path is up again, or the time for that has come.
    fn is_being_probed(&self, now: Instant) -> bool {
        self.paths.iter().filter_map(|path| path.down.as_ref()).any(|down| down.probing || now >= down.probe_at)
    }

    /// Why the RDMA path that failed last did.
    #[must_use]
    pub fn cause(&self) -> String {
        let down = self.paths.iter().filter_map(|path| path.down.as_ref());
        down.max_by_key(|down| down.probe_at).map_or_else(|| self.without.clone(), |down| down.cause.clone())
    }

    /// Of each path, why it is not used, if it is not: an RDMA path because it failed, TCP because it must not be.
    pub fn causes(&self) -> impl Iterator<Item = Option<String>> {
        self.paths.iter().map(|path| match (path.kind, &path.down) {
            (PathKind::Rdma, down) => down.as_ref().map(|down| down.cause.clone()),
            (PathKind::Tcp, _) if self.may_use_tcp() => None,
            (PathKind::Tcp, _) if self.has_rdma() => Some(NO_TCP.to_owned()),
            (PathKind::Tcp, _) => Some(format!("{}, and {NO_TCP}", self.without)),
        })
    }

    fn has_rdma(&self) -> bool {
        self.paths.iter().any(Path::is_rdma)
    }

    /// Whether every path is up.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.paths.iter().all(|path| path.down.is_none())
    }

    /// A request over `path` was answered.
    pub fn answered(&mut self, path: usize, now: Instant) {
        self.release(path);
        if let Some(path) = self.paths.get_mut(path) {
            path.heard = Some(now);
        }
    }

    /// The caller of a request over `path` left. Whether there are paths to be pinged for that: where another worker is always faster,
    /// every caller leaves before the link is found dead, and nobody else would ask.
    pub fn left(&mut self, path: usize, now: Instant) -> bool {
        self.release(path);
        let path = self.paths.get_mut(path).filter(|path| path.is_up() && path.suspicion.is_none());
        let Some(path) = path else { return false };
        let waited = path.heard.map_or(Duration::ZERO, |heard| now.saturating_duration_since(heard));
        if path.in_flight == 0 {
            path.unheard = waited;
        }
        let is_silent = waited >= self.policy.silence;
        if is_silent {
            self.doubt_all(now);
        }
        is_silent
    }

    /// The link failed under a request over `path`.
    pub fn failed(&mut self, path: usize, cause: String, now: Instant) -> Option<Switch> {
        self.release(path);
        self.is_down(path, cause, now)
    }

    fn is_down(&mut self, path: usize, cause: String, now: Instant) -> Option<Switch> {
        // Where nothing takes its place it is tried once more at once: it may have been but the connection.
        let probe_at = match self.policy.fallback {
            Fallback::Auto => now + self.policy.probe_after(),
            Fallback::Never => now,
        };
        let failed = self.paths.get_mut(path).filter(|failed| failed.is_rdma())?;
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

    /// A request over `path` got no answer in time, which may be the worker's fault or the origin's: it is to be
    /// pinged.
    pub fn suspect(&mut self, path: usize, now: Instant) {
        self.release(path);
        self.doubt(path, now);
    }

    /// A request over `path` takes long although others do not: it is to be pinged.
    pub(super) fn doubt(&mut self, path: usize, now: Instant) {
        if let Some(path) = self.paths.get_mut(path).filter(|path| path.is_up()) {
            path.suspicion.get_or_insert(Suspicion { since: now, pinged: false });
        }
    }

    fn doubt_all(&mut self, now: Instant) {
        (0..self.paths.len()).for_each(|path| self.doubt(path, now));
    }

    /// What a ping of a suspected path found: nothing wrong, or why it is down.
    pub fn cleared(&mut self, path: usize, outcome: Result<(), String>, now: Instant) -> Option<Switch> {
        let suspected = self.paths.get_mut(path)?;
        // Otherwise it has been down and up since.
        suspected.suspicion.take()?;
        (suspected.heard, suspected.unheard) = (Some(now), Duration::ZERO);
        self.is_down(path, outcome.err()?, now)
    }

    /// Whether a task has to begin to call [`PathSelector::look`]: a path is down or suspected, or requests are under
    /// way over one of several cards, and no task does so yet.
    pub fn begin_watch(&mut self) -> bool {
        let begins = !self.watched && self.needs_watching();
        self.watched |= begins;
        begins
    }

    fn needs_watching(&self) -> bool {
        let asked = |path: &Path| path.down.is_some() || path.suspicion.is_some();
        self.paths.iter().any(|path| asked(path) || (self.has_several && path.is_rdma() && path.in_flight > 0))
    }

    /// What is to be done now.
    pub fn look(&mut self, now: Instant) -> Look {
        let silence = self.policy.silence;
        if self.has_several && self.paths.iter().filter_map(|path| path.silent_at(silence)).any(|at| now >= at) {
            self.doubt_all(now);
        }
        let mut pings = Vec::new();
        for (index, path) in self.paths.iter_mut().enumerate() {
            match (&mut path.down, &mut path.suspicion) {
                (Some(down), _) if !down.probing && now >= down.probe_at => {
                    down.probing = true;
                    pings.push(Ping::Probe(index));
                }
                (None, Some(suspicion)) if !suspicion.pinged => {
                    *suspicion = Suspicion { since: now, pinged: true };
                    pings.push(Ping::Suspected(index));
                }
                _ => {}
            }
        }
        self.watched = self.needs_watching();
        let probes = self.paths.iter().filter_map(|path| path.down.as_ref().filter(|down| !down.probing));
        let watches = self.has_several && self.watched;
        let silent = self.paths.iter().filter_map(|path| path.silent_at(silence)).chain([now + silence]);
        let next = probes.map(|down| down.probe_at).chain(silent.filter(|_| watches)).min();
        Look { pings, next, done: !self.watched }
    }

    /// What a probe of `path` found: nothing wrong, or why the path is still down.
    pub fn probed(&mut self, path: usize, outcome: Result<(), String>, now: Instant) -> Option<Switch> {
        let others = self.any_rdma_up();
        let probe_at = now + self.policy.probe_after();
        let probed = self.paths.get_mut(path)?;
        probed.down.as_ref()?;
        match outcome {
            Ok(()) => {
                (probed.down, probed.suspicion) = (None, None);
                (probed.heard, probed.unheard) = (Some(now), Duration::ZERO);
                Some(if others { Switch::PathUp(path) } else { Switch::FailedBack })
            }
            Err(cause) => {
                probed.down = Some(Down { probe_at, probing: false, cause });
                None
            }
        }
    }

    /// Whether another path is there for a request that just failed, or may be when a probe has ended.
    #[must_use]
    pub fn has_another(&self, now: Instant) -> bool {
        let has_tcp = || self.paths.iter().any(|path| path.kind == PathKind::Tcp);
        self.any_rdma_up() || if self.may_use_tcp() { has_tcp() } else { self.is_being_probed(now) }
    }

    /// Whether there are RDMA paths, and all are down.
    #[must_use]
    pub fn has_fallen(&self) -> bool {
        self.has_rdma() && !self.any_rdma_up()
    }

    fn any_rdma_up(&self) -> bool {
        self.paths.iter().any(Path::is_up)
    }

    fn release(&mut self, path: usize) {
        if let Some(path) = self.paths.get_mut(path) {
            path.in_flight = path.in_flight.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests;
