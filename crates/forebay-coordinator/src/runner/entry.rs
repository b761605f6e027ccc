//! A job as its runner lists it, with what the tasks that write it down, run it and stop it tell each other.

use std::sync::atomic::AtomicBool;

use forebay_locks::Mutex;
use forebay_state::{Revision, StateError};
use tokio::sync::{Notify, watch};

use crate::clock::{now, wall_clock};
use crate::jobs::{Job, JobRecord, JobReport, JobSpec, Limits};

/// A job, under way or ended.
pub(super) struct Entry {
    pub(super) id: String,
    pub(super) spec: JobSpec,
    pub(super) job: Mutex<Job>,
    pub(super) taken: watch::Sender<Taken>,
    /// Someone asked for its end.
    pub(super) stop: Notify,
    /// Writes go one after the other, so that the last one is of the last state. At which revision the job was written last, as far as
    /// the state store has said.
    pub(super) writing: tokio::sync::Mutex<Option<Revision>>,
    /// Its end is written down, or cannot be: nothing of it is left to be done.
    pub(super) is_settled: AtomicBool,
}

/// Whether a job is in the state store.
#[derive(Clone, Debug)]
pub(super) enum Taken {
    /// The first try is under way.
    Asked,
    /// It is.
    Written,
    /// It may be. It is written again.
    Unclear(StateError),
    /// It is not, and the job is forgotten.
    Refused(StateError),
    /// It may be: the present leader knows.
    Deposed,
}

impl Entry {
    pub(super) fn new(record: JobRecord, limits: Limits, taken: Taken) -> Self {
        Self {
            is_settled: AtomicBool::new(record.state.is_final()),
            id: record.id.clone(),
            spec: record.spec.clone(),
            job: Mutex::new(Job::new(record, limits, now())),
            taken: watch::Sender::new(taken),
            stop: Notify::new(),
            writing: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn report(&self) -> JobReport {
        self.job.lock().report(now(), wall_clock())
    }

    pub(super) fn is_ended(&self) -> bool {
        self.job.lock().is_ended()
    }

    /// Whether it has ended, or is to.
    pub(super) fn is_ending(&self) -> bool {
        let job = self.job.lock();
        job.is_ended() || job.stop_asked()
    }
}
