//! Rules that hold sweeps against each other.

use crate::median;
use crate::record::{Access, CacheState, Case, Finding, Layout, Level, Pattern, Target};
use crate::spread::Verdict;

use super::super::knee::Point;
use super::super::plan::same_sweep;
use super::super::scaling::peak;
use super::super::words::{self, LARGE, bits, jobs, measured_rate, more_or_less, percent, rounds, speed};
use super::evidence::{Evidence, Sweep};
use super::finding::{Next as _, finding};

/// What a well-tuned FUSE client reaches of its card at its peak, from a warm cache in memory.
const OF_THE_CARD: std::ops::RangeInclusive<f64> = 0.55..=0.65;
/// Above this part of the card's speed, bytes did not cross it.
const CROSSES: f64 = 1.1;
/// How many times as fast as cold warm is, usually.
const COLD_TO_WARM: std::ops::RangeInclusive<f64> = 10.0..=50.0;
/// The words of how much is read.
const AS_MUCH: [&str; 3] = ["more", "less", "much"];
/// Ratios of one round each within this are the same.
const SAME: f64 = 1.05;

/// The sweeps of a target that are so, each with its peak; of cold ones, where each byte is read once.
fn peaks<'a>(
    evidence: &'a Evidence<'_>,
    target: &str,
    which: impl Fn(&Case) -> bool,
) -> Vec<(&'a Sweep<'a>, &'a Point)> {
    let own = evidence.sweeps.iter().filter(|sweep| sweep.case.target == target && which(sweep.case));
    own.filter_map(|sweep| Some((sweep, peak(sweep.once())?))).collect()
}

fn highest<'a>(peaks: &[(&'a Sweep<'a>, &'a Point)]) -> Option<(&'a Sweep<'a>, &'a Point)> {
    peaks.iter().copied().max_by(|(_, one), (_, other)| one.bytes_per_second.total_cmp(&other.bytes_per_second))
}

/// What reads of this size are measured in.
fn figure(case: &Case, point: &Point) -> String {
    speed(case, &point.spreads.bytes, &point.spreads.operations)
}

/// `headline`.
pub(super) fn headline(evidence: &Evidence<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for state in [CacheState::Warm, CacheState::Cold] {
        for access in [Access::Sequential, Access::Random] {
            // Operations of small reads and bytes of large ones are two figures.
            for large in [true, false] {
                let all = peaks(evidence, evidence.first(), |case| {
                    (case.state, case.access, case.block_bytes >= LARGE) == (state, access, large)
                });
                let Some((sweep, point)) = highest(&all) else { continue };
                let text = format!(
                    "Highest {} {}: {} with {} ({}; {}).",
                    state.name(),
                    access.name(),
                    figure(sweep.case, point),
                    jobs(point.jobs),
                    words::sweep(sweep.case),
                    rounds(&point.spreads.bytes)
                );
                findings.push(finding("headline", Level::Info, text));
            }
        }
    }
    findings
}

/// `against`: for each other target, state and order, the ratios of all cases that both have.
pub(super) fn against(evidence: &Evidence<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for other in evidence.targets.iter().skip(1) {
        for state in [CacheState::Warm, CacheState::Cold] {
            for access in [Access::Sequential, Access::Random] {
                findings.extend(ratio(evidence, &other.name, state, access));
            }
        }
    }
    findings
}

