//! The runs of fio by sweep: cases that differ in the number of jobs only, each the median of its rounds, with the knee.

use super::units::{counted, size};
use crate::median;
use crate::posix::knee::{self, Certainty, Knee, SHORTEST_STEP};
use crate::posix::plan::same_sweep;
use crate::record::{
    Access, CacheState, Case, Cpu, Latency, Layout, Machine, Measured, Outcome, Pattern, Record, Step,
};
use crate::spread::Spread;

/// A sweep.
#[derive(Clone, Debug)]
pub(super) struct Sweep {
    /// One of its cases: all but the jobs is the same in the others.
    pub(super) case: Case,
    /// By the number of jobs.
    pub(super) points: Vec<Point>,
    pub(super) knee: Option<Knee>,
    /// With more jobs, cold, some read what others have just brought: those are no figures of the origin.
    max_jobs: u32,
    /// Why none of it counts.
    discounted: Option<&'static str>,
}

/// What so many jobs did: the medians of the rounds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) jobs: u32,
    pub(super) outcome: Outcome,
    /// What each round found.
    pub(super) rounds: Vec<Outcome>,
}

/// The sweeps in `steps`, in the order in which they began.
pub(super) fn sweeps(steps: &[Step], record: &Record) -> Vec<Sweep> {
    let mut sweeps: Vec<Sweep> = Vec::new();
    for step in steps {
        if sweeps.iter().any(|sweep| same_sweep(&sweep.case, &step.case)) {
            continue;
        }
        let mut own: Vec<&Step> = steps.iter().filter(|other| same_sweep(&step.case, &other.case)).collect();
        own.sort_by_key(|step| step.case.jobs);
        let points = own.chunk_by(|one, other| one.case.jobs == other.case.jobs).map(Point::of).collect();
        let max_jobs = knee::max_jobs(&step.case, &record.settings);
        let mut once = knee::points(steps, &step.case);
        once.retain(|point| point.jobs <= max_jobs);
        let knee = knee::knee(&once, &step.case, &record.machine);
        let discounted = discounted(&step.case, record);
        sweeps.push(Sweep { case: step.case.clone(), points, knee, max_jobs, discounted });
    }
    sweeps
}

/// Why nothing follows from a sweep, if so.
fn discounted(case: &Case, record: &Record) -> Option<&'static str> {
    let Measured::Posix { targets, .. } = &record.measured else { return None };
    let of_memory = targets.iter().any(|target| target.name == case.target && target.cold_is_memory.is_some());
    match case.state {
        CacheState::Partial => Some("not all of it was in the cache, which is why it is called partial"),
        CacheState::Cold if of_memory => Some("the origin that it was to be read from is in memory"),
        CacheState::Warm | CacheState::Cold => None,
    }
}

impl Sweep {
    /// Why a point counts for nothing, if it does not.
    pub(super) fn discounts(&self, jobs: u32) -> Option<&'static str> {
        self.discounted.or((jobs > self.max_jobs)
            .then_some("of more jobs than one, or than files, each is counted what the first of them brings"))
    }

    /// The point to look at if it is one only: the knee; without one, the highest throughput.
    pub(super) fn best(&self) -> Option<&Point> {
        let knee = self.told_knee().and_then(|knee| self.points.iter().find(|point| point.jobs == knee.jobs));
        knee.or_else(|| self.highest()).or(self.points.first())
    }

    /// The point with the highest throughput, of those in which each byte is read once.
    pub(super) fn highest(&self) -> Option<&Point> {
        let throughput = |point: &&Point| point.outcome.bytes_per_second;
        let any_long = self.points.iter().any(|point| point.jobs <= self.max_jobs && !point.is_short());
        let once = self.points.iter().filter(|point| point.jobs <= self.max_jobs);
        let once = once.filter(|point| !any_long || !point.is_short());
        once.max_by(|one, other| throughput(one).total_cmp(&throughput(other)))
    }

    /// Why it has no knee.
    pub(super) fn no_knee(&self) -> &'static str {
        if self.knee.is_some() {
            "None can be told: rounds of the same differ by as much as the best number of jobs does from those that follow."
        } else if self.points.iter().any(|point| point.jobs > self.max_jobs) {
            "Cold it has none to be seen: of more jobs, each is counted what the first of them brings."
        } else {
            "There is none in sight: more jobs were always worth it."
        }
    }

    /// The knee, unless it is within what rounds differ by.
    pub(super) fn told_knee(&self) -> Option<&Knee> {
        self.knee.as_ref().filter(|knee| knee.certainty != Certainty::WithinSpread)
    }

    /// Whether this is the knee.
    pub(super) fn is_knee(&self, jobs: u32) -> bool {
        self.told_knee().is_some_and(|knee| knee.jobs == jobs)
    }

    /// Where a plot marks it, and as what.
    pub(super) fn mark(&self) -> Option<(f64, String)> {
        let words = |certainty| if certainty == Certainty::OneRound { "knee (one round)" } else { "knee" };
        self.told_knee().map(|knee| (f64::from(knee.jobs), words(knee.certainty).to_owned()))
    }
}

