//! Which runs of fio there are, and in which order.
//!
//! The state of the cache changes least: all that is warm comes first, layout by layout, so that each layout is loaded once. (What
//! is read cold is in the cache afterwards, so every cold step needs the cache emptied, in whatever order.) Within a sweep the
//! jobs ascend: that is what [the knee](mod@super::knee) follows, and why a sweep can end early.
//!
//! Jobs are those that run: the distinct pattern deals as many to each file ([`job::running`]), so that other numbers that were asked
//! for come to the same.
//!
//! Rounds and targets are innermost. Ratios of two targets are taken from runs that follow one another, on a machine whose
//! neighbours and temperature were the same; and every other round goes through the targets backwards, so that whatever the first
//! run does to the second does not always do it to the same one.

use crate::record::{Case, Layout, Pattern};

use super::job;
use super::settings::Settings;

/// A run of fio that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// What.
    pub case: Case,
    /// Which repetition, from 0.
    pub round: u32,
}

/// All runs, in order. `clients` and `workers` are what [`Case`] says of them.
#[must_use]
pub fn plan(settings: &Settings, targets: &[String], clients: u32, workers: u32) -> Vec<Planned> {
    let mut planned = Vec::new();
    for sweep in sweeps(settings, clients, workers) {
        for jobs in running_jobs(settings, &sweep) {
            for round in 0..settings.repeat {
                let mut order: Vec<&String> = targets.iter().collect();
                if round % 2 == 1 {
                    order.reverse();
                }
                planned.extend(
                    order
                        .into_iter()
                        .map(|target| Planned { case: Case { target: target.clone(), jobs, ..sweep.clone() }, round }),
                );
            }
        }
    }
    planned
}

/// The numbers of jobs of a sweep, as they run: those that come to the same are one.
fn running_jobs(settings: &Settings, sweep: &Case) -> Vec<u32> {
    let running = |jobs: &u32| job::running(&Case { jobs: *jobs, ..sweep.clone() }, &settings.sizes);
    let mut all: Vec<u32> = settings.jobs.iter().map(running).collect();
    all.dedup();
    all
}

/// The sweeps: cases without a target and without jobs.
fn sweeps(settings: &Settings, clients: u32, workers: u32) -> Vec<Case> {
    let mut sweeps = Vec::new();
    for state in &settings.states {
        for layout in &settings.layouts {
            for access in &settings.accesses {
                for block in settings.blocks_of(*layout, *access) {
                    for pattern in patterns(settings, *layout) {
                        sweeps.extend(settings.depths_of(pattern).iter().map(|depth| Case {
                            target: String::new(),
                            state: *state,
                            layout: *layout,
                            pattern,
                            access: *access,
                            block_bytes: *block,
                            jobs: 0,
                            depth: *depth,
                            clients,
                            workers,
                        }));
                    }
                }
            }
        }
    }
    sweeps
}

/// One file is shared by all jobs that read it: there is nothing to tell apart.
fn patterns(settings: &Settings, layout: Layout) -> Vec<Pattern> {
    match layout {
        Layout::Single => vec![Pattern::Shared],
        Layout::Multiple | Layout::Small => settings.patterns.clone(),
    }
}

