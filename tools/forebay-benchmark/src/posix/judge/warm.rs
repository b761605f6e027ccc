//! Whether what is called warm was warm: by the bytes that the cache received from the origin while each step read.

use crate::record::{CacheState, Finding, Level};

use super::super::words::{bytes, jobs, sweep as name_of};
use super::evidence::Evidence;
use super::finding::{Next as _, finding};

/// `warm`.
pub(super) fn proof(evidence: &Evidence<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for sweep in evidence.sweeps.iter().filter(|sweep| sweep.case.state == CacheState::Partial) {
        let worst = sweep.steps.iter().max_by_key(|step| step.outcome.origin_bytes);
        let Some((step, received)) = worst.and_then(|step| Some((step, step.outcome.origin_bytes?))) else { continue };
        let text = format!(
            "{} with {}: {} came from the origin while {} were read, though all of it had been loaded: it is called partial, not \
             warm.",
            name_of(sweep.case),
            jobs(step.case.jobs),
            bytes(received),
            bytes(step.outcome.bytes)
        );
        findings.push(finding("warm", Level::Warn, text).next(
            "Give the workers more room, measure less data, or end what else fills the cache: `forebay stats` shows what is \
             evicted.",
        ));
    }
    for target in evidence.targets {
        let warm = evidence.sweeps.iter().filter(|sweep| sweep.case.target == target.name);
        let warm = warm.filter(|sweep| sweep.case.state == CacheState::Warm).flat_map(|sweep| &sweep.steps);
        let (known, all) = warm.fold((Vec::new(), 0), |(mut known, all), step| {
            known.extend(step.outcome.origin_bytes);
            (known, all + 1)
        });
        if let Some(most) = known.iter().max() {
            let text = format!(
                "{}: of {all} warm steps {} were counted at the origin; the most that one took from there is {}.",
                target.name,
                known.len(),
                bytes(*most)
            );
            findings.push(finding("warm", Level::Good, text));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use crate::posix::findings;
    use crate::posix::testing::{case, record, step};
    use crate::record::{CacheState, Case, Level};

    #[test]
    fn what_came_from_the_origin_is_neither_called_warm_nor_a_headline() {
        let mut warm = step(case(1), 2.0, 100.0);
        warm.outcome.origin_bytes = Some(0);
        let mut partial = step(Case { state: CacheState::Partial, ..case(2) }, 9.0, 100.0);
        partial.outcome.origin_bytes = Some(3 << 30);
        let found = findings(&record(&["forebay"], vec![warm, partial]));
        let of = |rule: &str| found.iter().filter(|finding| finding.rule == rule).collect::<Vec<_>>();
        let [headline] = of("headline")[..] else { panic!("{found:?}") };
        assert!(headline.text.starts_with("Highest warm sequential: 2.0 GB/s"), "{}", headline.text);
        let [bad, good] = of("warm")[..] else { panic!("{found:?}") };
        assert_eq!((bad.level, good.level), (Level::Warn, Level::Good));
        assert!(bad.text.contains("partial") && bad.text.contains("3.0 GiB came from the origin"), "{}", bad.text);
        assert!(good.text.contains("of 1 warm steps 1 were counted"), "{}", good.text);
    }
}