impl Point {
    fn of(steps: &[&Step]) -> Self {
        let clamped = |step: &&Step| Outcome { latency: step.outcome.latency.clamped(), ..step.outcome.clone() };
        let rounds: Vec<Outcome> = steps.iter().map(clamped).collect();
        let middle = |figure: fn(&Outcome) -> f64| median(rounds.iter().map(figure)).unwrap_or(f64::NAN);
        let outcome = Outcome {
            bytes_per_second: middle(|outcome| outcome.bytes_per_second),
            operations_per_second: middle(|outcome| outcome.operations_per_second),
            operations: middle(|outcome| outcome.operations as f64) as u64,
            bytes: middle(|outcome| outcome.bytes as f64) as u64,
            seconds: middle(|outcome| outcome.seconds),
            latency: Latency {
                mean: middle(|outcome| outcome.latency.mean),
                p50: middle(|outcome| outcome.latency.p50),
                p90: middle(|outcome| outcome.latency.p90),
                p95: middle(|outcome| outcome.latency.p95),
                p99: middle(|outcome| outcome.latency.p99),
                p999: middle(|outcome| outcome.latency.p999),
                max: middle(|outcome| outcome.latency.max),
            },
            cpu: Cpu::median_of(rounds.iter().map(|outcome| outcome.cpu)),
            origin_bytes: rounds.iter().filter_map(|outcome| outcome.origin_bytes).max(),
            clients: Vec::new(),
        };
        Self { jobs: steps.first().map_or(0, |step| step.case.jobs), outcome, rounds }
    }

    /// A figure of all rounds.
    pub(super) fn spread(&self, figure: impl Fn(&Outcome) -> f64) -> Option<Spread> {
        Spread::of(self.rounds.iter().map(figure))
    }

    /// Its throughput.
    pub(super) fn throughput(&self) -> Option<Spread> {
        self.spread(|outcome| outcome.bytes_per_second)
    }

    /// Whether one of the rounds read for less than a second.
    pub(super) fn is_short(&self) -> bool {
        self.rounds.iter().any(|outcome| outcome.seconds < SHORTEST_STEP)
    }

    /// What serving cost, if this machine saw all of it.
    pub(super) fn cpu_per_gigabyte(&self, case: &Case) -> Option<Spread> {
        let known = self.rounds.iter().filter(|outcome| case.clients <= 1 && outcome.cpu.machine > 0.0);
        Spread::of(known.map(|outcome| outcome.cpu.per_gigabyte(outcome.bytes_per_second)))
    }

    /// The part of each client's network that it fills.
    pub(super) fn of_network(&self, case: &Case, machine: &Machine) -> Option<f64> {
        let link = machine.network.as_ref().filter(|link| link.bits_per_second > 0.0)?;
        Some(self.outcome.bytes_per_second * 8.0 / f64::from(case.clients.max(1)) / link.bits_per_second)
    }

