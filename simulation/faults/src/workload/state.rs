//! What was done, what is under way, and what each mount was told.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use forebay_client::OpenFile;

use crate::kernel::{self, Process};

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) operations: u64,
    pub(crate) reads: u64,
    pub(crate) bytes: u64,
    pub(crate) stats: u64,
    pub(crate) lists: u64,
    pub(crate) changes: u64,
    pub(crate) replaced: u64,
    pub(crate) stale: u64,
    pub(crate) excused: u64,
}

#[derive(Default)]
pub(super) struct WorkloadState {
    pub(super) counts: Counts,
    pub(super) next: u64,
    /// Changes that were acknowledged to a mount, the latest of each name.
    pub(super) own: HashMap<(Process, usize, Vec<u8>), VecDeque<Own>>,
    pub(super) handles: BTreeMap<Process, Vec<Arc<OpenFile>>>,
    pub(super) under_way: BTreeMap<u64, (Process, Duration)>,
    /// Mounts to which a worker has answered: before that, none is waited for.
    pub(super) answered: BTreeSet<Process>,
    /// From when on nothing may fail, whatever it needs.
    pub(super) strict_since: Option<Duration>,
}

thread_local! {
    static STATE: RefCell<WorkloadState> = RefCell::default();
}

/// A change of a mount's own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub(super) took_effect: Duration,
    pub(super) acknowledged: Duration,
}

/// What is known of all mounts.
pub(super) fn state<T>(with: impl FnOnce(&mut WorkloadState) -> T) -> T {
    STATE.with_borrow_mut(with)
}

/// What was done so far.
pub(crate) fn counts() -> Counts {
    state(|state| state.counts)
}

/// Since when the operation has been under way that has been for longest, of a mount that lives.
pub(crate) fn oldest() -> Option<Duration> {
    let all = state(|state| state.under_way.values().copied().collect::<Vec<_>>());
    all.into_iter().filter(|(process, _)| kernel::is_alive(*process)).map(|(_, since)| since).min()
}

/// Whether nothing that begins from now on may fail.
pub(crate) fn be_strict(strict: bool) {
    state(|state| state.strict_since = strict.then(kernel::now));
}

/// A mount's process is gone, and what it had.
pub(crate) fn gone(node: usize) {
    let handles = state(|state| {
        state.own.retain(|(process, ..), _| process.node != node);
        let gone: Vec<Process> = state.handles.keys().filter(|process| process.node == node).copied().collect();
        gone.iter().filter_map(|process| state.handles.remove(process)).collect::<Vec<_>>()
    });
    drop(handles);
}

/// An operation, for as long as it is under way.
pub(super) struct UnderWay(u64);

impl UnderWay {
    pub(super) fn begin() -> Self {
        let (process, now) = (kernel::current(), kernel::now());
        Self(state(|state| {
            let number = state.counts.operations + state.under_way.keys().next_back().copied().unwrap_or(0);
            state.under_way.insert(number, (process, now));
            number
        }))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        state(|state| state.under_way.remove(&self.0));
    }
}