/// Whether two cases are of one sweep: they differ in the number of jobs at most.
#[must_use]
pub fn same_sweep(one: &Case, other: &Case) -> bool {
    let differs = [
        one.target != other.target,
        one.state != other.state,
        one.layout != other.layout,
        one.pattern != other.pattern,
        one.access != other.access,
        one.block_bytes != other.block_bytes,
        one.depth != other.depth,
        one.clients != other.clients,
        one.workers != other.workers,
    ];
    differs.iter().all(|differs| !differs)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::posix::Sizes;
    use crate::record::{Access, CacheState};

    fn targets(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_full_plan_warms_each_layout_once_and_then_goes_cold() {
        let planned = plan(&Settings::full(), &targets(&["forebay"]), 1, 3);
        // One file has one pattern, the other layouts two; in two orders and two states, ten numbers of jobs each, three times.
        assert_eq!(planned.len(), (1 + 2 + 2) * 2 * 2 * 10 * 3);
        let states: Vec<_> = planned.iter().map(|planned| (planned.case.state, planned.case.layout)).collect();
        let changes = states.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!(changes, 5);
        assert_eq!(states[0], (CacheState::Warm, Layout::Single));
        assert!(planned.iter().all(|planned| (planned.case.clients, planned.case.workers) == (1, 3)));
    }

    #[test]
    fn one_file_is_read_by_all_with_one_operation_each() {
        let settings =
            Settings { layouts: vec![Layout::Single], patterns: vec![Pattern::Distinct], ..Settings::full() };
        let planned = plan(&settings, &targets(&["forebay"]), 1, 0);
        assert!(planned.iter().all(|planned| (planned.case.pattern, planned.case.depth) == (Pattern::Shared, 1)));
        assert_eq!(planned[0].case.block_bytes, 1 << 20);
    }

    #[test]
    fn rounds_and_targets_are_innermost_and_every_other_round_goes_backwards() {
        let settings = Settings {
            states: vec![CacheState::Warm],
            layouts: vec![Layout::Single],
            accesses: vec![Access::Random],
            jobs: vec![1, 2],
            repeat: 3,
            ..Settings::full()
        };
        let planned = plan(&settings, &targets(&["a", "b"]), 1, 1);
        let order: Vec<_> =
            planned.iter().map(|planned| (planned.case.jobs, planned.round, planned.case.target.as_str())).collect();
        let one = [(1, 0, "a"), (1, 0, "b"), (1, 1, "b"), (1, 1, "a"), (1, 2, "a"), (1, 2, "b")];
        assert_eq!(order[..6], one);
        assert!(order[6..].iter().all(|(jobs, ..)| *jobs == 2));
    }

    #[test]
    fn jobs_of_the_distinct_pattern_are_those_that_run_and_none_are_run_twice() {
        let settings = Settings {
            layouts: vec![Layout::Multiple],
            accesses: vec![Access::Sequential],
            states: vec![CacheState::Warm],
            jobs: vec![1, 3, 4, 5, 7, 8],
            repeat: 1,
            ..Settings::full()
        };
        let settings = Settings { sizes: Sizes { files: 4, ..settings.sizes }, ..settings };
        let planned = plan(&settings, &targets(&["forebay"]), 1, 1);
        let jobs = |pattern| -> Vec<u32> {
            planned.iter().filter(|step| step.case.pattern == pattern).map(|step| step.case.jobs).collect()
        };
        assert_eq!(jobs(Pattern::Shared), [1, 3, 4, 5, 7, 8]);
        assert_eq!(jobs(Pattern::Distinct), [1, 3, 4, 8]);
    }

    #[test]
    fn each_size_of_blocks_and_each_depth_is_a_sweep_of_its_own() {
        let settings = Settings {
            states: vec![CacheState::Warm],
            layouts: vec![Layout::Multiple],
            accesses: vec![Access::Sequential],
            blocks: vec![256 << 10, 1 << 20],
            shared_depths: vec![1, 8],
            distinct_depths: vec![32],
            jobs: vec![1],
            repeat: 1,
            ..Settings::full()
        };
        let planned = plan(&settings, &targets(&["forebay"]), 1, 1);
        let found: Vec<_> =
            planned.iter().map(|step| (step.case.block_bytes >> 10, step.case.pattern, step.case.depth)).collect();
        let of = |block| [(block, Pattern::Shared, 1), (block, Pattern::Shared, 8), (block, Pattern::Distinct, 32)];
        assert_eq!(found, [of(256), of(1024)].concat());
    }

    #[test]
    fn sweeps_differ_in_everything_but_the_jobs() {
        let planned = plan(&Settings::full(), &targets(&["a", "b"]), 1, 0);
        let of = |wanted: &Case| planned.iter().filter(|planned| same_sweep(&planned.case, wanted)).count();
        assert!(planned.iter().all(|planned| of(&planned.case) == 10 * 3));
        let other = Case { clients: 2, ..planned[0].case.clone() };
        assert!(!same_sweep(&other, &planned[0].case));
    }

    proptest! {
        #[test]
        fn no_run_is_planned_twice_and_jobs_ascend_within_a_sweep(
            repeat in 1_u32..4,
            names in 1_usize..4,
            jobs in prop::collection::btree_set(1_u32..600, 1..6),
        ) {
            let settings = Settings { repeat, jobs: jobs.iter().copied().collect(), ..Settings::full() };
            let names: Vec<String> = (0..names).map(|name| format!("target-{name}")).collect();
            let planned = plan(&settings, &names, 2, 0);
            let all: BTreeSet<_> = planned.iter().map(|planned| (&planned.case, planned.round)).collect();
            prop_assert_eq!(all.len(), planned.len());
            for (index, later) in planned.iter().enumerate() {
                let before = planned[..index].iter().rev().find(|before| same_sweep(&before.case, &later.case));
                prop_assert!(before.is_none_or(|before| before.case.jobs <= later.case.jobs));
            }
        }
    }
}
