//! What the processes of a measurement used of the processors.

use forebay_benchmark::read::processor::{Used, used};

use super::figures::Figures;
use super::site::{Mount, Site};

/// A worker that is busy may take its time to answer; one that does not after so many tries has not.
const TRIES: usize = 3;

/// Whose time is taken.
pub(super) struct Meter<'a> {
    site: &'a Site,
    mounts: &'a [Mount],
    read_before: bool,
}

/// What they had used at some moment.
pub(super) struct Reading {
    /// This process, which reads, and the mounts.
    clients: Vec<Used>,
    worker: Worker,
}

enum Worker {
    /// One on this machine.
    Here(Used),
    /// Seconds that those elsewhere say they used, if they say it.
    Elsewhere(Option<Figures>),
    /// None is measured: there are no mounts.
    None,
}

impl<'a> Meter<'a> {
    /// Of this process, `mounts`, and, unless there are none, the site's worker.
    pub(super) fn new(site: &'a Site, mounts: &'a [Mount]) -> Self {
        Self { site, mounts, read_before: false }
    }

    /// Now. Asking workers elsewhere takes a while, so they are asked first before a measurement and last after it.
    pub(super) fn read(&mut self) -> Reading {
        let clients = || {
            let pids = std::iter::once(std::process::id()).chain(self.mounts.iter().map(Mount::pid));
            pids.map(used).collect()
        };
        let worker = || match (self.mounts.is_empty(), self.site.worker_pid()) {
            (true, _) => Worker::None,
            (false, Some(pid)) => Worker::Here(used(pid)),
            (false, None) => Worker::Elsewhere((0..TRIES).find_map(|_| self.site.workers_seconds())),
        };
        let reading = if self.read_before {
            let clients = clients();
            Reading { clients, worker: worker() }
        } else {
            let worker = worker();
            Reading { clients: clients(), worker }
        };
        self.read_before = true;
        reading
    }
}

impl Reading {
    /// Percent × seconds of clients and worker from then to now; no number where the workers have not said it at both times.
    pub(super) fn until(&self, now: &Self) -> (f64, f64) {
        let clients: f64 = self.clients.iter().zip(&now.clients).map(|(then, now)| then.until(*now)).sum();
        let worker = match (&self.worker, &now.worker) {
            (Worker::Here(then), Worker::Here(now)) => then.until(*now),
            (Worker::None, Worker::None) => 0.0,
            (Worker::Elsewhere(Some(then)), Worker::Elsewhere(Some(now))) => now.since(then).unwrap_or(f64::NAN),
            _ => f64::NAN,
        };
        (clients * 100.0, worker * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(workers: &[(&str, f64)]) -> Option<Figures> {
        Some(Figures(workers.iter().map(|(name, seconds)| ((*name).to_owned(), *seconds)).collect()))
    }

    #[test]
    fn workers_that_do_not_say_what_they_used_at_both_times_have_used_nobody_knows_what() {
        let used = |then, now| {
            let reading = |figures| Reading { clients: Vec::new(), worker: Worker::Elsewhere(figures) };
            reading(then).until(&reading(now)).1
        };
        let both = || seconds(&[("a", 1000.0), ("b", 7.0)]);
        assert_eq!(used(both(), seconds(&[("a", 1001.0), ("b", 7.5)])), 150.0);
        // The first sample failed; one worker is missing, or has come; one has begun anew.
        assert!(used(None, both()).is_nan() && used(both(), None).is_nan());
        assert!(used(seconds(&[("b", 7.0)]), both()).is_nan());
        assert!(used(both(), seconds(&[("a", 1001.0), ("c", 9.0)])).is_nan());
        assert!(used(both(), seconds(&[("a", 1001.0), ("b", 0.1)])).is_nan());
    }
}
