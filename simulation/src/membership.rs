//! A day of a cluster, second by second, as each of its clients sees it.
//!
//! Every worker is restarted once, one after the other; workers die and come back; a few flap; the state store is away for a
//! while. What a client does with that is [`MemberView`]; what a worker says of itself is [`Registration`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use forebay_cluster::records::members::{Addresses, WorkerRecord};
use forebay_cluster::{JoinHistory, MemberView, Registration};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use crate::arguments::Arguments;
use crate::memory;
use crate::table::{Page, bytes, count, percent, time};

const DAY: u64 = 24 * 3600;
/// A lease of 10 s, and time to take another.
const GRACE: Duration = Duration::from_secs(20);
const WARMUP: Duration = Duration::from_secs(600);
/// How long a restart takes.
const RESTART: u64 = 30;
/// A worker dies every so many days.
const DAYS_BETWEEN_DEATHS: f64 = 30.0;
/// One worker in so many flaps: it lives for two minutes at a time.
const FLAPPING: usize = 1_000;
/// When the state store is away.
const AWAY: std::ops::Range<u64> = 12 * 3600..12 * 3600 + 600;

struct Node {
    record: WorkerRecord,
    history: JoinHistory,
    /// While it lives: what it says, and when it dies.
    alive: Option<(Registration, u64)>,
    /// While it does not: when it starts.
    starts_at: u64,
    flaps: bool,
}

#[derive(Default)]
struct Seen {
    updates: u64,
    topologies: u64,
    longest: Duration,
    total: Duration,
    fewest: usize,
    joins: u64,
    damped: u64,
    fewest_while_away: usize,
}

pub(crate) fn simulate(arguments: &Arguments, page: &mut Page) {
    page.section(
        "A day of membership",
        &format!(
            "Every worker is restarted once; each dies every {DAYS_BETWEEN_DEATHS} days; one in {} flaps, living two minutes at \
             a time; the state store is away for ten minutes at noon. A client follows all of it, second by second.",
            count(FLAPPING as u64)
        ),
        &[
            "workers", "joins", "damped", "updates", "new rings", "an update takes", "the longest", "CPU of the day",
            "memory", "fewest owners", "fewest while the store is away",
        ],
    );
    for workers in [100, 1_000, arguments.workers] {
        let start = Instant::now();
        let (most, seen) = memory::most_of(|| day(workers, arguments.seed, start));
        let share = |owners: usize| percent(owners as f64 / workers as f64);
        page.row(&[
            count(workers as u64),
            count(seen.joins),
            count(seen.damped),
            count(seen.updates),
            count(seen.topologies),
            time(seen.total / u32::try_from(seen.updates).unwrap_or(u32::MAX).max(1)),
            time(seen.longest),
            time(seen.total),
            bytes(most),
            share(seen.fewest),
            share(seen.fewest_while_away),
        ]);
    }
}

fn day(workers: usize, seed: u64, start: Instant) -> Seen {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut nodes: Vec<Node> = (0..workers).map(|number| node(number, workers, &mut random)).collect();
    let mut view = MemberView::new(GRACE);
    let mut seen = Seen { fewest: workers, fewest_while_away: workers, ..Seen::default() };
    let initial: Vec<WorkerRecord> = nodes.iter().map(|node| node.record.clone()).collect();
    view.replaced(initial, start);
    // What was not told while the store was away.
    let mut untold: Vec<usize> = Vec::new();
    // When something happens to which node next.
    let mut events: BinaryHeap<Reverse<(u64, usize)>> = (0..workers).map(|at| Reverse((1, at))).collect();
    for second in 1..DAY {
        let now = start + Duration::from_secs(second);
        let mut changed = Vec::new();
        while let Some(Reverse((due, at))) = events.peek().copied()
            && due <= second
        {
            events.pop();
            let (news, next) = nodes[at].step(second, now, &mut random, &mut seen);
            events.push(Reverse((next.max(second + 1), at)));
            if news {
                changed.push(at);
            }
        }
        if AWAY.contains(&second) {
            if second == AWAY.start {
                view.lost("connection refused", now);
            }
            untold.extend(changed);
            seen.fewest_while_away = seen.fewest_while_away.min(view.topology().ring.members().len());
            continue;
        }
        if second == AWAY.end {
            changed.append(&mut untold);
            changed.sort_unstable();
            changed.dedup();
        }
        let before = std::sync::Arc::as_ptr(view.topology());
        let begun = Instant::now();
        if changed.is_empty() {
            view.tick(now);
        } else {
            let (alive, dead): (Vec<usize>, Vec<usize>) =
                changed.into_iter().partition(|at| nodes[*at].alive.is_some());
            let puts = alive.into_iter().map(|at| nodes[at].record.clone());
            let deletes = dead.into_iter().map(|at| nodes[at].record.name.clone());
            view.changed(puts, deletes, now);
            seen.updates += 1;
            let took = begun.elapsed();
            seen.total += took;
            seen.longest = seen.longest.max(took);
        }
        seen.topologies += u64::from(before != std::sync::Arc::as_ptr(view.topology()));
        seen.fewest = seen.fewest.min(view.topology().ring.members().len());
    }
    seen
}

fn node(number: usize, workers: usize, random: &mut SmallRng) -> Node {
    let name = format!("node-{number:05}.cluster:29999");
    let record = WorkerRecord {
        addresses: Addresses { rpc: name.clone(), ..Addresses::default() },
        name,
        weight: 1.0,
        ..WorkerRecord::default()
    };
    let registration = Registration::new(Instant::now(), Duration::ZERO, Duration::ZERO);
    let flaps = number % FLAPPING == FLAPPING / 2;
    // The upgrade goes through the day, one worker after the other; a worker that dies before dies by itself.
    let upgrade = 600 + (number as u64 * (DAY - 1200)) / workers as u64;
    let dies_at = if flaps { 120 } else { upgrade.min(lifetime(random)) };
    Node { record, history: JoinHistory::default(), alive: Some((registration, dies_at)), starts_at: 0, flaps }
}

/// Seconds until a worker dies by itself.
fn lifetime(random: &mut SmallRng) -> u64 {
    let uniform: f64 = random.random_range(f64::EPSILON..1.0);
    (-uniform.ln() * DAYS_BETWEEN_DEATHS * DAY as f64) as u64 + 1
}

impl Node {
    /// What happens to it in this second. Whether others are told of it, and when something happens next.
    fn step(&mut self, second: u64, now: Instant, random: &mut SmallRng, seen: &mut Seen) -> (bool, u64) {
        match &mut self.alive {
            Some((_, dies_at)) if *dies_at <= second => {
                self.alive = None;
                self.starts_at = second + RESTART;
                (true, self.starts_at)
            }
            Some((registration, dies_at)) => {
                let (standing, next) = registration.standing(now);
                let news = (self.record.state, self.record.warming) != (standing.state, standing.warming);
                (self.record.state, self.record.warming) = (standing.state, standing.warming);
                (news, next.map_or(*dies_at, |at| (*dies_at).min(second + (at - now).as_secs().max(1))))
            }
            None if self.starts_at <= second => {
                let penalty = self.history.join(second);
                seen.joins += 1;
                seen.damped += u64::from(!penalty.is_zero());
                let registration = Registration::new(now, penalty, WARMUP);
                let (standing, _) = registration.standing(now);
                (self.record.state, self.record.warming) = (standing.state, standing.warming);
                let dies_at = second + if self.flaps { 120 } else { lifetime(random) };
                self.alive = Some((registration, dies_at));
                (true, second + 1)
            }
            None => (false, self.starts_at),
        }
    }
}
