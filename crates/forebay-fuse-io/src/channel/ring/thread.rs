//! The loop of a ring thread: it serves what comes, gives back what is answered, and sleeps in between.
//!
//! It alone submits to its ring: the kernel runs what a ring is told in the name of the thread that told it. Answers of
//! other threads reach it as bits of [`super::ready::Ready`]. What one turn of the loop answers goes to the kernel with
//! one system call, except when many bytes or many requests wait for that call: the program that asked first would wait
//! for the last answer. A single answer goes with the call that waits for the next request. After several there is
//! mostly more to do than to wait (ADR 0014).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_locks::heartbeat::{Pulse, beat};
use tracing::error;

use super::counters::Counters;
use super::entry::Entries;
use super::queue::{Machine, Step};
use super::submit::{Completion, Submit};
use crate::channel::device::contained;
use crate::reply::{Dispatch, Request};

/// Answers of so many bytes go to the kernel at once.
const FLUSH_BYTES: usize = 128 << 10;
/// And so many answers.
const FLUSH_ENTRIES: u32 = 16;
/// From so many answers on, they are handed over without waiting, and the next requests looked for.
const FLUSH_FROM: u32 = 2;
/// How often to look whether a lent payload is back: it happens only after a deadline or an error.
const LOOK_AT_LENT: Duration = Duration::from_millis(10);

/// How long the kernel may take to give all entries back after the end of the mount.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Only one thread counts, so a load and a store will do.
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// One ring thread.
pub(crate) struct RingThread<S> {
    pub(crate) submit: S,
    pub(crate) entries: Arc<Entries>,
    pub(crate) machine: Machine,
    pub(crate) counters: Arc<Counters>,
    /// The kernel took other rings not: this one will never serve, and nothing is given back.
    pub(crate) is_given_up: Arc<AtomicBool>,
}

impl<S: Submit> RingThread<S> {
    /// Registers all entries.
    ///
    /// # Errors
    /// When any queue is left without an entry.
    pub(crate) fn register(&mut self, device: &Arc<OwnedFd>) -> io::Result<()> {
        self.submit.begin(device, &self.entries)?;
        self.push()?;
        self.submit.flush()
    }

    /// Serves until the mount has ended.
    ///
    /// # Errors
    /// When the thread cannot go on serving.
    pub(crate) fn serve<D: Dispatch>(&mut self, dispatch: &D) -> io::Result<()> {
        let mut ends_by = None;
        let pulse = Pulse::of_this_thread();
        loop {
            pulse.begin();
            let answered = self.complete(dispatch)?;
            let (machine, entries) = (&mut self.machine, &self.entries);
            entries.ready().drain(|answered| match answered {
                Some(entry) => machine.on_answered(entry, entries.is_lent(entry)),
                None => machine.on_end(),
            });
            machine.look_at_lent(|entry| entries.is_lent(entry));
            self.push()?;
            if self.machine.is_over() || self.is_given_up.load(Ordering::Acquire) {
                return Ok(());
            }
            let mut within = self.machine.has_lent().then_some(LOOK_AT_LENT);
            if self.machine.has_ended() {
                let left = ends_by.get_or_insert_with(|| Instant::now() + ENDS_WITHIN).duration_since(Instant::now());
                if left.is_zero() {
                    error!(entries = self.machine.with_kernel(), "the kernel has not given back all entries of a ring");
                    return Ok(());
                }
                within = Some(left);
            }
            count(&self.counters.submits);
            if answered >= FLUSH_FROM {
                self.submit.flush()?;
            } else if self.entries.ready().fall_asleep() {
                pulse.end();
                let woken = self.submit.wait(within);
                self.entries.ready().wake_up();
                woken?;
            } else {
                self.submit.flush()?;
            }
        }
    }

    /// Whether the kernel has given every entry back: then its memory may be freed.
    pub(crate) fn is_clean(&self) -> bool {
        self.machine.with_kernel() == 0
    }

    /// Takes what the kernel has completed, after it was asked to register entries: an error when any queue has none left. How many
    /// answers are to be handed over.
    pub(crate) fn complete<D: Dispatch>(&mut self, dispatch: &D) -> io::Result<u32> {
        let (mut bytes, mut answers) = (0, 0);
        let (mut seen, mut lost) = (None, None);
        while let Some(completion) = self.submit.completion() {
            let Completion::Entry(entry, result) = completion else {
                count(&self.counters.bells);
                continue;
            };
            match self.machine.on_completion(entry, result) {
                Step::Serve => {
                    self.take(entry, *seen.get_or_insert_with(Instant::now), dispatch);
                    if self.entries.is_answered(entry) {
                        bytes += self.entries.answer_length(entry);
                        answers += 1;
                        self.machine.on_answered(entry, self.entries.is_lent(entry));
                    } else {
                        count(&self.counters.kept);
                    }
                    if self.machine.is_starved(entry) {
                        count(&self.counters.starved);
                    }
                }
                Step::Again | Step::Ended => {}
                Step::Lost(number) => {
                    let error = io::Error::from_raw_os_error(number);
                    error!(%error, queue = self.entries.qid(entry), "the kernel does not take an entry of a ring back");
                }
                // What else the kernel has given back is noted all the same: that memory is ours again.
                Step::QueueLost(number) => lost = lost.or(Some(number)),
            }
            if bytes >= FLUSH_BYTES || answers >= FLUSH_ENTRIES {
                (bytes, answers, seen) = (0, 0, None);
                self.push()?;
                count(&self.counters.submits);
                self.submit.flush()?;
            }
        }
        lost.map_or(Ok(answers), |number| Err(io::Error::from_raw_os_error(number)))
    }

    /// Serves the request in `entry`, which was `seen` there then.
    fn take<D: Dispatch>(&mut self, entry: u32, seen: Instant, dispatch: &D) {
        count(&self.counters.requests);
        let Some(request) = Request::from_ring(self.entries.take(entry), seen) else {
            count(&self.counters.malformed);
            error!(queue = self.entries.qid(entry), "the kernel put what is no request into a ring");
            return;
        };
        // It may go on for long from one request to the next.
        beat();
        contained(request.header().opcode, || dispatch.dispatch(request));
    }

    /// Queues what is to be submitted.
    fn push(&mut self) -> io::Result<()> {
        while let Some((entry, command)) = self.machine.next() {
            self.entries.give(entry);
            self.submit.command(entry, command)?;
        }
        Ok(())
    }
}