    /// Its latencies, in the order of [`super::units::PERCENTILES`].
    pub(super) fn percentiles(&self) -> [Option<Spread>; 6] {
        let of = |figure: fn(&Latency) -> f64| self.spread(|outcome| figure(&outcome.latency));
        [
            of(|all| all.p50),
            of(|all| all.p90),
            of(|all| all.p95),
            of(|all| all.p99),
            of(|all| all.p999),
            of(|all| all.max),
        ]
    }
}

/// How `one` compares with `other`, measured in turn: the rounds' own ratios. The jobs are those of `one`.
pub(super) fn paired(
    steps: &[Step],
    one: &Case,
    other: &Case,
    figure: impl Fn(&Step) -> Option<f64>,
) -> Option<Spread> {
    let other = Case { jobs: one.jobs, ..other.clone() };
    let of = |case: &Case, round: u32| {
        steps
            .iter()
            .find(|step| step.round == round && step.case == *case)
            .and_then(&figure)
            .filter(|value| *value > 0.0)
    };
    let rounds = steps.iter().filter(|step| step.case == *one).map(|step| step.round);
    Spread::of(rounds.filter_map(|round| Some(of(one, round)? / of(&other, round)?)))
}

/// What is paired.
pub(super) mod figures {
    use crate::record::Step;

    pub(in super::super) fn throughput(step: &Step) -> Option<f64> {
        Some(step.outcome.bytes_per_second)
    }

    pub(in super::super) fn p99(step: &Step) -> Option<f64> {
        Some(step.outcome.latency.p99)
    }

    pub(in super::super) fn cpu(step: &Step) -> Option<f64> {
        let outcome = &step.outcome;
        (step.case.clients <= 1)
            .then(|| outcome.cpu.per_gigabyte(outcome.bytes_per_second))
            .filter(|cpu| cpu.is_finite())
    }
}

/// Whether two sweeps are shown in one plot: they read the same in the same way, from wherever, in whichever state.
pub(super) fn together(one: &Case, other: &Case) -> bool {
    (one.layout, one.pattern, one.access, one.block_bytes, one.depth)
        == (other.layout, other.pattern, other.access, other.block_bytes, other.depth)
}

/// What is read, and how: `Several files, shared, sequential, 256 KiB`.
pub(super) fn reading(case: &Case) -> String {
    let files = match (case.layout, case.pattern) {
        (Layout::Single, _) => "One large file".to_owned(),
        (Layout::Multiple, pattern) => format!("Several files, {}", pattern.name()),
        (Layout::Small, pattern) => format!("Many small files, {}", pattern.name()),
    };
    let depth = if case.depth > 1 { format!(", depth {}", case.depth) } else { String::new() };
    format!("{files}, {}, {}{depth}", case.access.name(), size(case.block_bytes))
}

/// That in a sentence, with what it stands for.
pub(super) fn meaning(case: &Case) -> String {
    let files = match (case.layout, case.pattern) {
        (Layout::Single, _) => "All jobs read one file: what a single file gives.",
        (Layout::Multiple, Pattern::Shared) => {
            "All jobs read all files, as programs do that know nothing of each other."
        }
        (Layout::Multiple, Pattern::Distinct) => {
            "Each job has files of its own and a deep queue, as loaders of shards do."
        }
        (Layout::Small, Pattern::Shared) => {
            "All jobs read all of many small files, as training does: opening them counts."
        }
        (Layout::Small, Pattern::Distinct) => "Each job has small files of its own: opening them counts.",
    };
    let access = match case.access {
        Access::Sequential => "from front to back",
        Access::Random => "anywhere",
    };
    let under_way = counted(case.depth, "operation");
    format!("{files} Reads of {} {access}, {under_way} of each job under way.", size(case.block_bytes))
}

/// `3W/3C`; only the clients where the workers are not known; nothing for one client alone.
pub(super) fn topology(case: &Case) -> String {
    match (case.workers, case.clients) {
        (0, 0 | 1) => String::new(),
        (0, clients) => counted(clients, "client"),
        (workers, clients) => format!("{workers}W/{clients}C"),
    }
}

