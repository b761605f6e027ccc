//! Rules that look at one sweep at a time.

use std::collections::BTreeMap;

use crate::median;
use crate::record::{CacheState, Cpu, Finding, Layout, Level, Pattern};
use crate::spread::Spread;

use super::super::knee::{Certainty, Knee, Reason, SHORTEST_STEP, knee};
use super::super::scaling::peak;
use super::super::settings::oversized;
use super::super::words::{self, jobs, measured_rate, measured_time, percent, rate, times};
use super::evidence::{Evidence, Sweep};
use super::finding::{Next as _, finding};

/// p99 is at most so many times the mean.
const TAIL: f64 = 10.0;
/// p99 of fewer operations rests on fewer than ten of them, and proves nothing.
const ENOUGH_OPERATIONS: u64 = 1000;
/// Rounds of the same that are further apart than this part of their median.
const NOISE: f64 = 0.2;
/// Percent of a processor that may go elsewhere.
const MUCH_ELSE: f64 = 25.0;

/// `knee` and `flat`.
pub(super) fn knees(evidence: &Evidence<'_>) -> Vec<Finding> {
    let measured = evidence.sweeps.iter().filter(|sweep| sweep.once().len() > 1);
    measured.map(|sweep| one_knee(evidence, sweep)).collect()
}

/// `cold`: once, where several jobs read the same bytes.
pub(super) fn cold(evidence: &Evidence<'_>) -> Vec<Finding> {
    let cold = || evidence.sweeps.iter().filter(|sweep| sweep.case.state == CacheState::Cold);
    let clients = cold().map(|sweep| sweep.case.clients).max().unwrap_or(1);
    let mut findings = Vec::new();
    if cold().any(|sweep| sweep.once().len() < sweep.points.len()) {
        let text = "Where several jobs read the same files cold, a byte that the first of them brings is counted for each: the \
                    highest cold figures, the knees and the ratios are only of steps in which each byte is read once."
            .to_owned();
        let next = "Those are of one job (`--numjobs 1,…`), or of files of their own and no more jobs than files.";
        findings.push(finding("cold", Level::Info, text).next(next));
    }
    if clients > 1 {
        let text = format!("All of {clients} clients read the same files: cold, a byte is counted for each of them.");
        findings
            .push(finding("cold", Level::Info, text).next("Divide cold figures by them for what the origin gives."));
    }
    findings
}

fn one_knee(evidence: &Evidence<'_>, sweep: &Sweep<'_>) -> Finding {
    let title = words::sweep(sweep.case);
    let Some(found) = knee(sweep.once(), sweep.case, &evidence.record.machine) else {
        let last = sweep.once().last().map_or(0, |point| point.jobs);
        let text = format!("{title}: no knee up to {}; more may give more.", jobs(last));
        return finding("knee", Level::Info, text).next(format!("Go on: `--numjobs {},{}`.", last * 2, last * 4));
    };
    if found.certainty == Certainty::WithinSpread {
        let text = format!(
            "{title}: no knee can be told. By the medians {} would be it, and rounds of the same differ by as much as it does from \
             what follows.",
            jobs(found.jobs)
        );
        return finding("knee", Level::Info, text)
            .next("Longer steps and more rounds (`--runtime`, `--repeat`), on a quiet machine.");
    }
    let flat = found.jobs == sweep.points[0].jobs && !at_ceiling(&found);
    let once = if found.certainty == Certainty::OneRound { ", one round each" } else { "" };
    let text = format!("{title}{once}: {}", found.text);
    match (flat, found.reason) {
        (_, Reason::Network | Reason::Disk) => finding("knee", Level::Good, text).next(remedy(sweep, &found)),
        (true, _) => finding("flat", Level::Warn, text).next(remedy(sweep, &found)),
        (false, Reason::FileSystem)
            if sweep.case.state == CacheState::Warm && sweep.case.pattern == Pattern::Shared =>
        {
            finding("knee", Level::Warn, text).next(remedy(sweep, &found))
        }
        (false, _) => finding("knee", Level::Info, text).next(remedy(sweep, &found)),
    }
}

/// Whether hardware, and not a lock, is what stops it.
fn at_ceiling(knee: &Knee) -> bool {
    knee.reason != Reason::FileSystem
}

fn remedy(sweep: &Sweep<'_>, knee: &Knee) -> String {
    match (knee.reason, sweep.case.state, sweep.case.layout, sweep.case.pattern) {
        (Reason::Network, ..) => "Faster cards or more clients are what would give more.".to_owned(),
        (Reason::Disk, ..) => {
            "More disks or workers are what would give more, or memory for what is read most.".to_owned()
        }
        (Reason::Processors, ..) => format!("Work with {}; more only share the processors.", jobs(knee.jobs)),
        (Reason::Readers, ..) => {
            "Read from several machines (`--clients`) to see what the cache can do beyond one reader.".to_owned()
        }
        (Reason::FileSystem, CacheState::Cold | CacheState::Partial, ..) => {
            "Load what will be read beforehand, or let more workers fetch it at once.".to_owned()
        }
        (Reason::FileSystem, CacheState::Warm, Layout::Single, _) => {
            "Compare with `--layouts multiple`: if that gives more, the limit is that of one file.".to_owned()
        }
        (Reason::FileSystem, CacheState::Warm, _, Pattern::Shared) => {
            "Take as many files as jobs or more (`--files`), and compare with the distinct pattern, which shares none."
                .to_owned()
        }
        (Reason::FileSystem, CacheState::Warm, _, Pattern::Distinct) => {
            format!("Work with {} of this depth: each keeps many operations under way.", jobs(knee.jobs))
        }
    }
}

