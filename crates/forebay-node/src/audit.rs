//! The audit log (`security.audit.*`): who did what to which path, as lines of JSON in a file that is rotated. A process has one, for
//! all of its parts: its worker over TCP and over shared memory, and its coordinator.
//!
//! What serves a connection makes the line ([`line`]) and queues it; one thread writes what is queued ([`file`]). No request
//! waits for a disk: where the queue is full, or the disk, events are lost, and are counted. The next line that is written
//! says how many were.
//!
//! Whoever proves nothing cannot push what others did out of the log by being refused again and again: of refusals without an
//! identity or a token, only some in each second are written, and the others are counted as lost, too.

mod file;
mod line;
mod ration;

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use forebay_config::Config;
use forebay_identity::{Audit, AuditEvent, AuditOutcome, Auditing};
use forebay_locks::Mutex;
use forebay_types::AuditEvents;
use tokio::sync::{mpsc, oneshot};
use tracing::{error, warn};

use crate::error::{Exit, Fault};
use file::AuditFile;
#[cfg(feature = "fuzzing")]
pub(crate) use line::of_event;
use ration::Ration;

/// Lines that wait to be written, at most: with the longest paths that there are, some 50 MiB.
const QUEUE: usize = 2048;
/// Bytes of lines that are written at once, but for the last line.
const BATCH: usize = 64 << 10;
/// How long the log of the process is silent about an audit log that cannot be written, after it has told of it.
const SILENCE: Duration = Duration::from_secs(10);
/// How long what is queued may take to be written at the end.
const CLOSE_WITHIN: Duration = Duration::from_secs(20);

/// The audit log of a process. Dropping it ends its thread, too, which is not waited for then.
pub(crate) struct AuditLog {
    events: AuditEvents,
    /// The only one that keeps the queue open: those who record have a weak one.
    queue: mpsc::Sender<Vec<u8>>,
    recorder: Arc<Recorder>,
    writer: JoinHandle<()>,
    /// Ends with the writer.
    written: oneshot::Receiver<()>,
}

/// What servers hand events to.
#[derive(Debug)]
struct Recorder {
    queue: mpsc::WeakSender<Vec<u8>>,
    /// Of refusals of those who proved nothing.
    ration: Mutex<Ration>,
    lost: Arc<AtomicU64>,
}

/// What a thread of its own writes.
struct Writer {
    queue: mpsc::Receiver<Vec<u8>>,
    file: AuditFile,
    lost: Arc<AtomicU64>,
    /// How many of those that were lost the file tells of.
    told_lost: u64,
    complained_at: Option<Instant>,
}

impl AuditLog {
    /// Opens the file that the configuration names, if it names one.
    ///
    /// # Errors
    /// When it cannot be had: what should record what is done to it does not start without.
    pub(crate) fn open(config: &Config) -> anyhow::Result<Option<Self>> {
        let Some(path) = &config.security_audit_file else { return Ok(None) };
        let unusable = |error: &dyn Display| {
            let next = "name a file in a directory that this user may write to, another one for each worker and each \
                        coordinator of a host";
            Fault::new(Exit::Usage, format!("security.audit.file: {error:#}"), next)
        };
        let max_size = config.security_audit_max_size.as_u64();
        let file = AuditFile::open(path, max_size, config.security_audit_keep).map_err(|error| unusable(&error))?;
        let log = Self::start(file, config.security_audit_events, QUEUE);
        Ok(Some(log.map_err(|error| unusable(&format!("cannot start a thread for it: {error}")))?))
    }

    fn start(file: AuditFile, events: AuditEvents, length: usize) -> std::io::Result<Self> {
        let (queue, queued) = mpsc::channel(length);
        let (ends, written) = oneshot::channel();
        let lost = Arc::new(AtomicU64::new(0));
        let recorder =
            Arc::new(Recorder { queue: queue.downgrade(), ration: Mutex::default(), lost: Arc::clone(&lost) });
        let writer = Writer { queue: queued, file, lost, told_lost: 0, complained_at: None };
        let thread = std::thread::Builder::new().name("forebay-audit".to_owned());
        let writer = thread.spawn(move || {
            writer.run();
            // Who waits for this hears of it also when its time has passed.
            let _ = ends.send(());
        })?;
        Ok(Self { events, queue, recorder, writer, written })
    }

    /// What a server is to record here.
    pub(crate) fn auditing(&self) -> Auditing {
        Auditing { events: self.events, audit: Arc::clone(&self.recorder) as Arc<dyn Audit> }
    }

    /// How many events were lost, as a function that may outlive the log.
    pub(crate) fn lost_count(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let lost = Arc::clone(&self.recorder.lost);
        move || lost.load(Ordering::Relaxed)
    }

    /// Writes what is queued, as far as there is time, and ends.
    pub(crate) async fn close(self) {
        let Self { queue, writer, written, .. } = self;
        drop(queue);
        match tokio::time::timeout(CLOSE_WITHIN, written).await {
            // It has nothing left to do. That it panicked was logged.
            Ok(_) => drop(writer.join()),
            Err(_) => warn!("the disk of the audit log is too slow to write all that is queued: the rest is lost"),
        }
    }
}

impl Audit for Recorder {
    fn record(&self, event: &AuditEvent<'_>) {
        if !(self.is_within_ration(event) && self.queue(line::of_event(event, SystemTime::now()))) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Recorder {
    fn is_within_ration(&self, event: &AuditEvent<'_>) -> bool {
        let is_unknown = event.identity.is_none() && event.token.is_none();
        let is_rationed = is_unknown && matches!(event.outcome, AuditOutcome::Refused(_));
        !is_rationed || self.ration.lock().take(Instant::now())
    }

    /// Whether there was room for `line`.
    fn queue(&self, line: Vec<u8>) -> bool {
        self.queue.upgrade().is_some_and(|queue| queue.try_send(line).is_ok())
    }
}

impl Writer {
    fn run(mut self) {
        while let Some(first) = self.queue.blocking_recv() {
            let (mut batch, mut events) = (first, 1);
            while batch.len() < BATCH
                && let Ok(line) = self.queue.try_recv()
            {
                batch.extend_from_slice(&line);
                events += 1;
            }
            self.write(batch, events);
        }
        // What was lost since.
        self.write(Vec::new(), 0);
        if let Err(error) = self.file.sync() {
            self.complain(&error);
        }
    }

    /// Writes `lines`, which are those of so many events.
    fn write(&mut self, lines: Vec<u8>, events: u64) {
        let lost = self.lost.load(Ordering::Relaxed);
        let lines = match lost - self.told_lost {
            0 if lines.is_empty() => return,
            0 => lines,
            untold => [line::of_lost(untold, SystemTime::now()), lines].concat(),
        };
        // A file that grows on is better than one that lacks what was done.
        if let Err(error) = self.file.make_room(lines.len()) {
            self.complain(&format_args!("cannot begin a new file: {error:#}"));
        }
        match self.file.append(&lines) {
            Ok(()) => self.told_lost = lost,
            Err(error) => {
                self.lost.fetch_add(events, Ordering::Relaxed);
                self.complain(&error);
            }
        }
    }

    fn complain(&mut self, error: &dyn Display) {
        if self.complained_at.is_some_and(|at| at.elapsed() < SILENCE) {
            return;
        }
        self.complained_at = Some(Instant::now());
        let lost = self.lost.load(Ordering::Relaxed);
        error!(path = %self.file.path().display(), lost, %error, "cannot write the audit log as it should be");
    }
}

#[cfg(test)]
mod tests;