/// What tells sweeps of one plot apart: only what differs among them.
pub(super) fn names(sweeps: &[&Sweep]) -> Vec<String> {
    let differs = |of: fn(&Case) -> String| sweeps.iter().any(|sweep| of(&sweep.case) != of(&sweeps[0].case));
    let state = |case: &Case| case.state.name().to_owned();
    let (states, topologies) = (differs(state), differs(topology));
    let name = |sweep: &&Sweep| {
        let mut name = sweep.case.target.clone();
        if states || sweep.case.state != CacheState::Warm {
            name = format!("{name}, {}", sweep.case.state.name());
        }
        if topologies {
            name = format!("{name}, {}", topology(&sweep.case));
        }
        name
    };
    sweeps.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing;

    fn steps(record: &Record) -> &[Step] {
        match &record.measured {
            Measured::Posix { steps, .. } => steps,
            Measured::Read { .. } => &[],
        }
    }

    #[test]
    fn a_sweep_has_one_point_for_each_number_of_jobs_and_medians_in_it() {
        let record = testing::posix();
        let sweeps = sweeps(steps(&record), &record);
        // Four ways to read, of two targets, in two states.
        assert_eq!(sweeps.len(), 16);
        let first = &sweeps[0];
        assert_eq!(first.points.iter().map(|point| point.jobs).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 64, 128, 256]);
        let of_round =
            |round| steps(&record).iter().find(|step| step.round == round && step.case == first.case).unwrap();
        assert_eq!(first.points[0].outcome.latency, of_round(1).outcome.latency);
        let spread = first.points[0].throughput().unwrap().part().unwrap();
        assert!((spread - 0.02 / 1.02).abs() < 1e-9, "{spread}");
        assert!(first.best().is_some() && first.knee.is_some());
    }

    #[test]
    fn a_ratio_is_that_of_rounds_which_ran_in_turn() {
        let record = testing::posix();
        let mut steps = steps(&record).to_vec();
        let one = steps[0].case.clone();
        let other = Case { target: "juicefs".to_owned(), ..one.clone() };
        // All became slow in the last round: this changes no ratio.
        for step in steps.iter_mut().filter(|step| step.round == 2) {
            step.outcome.bytes_per_second /= 10.0;
        }
        let ratio = paired(&steps, &one, &other, figures::throughput).unwrap();
        let expected = steps[0].outcome.bytes_per_second / steps[1].outcome.bytes_per_second;
        assert!((ratio.middle - expected).abs() < 0.01 && ratio.rounds == 3, "{ratio:?} {expected}");
        // A round that the other target lacks has no ratio.
        steps.retain(|step| step.case.target == "forebay" || step.round == 1);
        assert!(paired(&steps, &one, &other, figures::throughput).is_some());
        steps.retain(|step| step.case.target == "forebay");
        assert_eq!(paired(&steps, &one, &other, figures::throughput), None);
    }

    #[test]
    fn lines_are_named_by_what_differs() {
        let record = testing::posix();
        let all = sweeps(steps(&record), &record);
        let chosen = |state, targets: usize| -> Vec<&Sweep> {
            let own = all.iter().filter(|sweep| together(&sweep.case, &all[0].case) && sweep.case.state == state);
            own.take(targets).collect()
        };
        assert_eq!(names(&chosen(CacheState::Warm, 1)), ["forebay"]);
        assert_eq!(names(&chosen(CacheState::Warm, 2)), ["forebay", "juicefs"]);
        assert_eq!(names(&chosen(CacheState::Cold, 1)), ["forebay, cold"]);
        let both = [chosen(CacheState::Warm, 1), chosen(CacheState::Cold, 1)].concat();
        assert_eq!(names(&both), ["forebay, warm", "forebay, cold"]);
        assert_eq!(reading(&all[0].case), "One large file, sequential, 1 MiB");
    }
}