/// `tail`: one finding a sweep that has a long one, or one that says that none has.
pub(super) fn tails(evidence: &Evidence<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut worst_of_all = 0.0_f64;
    for sweep in &evidence.sweeps {
        let enough = sweep.steps.iter().filter(|step| step.outcome.operations >= ENOUGH_OPERATIONS);
        let ratio =
            enough.map(|step| (step.outcome.latency.p99 / step.outcome.latency.mean.max(f64::MIN_POSITIVE), step));
        let Some((ratio, step)) = ratio.max_by(|(one, _), (other, _)| one.total_cmp(other)) else { continue };
        worst_of_all = worst_of_all.max(ratio);
        if ratio <= TAIL {
            continue;
        }
        let latency = step.outcome.latency;
        let once = |micros| measured_time(&Spread::once(micros));
        let text = format!(
            "{} with {}: p99 is {}, {} the mean of {}.",
            words::sweep(sweep.case),
            jobs(step.case.jobs),
            once(latency.p99),
            times(ratio),
            once(latency.mean)
        );
        findings.push(match sweep.case.state {
            CacheState::Cold | CacheState::Partial => {
                finding("tail", Level::Info, text).next("The slow ones waited for the origin.")
            }
            CacheState::Warm => finding("tail", Level::Warn, text).next(stalls(evidence.is_ours(&sweep.case.target))),
        });
    }
    if findings.is_empty() && worst_of_all > 0.0 {
        let text = format!("p99 is never more than {} the mean.", times(worst_of_all));
        findings.push(finding("tail", Level::Good, text));
    }
    findings
}

fn stalls(ours: bool) -> &'static str {
    if ours {
        "Look whether reads went to the origin (forebay_origin_received_bytes_total must stand still in a warm run), whether \
         more jobs ran than there are processors, and at `fuse.threads` (forebay_fuse_operation_duration_seconds)."
    } else {
        "Look whether reads went to the origin, whether more jobs ran than there are processors, and at its FUSE threads."
    }
}

/// `files` and `rounding`: once for each layout.
pub(super) fn files(evidence: &Evidence<'_>) -> Vec<Finding> {
    let layouts = [(Layout::Multiple, "files"), (Layout::Small, "small-files")];
    layouts.iter().flat_map(|(layout, setting)| files_of(evidence, *layout, setting)).collect()
}

