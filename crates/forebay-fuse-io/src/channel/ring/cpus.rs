//! Which thread serves which queue.
//!
//! The kernel has a queue for every processor that it may ever see, and puts a request into that of the processor it was made on.
//! It sends nothing before each of them has an entry. So each processor that we may run on gets a thread that stays there and
//! serves its queue with many entries: the request is taken where it was made, its bytes still in that processor's caches. The
//! queues of all others (offline, or not ours to run on) are shared among these threads, with a few entries each.

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Entries of the queue of a processor on which no thread of ours may run. Programs may run there all the same, and some of what
/// they ask keeps its entry for long: what is written while the staging directory is full, what is read of an access log.
pub(crate) const FOREIGN_DEPTH: u32 = 16;
/// The same where memory is short, and the fewest that any queue is given for want of it.
pub(crate) const MIN_DEPTH: u32 = 4;

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// What one thread does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ThreadPlan {
    /// Where it stays; `None`: anywhere.
    pub(crate) cpu: Option<u16>,
    /// Which queues it serves, with how many entries each.
    pub(crate) queues: Vec<(u16, u32)>,
}

impl ThreadPlan {
    /// Entries of all its queues.
    pub(crate) fn entries(&self) -> usize {
        self.queues.iter().map(|(_, depth)| *depth as usize).sum()
    }
}

/// The processors of this machine, as far as they matter here.
#[derive(Clone, Debug)]
pub(crate) struct Cpus {
    /// How many queues the kernel has.
    pub(crate) queues: u16,
    /// Those that are there and that we may run on.
    pub(crate) ours: Vec<u16>,
}

impl Cpus {
    /// Asks the kernel.
    ///
    /// # Errors
    /// When it does not say how many there may be.
    pub(crate) fn of_this_machine() -> io::Result<Self> {
        let unreadable = |path: &str| io::Error::other(format!("{path} makes no sense"));
        let possible = parse_list(&fs::read_to_string(POSSIBLE)?).ok_or_else(|| unreadable(POSSIBLE))?;
        let online = fs::read_to_string(ONLINE).ok().and_then(|list| parse_list(&list)).unwrap_or_default();
        let allowed = sched_getaffinity(None)?;
        let ours = online.into_iter().filter(|cpu| allowed.is_set(usize::from(*cpu))).collect();
        Ok(Self { queues: u16::try_from(possible.len()).map_err(|_| unreadable(POSSIBLE))?, ours })
    }
}

