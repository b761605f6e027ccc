//! What is wrong, and since when: which tells whether an error is one that the caller may get.

use std::cell::RefCell;
use std::time::Duration;

use crate::kernel;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A process is killed, stopped, or starting.
    Process(usize),
    /// One machine does not reach another.
    Cut(usize, usize),
    /// An origin fails or is silent, for everyone.
    Origin(usize),
    /// A disk fails: never a reason for an error.
    Disk(usize),
    /// The cluster's state is away: never a reason for a reader's error.
    State,
    /// Connections break now and then.
    Breaks,
    /// A worker leaves the ring: never a reason for an error.
    Drain(usize),
    /// The namespace is being changed.
    Mount,
}

/// Since when, and until when.
#[derive(Clone, Copy, Debug)]
struct Record {
    number: u64,
    fault: Fault,
    until: Option<Duration>,
}

/// How often each kind of thing went wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) processes: u64,
    pub(crate) cuts: u64,
    pub(crate) origins: u64,
    pub(crate) disks: u64,
    pub(crate) state: u64,
    pub(crate) others: u64,
}

#[derive(Default)]
struct Records {
    counts: Counts,
    next: u64,
    records: Vec<Record>,
}

thread_local! {
    static RECORDS: RefCell<Records> = RefCell::default();
}

/// Something is wrong from now on; the number is for [`ends`].
pub(crate) fn begins(fault: Fault) -> u64 {
    let now = kernel::now();
    RECORDS.with_borrow_mut(|Records { next, records, counts }| {
        match fault {
            Fault::Process(_) => counts.processes += 1,
            Fault::Cut(..) => counts.cuts += 1,
            Fault::Origin(_) => counts.origins += 1,
            Fault::Disk(_) => counts.disks += 1,
            Fault::State => counts.state += 1,
            _ => counts.others += 1,
        }
        records.retain(|record| record.until.is_none_or(|until| until + Duration::from_secs(3600) > now));
        *next += 1;
        records.push(Record { number: *next, fault, until: None });
        *next
    })
}

/// It is not wrong any more.
pub(crate) fn ends(number: u64) {
    let now = kernel::now();
    RECORDS.with_borrow_mut(|Records { records, .. }| {
        if let Some(record) = records.iter_mut().find(|record| record.number == number) {
            record.until = Some(now);
        }
    });
}

/// What was wrong at any time since then.
pub(crate) fn since(since: Duration) -> Vec<Fault> {
    RECORDS.with_borrow(|Records { records, .. }| {
        records
            .iter()
            .filter(|record| record.until.is_none_or(|until| until >= since))
            .map(|record| record.fault)
            .collect()
    })
}

/// What is wrong now.
pub(crate) fn now() -> Vec<Fault> {
    RECORDS.with_borrow(|Records { records, .. }| {
        records.iter().filter(|record| record.until.is_none()).map(|record| record.fault).collect()
    })
}

/// How often each kind of thing went wrong so far.
pub(crate) fn counts() -> Counts {
    RECORDS.with_borrow(|records| records.counts)
}