fn ratio(evidence: &Evidence<'_>, other: &str, state: CacheState, access: Access) -> Option<Finding> {
    let first = evidence.first();
    let mut ratios = Vec::new();
    let mut tails = Vec::new();
    let own = evidence.sweeps.iter().filter(|sweep| sweep.case.target == first);
    for sweep in own.filter(|sweep| (sweep.case.state, sweep.case.access) == (state, access)) {
        let same = Case { target: other.to_owned(), ..sweep.case.clone() };
        let Some(theirs) = evidence.sweeps.iter().find(|sweep| same_sweep(sweep.case, &same)) else { continue };
        for point in sweep.once() {
            let Some(their) = theirs.points.iter().find(|their| their.jobs == point.jobs) else { continue };
            if their.bytes_per_second > 0.0 && their.p99 > 0.0 {
                ratios.push(point.bytes_per_second / their.bytes_per_second);
                tails.push(point.p99 / their.p99);
            }
        }
    }
    if ratios.is_empty() {
        return None;
    }
    let (low, high) = ratios.iter().fold((f64::MAX, 0.0_f64), |(low, high), ratio| (low.min(*ratio), high.max(*ratio)));
    let (cases, middle, tail) = (ratios.len(), median(ratios).unwrap_or_default(), median(tails).unwrap_or_default());
    let as_much = |ratio: f64| more_or_less(ratio, AS_MUCH);
    let cases = match cases {
        1 => "one case".to_owned(),
        cases if as_much(low) == as_much(high) => format!("all of {cases} cases"),
        cases => format!("median of {cases} cases, from {} to {}", as_much(low), as_much(high)),
    };
    let text = format!(
        "{} {}, {first} against {other}: it reads {} ({cases}), and its p99 is {}.",
        state.name(),
        access.name(),
        as_much(middle),
        more_or_less(tail, ["longer", "shorter", "long"])
    );
    Some(finding("against", if middle * SAME >= 1.0 { Level::Good } else { Level::Info }, text))
}

/// `network`: of the target of interest, if it is a FUSE mount.
pub(super) fn network(evidence: &Evidence<'_>) -> Vec<Finding> {
    let Some(link) = &evidence.record.machine.network else { return Vec::new() };
    if !evidence.targets.first().is_some_and(|target| target.file_system.starts_with("fuse")) {
        return Vec::new();
    }
    let all = peaks(evidence, evidence.first(), |case| {
        (case.state, case.access, case.clients <= 1) == (CacheState::Warm, Access::Sequential, true)
    });
    let Some((sweep, point)) = highest(&all) else { return Vec::new() };
    let used = point.bytes_per_second * 8.0 / link.bits_per_second;
    let usual = format!("{} to {}", percent(*OF_THE_CARD.start()), percent(*OF_THE_CARD.end()));
    let text = format!(
        "The peak of one client, {}, is {} of {} ({}). A FUSE client with a warm cache in memory reaches {usual} of its card.",
        measured_rate(&point.spreads.bytes),
        percent(used),
        link.name,
        bits(link.bits_per_second)
    );
    let finding = match used {
        used if used > CROSSES => {
            let text = format!("{text} What is more than all of it came from this machine's own memory.");
            finding("network", Level::Info, text)
        }
        used if used >= *OF_THE_CARD.start() => finding("network", Level::Good, text),
        _ => {
            // Where it was not said how many there are, the workers may be on this machine, and the card has nothing to
            // do with it.
            let level = if sweep.case.workers == 0 { Level::Info } else { Level::Warn };
            finding("network", level, text).next(
                "If its workers are other machines: measure the network alone (`forebay bench rdma`), then look at `fuse.threads` \
                 and `fuse.max_background` before suspecting workers or origin.",
            )
        }
    };
    vec![finding]
}

/// `patterns`: warm reads of the target of interest.
pub(super) fn patterns(evidence: &Evidence<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for layout in [Layout::Multiple, Layout::Small] {
        for access in [Access::Sequential, Access::Random] {
            let of = |pattern: Pattern| {
                let all = peaks(evidence, evidence.first(), |case| {
                    (case.state, case.layout, case.access, case.pattern) == (CacheState::Warm, layout, access, pattern)
                });
                highest(&all)
            };
            let (Some((sweep, shared)), Some((_, distinct))) = (of(Pattern::Shared), of(Pattern::Distinct)) else {
                continue;
            };
            let said = |point: &Point| format!("{} with {}", figure(sweep.case, point), jobs(point.jobs));
            let ratio = distinct.bytes_per_second / shared.bytes_per_second.max(f64::MIN_POSITIVE);
            let spread = distinct.spreads.bytes.over(&shared.spreads.bytes);
            let better = match spread.map_or(Verdict::Unknown, |spread| spread.verdict()) {
                Verdict::Same => "rounds of the same differ by as much".to_owned(),
                Verdict::Unknown if (1.0 / SAME..=SAME).contains(&ratio) => "that is the same".to_owned(),
                _ => format!("files of their own give {}", more_or_less(ratio, AS_MUCH)),
            };
            let text = format!(
                "Warm {}, {} files: shared files peak at {}, files of their own at {}; {better}. What counts is the pattern that \
                 your programs read in.",
                access.name(),
                layout.name(),
                said(shared),
                said(distinct)
            );
            findings.push(finding("patterns", Level::Info, text));
        }
    }
    findings
}