/// Keeps this thread on `cpu`.
///
/// # Errors
/// When it may not run there.
pub(crate) fn stay_on(cpu: u16) -> io::Result<()> {
    let mut set = CpuSet::new();
    if usize::from(cpu) >= CpuSet::MAX_CPU {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    set.set(usize::from(cpu));
    Ok(sched_setaffinity(None, &set)?)
}

/// Shares queues `0..cpus.queues` among at most `threads` threads. Every queue is served, by one thread.
///
/// `depth` entries for the queue of each processor that is ours, `foreign` at most for any other.
pub(crate) fn share_queues(cpus: &Cpus, threads: usize, depth: u32, foreign: u32) -> Vec<ThreadPlan> {
    // The kernel counts queues, not processors: one whose number is beyond them uses queue 0.
    let ours: Vec<u16> = cpus.ours.iter().copied().filter(|cpu| *cpu < cpus.queues).collect();
    let mut plans: Vec<ThreadPlan> = ours
        .iter()
        .take(threads.max(1))
        .map(|cpu| ThreadPlan { cpu: Some(*cpu), queues: vec![(*cpu, depth)] })
        .collect();
    if plans.is_empty() {
        plans.push(ThreadPlan { cpu: None, queues: Vec::new() });
    } else if plans.len() < ours.len() {
        // One that serves several processors is better off where none of them is busy.
        plans.iter_mut().for_each(|plan| plan.cpu = None);
    }
    let shared = (0..cpus.queues).filter(|queue| !ours.iter().take(threads.max(1)).any(|cpu| cpu == queue));
    for queue in shared {
        let depth = if ours.contains(&queue) { depth } else { depth.min(foreign) };
        // The one with the least to do; of those, the one whose own processor is nearest: it likely shares a node.
        let nearest = plans.iter_mut().min_by_key(|plan| {
            let own = plan.queues.first().map_or(0, |(own, _)| *own);
            (plan.queues.len(), own.abs_diff(queue))
        });
        if let Some(plan) = nearest {
            plan.queues.push((queue, depth));
        }
    }
    plans
}

/// Numbers as in `0-3,8,10-11`.
fn parse_list(list: &str) -> Option<Vec<u16>> {
    let mut numbers = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        numbers.extend(first..=last);
    }
    (!numbers.is_empty()).then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cpus(queues: u16, ours: impl IntoIterator<Item = u16>) -> Cpus {
        Cpus { queues, ours: ours.into_iter().collect() }
    }

    fn thread(cpu: u16, queues: &[(u16, u32)]) -> ThreadPlan {
        ThreadPlan { cpu: Some(cpu), queues: queues.to_vec() }
    }

    #[test]
    fn lists_of_processors_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0-1\n"), Some(vec![0, 1]));
        assert_eq!(parse_list("0"), Some(vec![0]));
        assert_eq!(parse_list("0-2,8,10-11"), Some(vec![0, 1, 2, 8, 10, 11]));
        for nonsense in ["", "\n", "a", "1-", "-1", "1,,2", "70000", "5-3"] {
            assert_eq!(parse_list(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn each_processor_of_ours_has_a_thread_of_its_own() {
        let plans = share_queues(&cpus(2, 0..2), 64, 64, 16);
        assert_eq!(plans, [thread(0, &[(0, 64)]), thread(1, &[(1, 64)])]);
    }

    #[test]
    fn queues_of_processors_that_are_not_there_are_shared_with_few_entries() {
        let plans = share_queues(&cpus(240, 0..16), 64, 64, 4);
        assert_eq!(plans.len(), 16);
        assert!(plans.iter().all(|plan| plan.queues.len() == 15));
        assert!(plans.iter().all(|plan| plan.entries() == 64 + 14 * 4));
    }

    #[test]
    fn a_process_that_may_run_on_some_processors_serves_all_of_them() {
        let plans = share_queues(&cpus(64, 4..8), 64, 64, 16);
        assert_eq!(plans.iter().map(|plan| plan.cpu).collect::<Vec<_>>(), [Some(4), Some(5), Some(6), Some(7)]);
        assert!(plans.iter().all(|plan| plan.queues.len() == 16));
    }

    #[test]
    fn one_thread_serves_all_queues_and_stays_nowhere() {
        let plans = share_queues(&cpus(3, 0..2), 1, 16, 4);
        assert_eq!(plans, [ThreadPlan { cpu: None, queues: vec![(0, 16), (1, 16), (2, 4)] }]);
        // Not even a processor to run on is known.
        assert_eq!(share_queues(&cpus(2, []), 8, 2, 16), [ThreadPlan { cpu: None, queues: vec![(0, 2), (1, 2)] }]);
    }

    #[test]
    fn a_processor_beyond_the_queues_has_none() {
        // 0-3 and 8-11 are possible: the kernel has eight queues, and those of 8 and above use the first.
        let plans = share_queues(&cpus(8, [0, 1, 2, 3, 8, 9, 10, 11]), 64, 64, 16);
        assert_eq!(plans.len(), 4);
        let mut queues: Vec<u16> = plans.iter().flat_map(|plan| plan.queues.iter().map(|(queue, _)| *queue)).collect();
        queues.sort_unstable();
        assert_eq!(queues, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn this_machine_can_be_asked() {
        let cpus = Cpus::of_this_machine().unwrap();
        assert!(cpus.queues > 0);
        assert!(!cpus.ours.is_empty());
        let here = cpus.ours[0];
        std::thread::spawn(move || stay_on(here).unwrap()).join().unwrap();
        assert!(stay_on(u16::MAX).is_err());
    }

    proptest! {
        #[test]
        fn every_queue_is_served_by_exactly_one_thread(
            queues in 1u16..300,
            ours in prop::collection::btree_set(0u16..320, 0..40),
            threads in 0usize..50,
            depth in 1u32..100,
        ) {
            let plans = share_queues(&cpus(queues, ours), threads, depth, 16);
            prop_assert!(plans.len() <= threads.max(1));
            let mut served: Vec<u16> = plans.iter().flat_map(|plan| &plan.queues).map(|(queue, _)| *queue).collect();
            served.sort_unstable();
            prop_assert_eq!(served, (0..queues).collect::<Vec<_>>());
            prop_assert!(plans.iter().flat_map(|plan| &plan.queues).all(|(_, entries)| (1..=depth).contains(entries)));
        }
    }
}