fn files_of(evidence: &Evidence<'_>, layout: Layout, setting: &str) -> Vec<Finding> {
    let Some(files) = evidence.number(setting).filter(|files| *files > 0) else { return Vec::new() };
    let jobs_of = |pattern: Pattern| {
        let own = evidence.sweeps.iter().filter(|sweep| (sweep.case.layout, sweep.case.pattern) == (layout, pattern));
        let mut all: Vec<u32> = own.flat_map(|sweep| sweep.points.iter().map(|point| point.jobs)).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let mut findings = Vec::new();
    if let Some(most) = jobs_of(Pattern::Shared).last().filter(|most| **most > files) {
        let text = format!("{} shared {files} files: they wait for each other's locks.", jobs(*most));
        findings.push(
            finding("files", Level::Warn, text).next(format!("`--{setting} {most}` gives each a file at a time.")),
        );
    }
    // What was asked for: what was measured is rounded already.
    let asked = evidence.record.settings.get("numjobs").map_or("", String::as_str);
    let asked = asked.split(',').filter(|_| !jobs_of(Pattern::Distinct).is_empty());
    let uneven =
        asked.filter_map(|jobs| jobs.parse().ok()).filter(|jobs: &u32| *jobs > files && !jobs.is_multiple_of(files));
    let uneven: Vec<String> = uneven.map(|jobs| format!("{jobs} as {}", jobs / files * files)).collect();
    if !uneven.is_empty() {
        let text = format!(
            "The distinct pattern gives each of {files} files the same number of jobs: it ran {}.",
            uneven.join(", ")
        );
        findings.push(finding("rounding", Level::Info, text));
    }
    findings
}

/// `block`.
pub(super) fn blocks(evidence: &Evidence<'_>) -> Vec<Finding> {
    let mut blocks: Vec<u64> = evidence.sweeps.iter().map(|sweep| sweep.case.block_bytes).collect();
    blocks.sort_unstable();
    blocks.dedup();
    let warn = |text: String| finding("block", Level::Warn, text).next("`--bs 256K` to `--bs 1M`.");
    blocks.into_iter().filter_map(oversized).map(warn).collect()
}

/// `short`: steps that ended before there was much to measure.
pub(super) fn short(evidence: &Evidence<'_>) -> Vec<Finding> {
    let all = || evidence.sweeps.iter().flat_map(|sweep| &sweep.steps);
    let short: Vec<f64> = all().map(|step| step.outcome.seconds).filter(|seconds| *seconds < SHORTEST_STEP).collect();
    let Some(shortest) = short.iter().copied().reduce(f64::min) else { return Vec::new() };
    let text = format!(
        "{} of {} steps read for less than a second, the shortest for {}: starting is a good part of what they measured. None of them \
         is a highest figure where a longer one is.",
        short.len(),
        all().count(),
        measured_time(&Spread::once(shortest * 1e6))
    );
    let next = "Cold steps end when all is read once: measure more data (`--size`, `--file-size`, `--scale`).";
    vec![finding("short", Level::Warn, text).next(next)]
}

/// One of the figures of processors.
type Figure = fn(Cpu) -> f64;

/// `neighbours`: steps beside which the machine, or another one on the same hardware, did much else.
pub(super) fn neighbours(evidence: &Evidence<'_>) -> Vec<Finding> {
    let all = || evidence.sweeps.iter().flat_map(|sweep| &sweep.steps).map(|step| step.outcome.cpu);
    let kinds = [
        (
            (|cpu| cpu.others) as Figure,
            "other programs went on with what they did before, which is not counted as the cost of serving",
            "End them, or read those steps with care: they slow readers down all the same.",
        ),
        (
            |cpu| cpu.stolen,
            "the hypervisor ran other machines on its processors",
            "Measure where processors are not shared, or compare rounds: a slow one may be theirs.",
        ),
    ];
    let of = |(load, what, next): (Figure, &str, &str)| {
        let much = all().map(load).filter(|percent| *percent > MUCH_ELSE);
        let (count, most) = much.fold((0, 0.0_f64), |(count, most), percent| (count + 1, most.max(percent)));
        let steps = if count == 1 { "step" } else { "steps" };
        let text = format!("During {count} {steps} of {} {what}: up to {most:.0} % of a processor.", all().count());
        (count > 0).then(|| finding("neighbours", Level::Warn, text).next(next))
    };
    kinds.into_iter().filter_map(of).collect()
}

/// `cpu`: for each target, at the peak of its best warm sequential sweep.
pub(super) fn processors(evidence: &Evidence<'_>) -> Vec<Finding> {
    use crate::record::Access;
    let cost = |target: &str| {
        let own = evidence.sweeps.iter().filter(|sweep| {
            let case = sweep.case;
            (case.target == target, case.state, case.access, case.clients <= 1)
                == (true, CacheState::Warm, Access::Sequential, true)
        });
        let best = own.filter_map(|sweep| Some((sweep, peak(&sweep.points)?)));
        let (sweep, point) =
            best.max_by(|(_, one), (_, other)| one.bytes_per_second.total_cmp(&other.bytes_per_second))?;
        if point.cpu.machine <= 0.0 || point.bytes_per_second <= 0.0 {
            return None;
        }
        let text = format!(
            "{} with {}: {} cost {:.0} % of a processor for each GB/s, besides fio's own {:.0} % and what the machine did anyway.",
            words::sweep(sweep.case),
            jobs(point.jobs),
            measured_rate(&point.spreads.bytes),
            point.cpu.per_gigabyte(point.bytes_per_second),
            point.cpu.fio / (point.bytes_per_second / 1e9)
        );
        Some(finding("cpu", Level::Info, text))
    };
    evidence.targets.iter().filter_map(|target| cost(&target.name)).collect()
}

/// `noise`: the step whose rounds differ most, when that is much.
pub(super) fn noise(evidence: &Evidence<'_>) -> Vec<Finding> {
    let mut worst: Option<(f64, String)> = None;
    for sweep in &evidence.sweeps {
        let mut by_jobs: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for step in &sweep.steps {
            by_jobs.entry(step.case.jobs).or_default().push(step.outcome.bytes_per_second);
        }
        for (count, rates) in by_jobs.into_iter().filter(|(_, rates)| rates.len() > 1) {
            let (low, high) =
                rates.iter().fold((f64::MAX, 0.0_f64), |(low, high), rate| (low.min(*rate), high.max(*rate)));
            let spread = (high - low) / median(rates).unwrap_or_default().max(f64::MIN_POSITIVE);
            if spread > NOISE && worst.as_ref().is_none_or(|(most, _)| spread > *most) {
                let case = format!("{} with {}", words::sweep(sweep.case), jobs(count));
                worst = Some((spread, format!("{case}: {} to {}", rate(low), rate(high))));
            }
        }
    }
    let Some((spread, text)) = worst else { return Vec::new() };
    let text = format!("Rounds of the same differ by up to {} of their median ({text}).", percent(spread));
    vec![
        finding("noise", Level::Warn, text)
            .next("Longer steps and more rounds (`--runtime`, `--repeat`), on a quiet machine."),
    ]
}