/// `layouts`: warm sequential reads of the target of interest.
pub(super) fn layouts(evidence: &Evidence<'_>) -> Vec<Finding> {
    let of = |layout: Layout| {
        let all = peaks(evidence, evidence.first(), |case| {
            (case.state, case.access, case.layout) == (CacheState::Warm, Access::Sequential, layout)
        });
        highest(&all)
    };
    let (Some((_, single)), Some((_, multiple))) = (of(Layout::Single), of(Layout::Multiple)) else {
        return Vec::new();
    };
    let ratio = multiple.bytes_per_second / single.bytes_per_second.max(f64::MIN_POSITIVE);
    let text = format!(
        "Warm sequential: multiple files peak at {}, a single one at {}: the first give {}. 10 to 15 % more is usual; much more says \
         that one file has a limit of its own.",
        measured_rate(&multiple.spreads.bytes),
        measured_rate(&single.spreads.bytes),
        more_or_less(ratio, AS_MUCH)
    );
    vec![finding("layouts", Level::Info, text)]
}

/// `cold-warm`: for each sweep that both states have, with the fewest jobs that both have: there no job reads what another one
/// has just brought into the cache.
pub(super) fn cold_and_warm(evidence: &Evidence<'_>) -> Vec<Finding> {
    let is_memory = |target: &str| {
        // Records of earlier versions have cold steps of memory, too.
        let of_memory =
            |known: &Target| known.cold_is_memory.is_some() || matches!(&*known.file_system, "tmpfs" | "ramfs");
        evidence.targets.iter().any(|known| known.name == target && of_memory(known))
    };
    let warm = evidence.sweeps.iter().filter(|sweep| sweep.case.state == CacheState::Warm);
    warm.filter(|warm| !is_memory(&warm.case.target))
        .filter_map(|warm| {
            let same = Case { state: CacheState::Cold, ..warm.case.clone() };
            let cold = evidence.sweeps.iter().find(|sweep| same_sweep(sweep.case, &same))?;
            let both = |point: &&Point| cold.points.iter().any(|other| other.jobs == point.jobs);
            let fast = warm.points.iter().find(both)?;
            let slow =
                cold.points.iter().find(|point| point.jobs == fast.jobs).filter(|slow| slow.bytes_per_second > 0.0)?;
            Some(ratio_of_states(evidence, warm.case, fast, slow))
        })
        .collect()
}

fn ratio_of_states(evidence: &Evidence<'_>, case: &Case, warm: &Point, cold: &Point) -> Finding {
    let ratio = warm.bytes_per_second / cold.bytes_per_second;
    let text = format!(
        "{} with {}: {}; cold {}. Warm is {}; 10 to 50 times is usual.",
        words::sweep(case),
        jobs(warm.jobs),
        figure(case, warm),
        figure(case, cold),
        more_or_less(ratio, ["faster", "slower", "fast"])
    );
    if ratio >= *COLD_TO_WARM.start() {
        let level = if COLD_TO_WARM.contains(&ratio) { Level::Good } else { Level::Info };
        return finding("cold-warm", level, text);
    }
    let counters = if evidence.is_ours(&case.target) {
        "forebay_origin_received_bytes_total must not grow in a warm run, and forebay_client_read_bytes_total and \
         forebay_worker_served_bytes_total say by source where bytes came from (`forebay stats`)"
    } else {
        "look at the counters of its cache"
    };
    finding("cold-warm", Level::Warn, text)
        .next(format!("Either the origin is as near as the cache, or warm reads missed: {counters}."))
}
