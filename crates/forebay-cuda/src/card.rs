//! A device, on its thread: what calls CUDA for it.
//!
//! CUDA keeps its current context for each thread. So all calls that want one are made on a thread of ours, and never on one of the
//! program's, whose context stays what it was.
//!
//! All copies are on one stream, so they end in the order in which they began. The thread asks whether the first one has ended, often at
//! first ([`poll_after`]); it sleeps while there is nothing to ask for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::commands::{Command, CopyTask, Ended, Source};
use crate::error::Error;
use crate::handles::{Access, Device, Event, Stream};
use crate::registered::{Part, Registered};
use crate::staging::{Pinned, Ring, StagingBuffer};
use crate::traits::Cuda;

/// How often it is looked whether a worker has gone whose memory is registered.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// A device that is in use.
#[derive(Debug)]
pub(crate) struct Card {
    cuda: Arc<dyn Cuda>,
    device: Device,
    stream: Stream,
    registered: Registered,
    ring: Arc<Ring>,
    /// The buffers of the ring, which are registered.
    pinned: Vec<Arc<Pinned>>,
    /// Events that are used again.
    events: Vec<Event>,
    under_way: VecDeque<UnderWay>,
}

/// A copy whose end is waited for.
#[derive(Debug)]
struct UnderWay {
    task: CopyTask,
    event: Event,
    since: Instant,
    /// Of some of its parts: they were not begun, but others were.
    failure: Option<Error>,
}

/// What the thread does next.
enum Next {
    Command(Command),
    Look,
    End,
}

/// How long to wait before it is asked again whether a copy has ended: an eighth of how long it has taken. 4 MiB take 160 µs over PCIe 4.
fn poll_after(taken: Duration) -> Duration {
    (taken / 8).clamp(Duration::from_micros(20), Duration::from_millis(1))
}

impl Card {
    /// Begins to use `device` on this thread.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn open(cuda: Arc<dyn Cuda>, device: Device, ring: Arc<Ring>) -> Result<Self, Error> {
        let context = cuda.retain(device)?;
        // SAFETY: it was retained just now.
        let current = unsafe { cuda.make_current(context) };
        let made = current.and_then(|()| Ok((cuda.registers_read_only(device)?, cuda.stream()?)));
        match made {
            Ok((takes_read_only, stream)) => {
                if !takes_read_only {
                    tracing::info!(%device, "memory of workers is not registered: this driver takes none that is mapped for reading only");
                }
                Ok(Self {
                    cuda,
                    device,
                    stream,
                    registered: Registered::new(takes_read_only),
                    ring,
                    pinned: Vec::new(),
                    events: Vec::new(),
                    under_way: VecDeque::new(),
                })
            }
            Err(error) => {
                // SAFETY: it was retained once, and nothing was made in it.
                unsafe { cuda.release(device) };
                Err(error)
            }
        }
    }

    /// Whether it may copy from the memory of workers.
    pub(crate) fn takes_windows(&self) -> bool {
        self.registered.takes_windows()
    }

    /// Carries out commands until nobody can give any, and all copies have ended.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) {
        loop {
            match self.next(commands) {
                Next::Command(command) => self.carry_out(command),
                Next::Look => {}
                Next::End => break,
            }
            self.look();
        }
        while let Some(first) = self.under_way.front() {
            std::thread::sleep(poll_after(first.since.elapsed()));
            self.look();
        }
        self.end();
    }

    fn next(&mut self, commands: &Receiver<Command>) -> Next {
        let wait = match self.under_way.front() {
            Some(first) => poll_after(first.since.elapsed()),
            None if self.registered.is_empty() => return commands.recv().map_or(Next::End, Next::Command),
            None => SWEEP_EVERY,
        };
        match commands.recv_timeout(wait) {
            Ok(command) => Next::Command(command),
            Err(RecvTimeoutError::Disconnected) => Next::End,
            Err(RecvTimeoutError::Timeout) => {
                if self.under_way.is_empty() {
                    self.registered.sweep(&*self.cuda);
                }
                Next::Look
            }
        }
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Pin(answer) => {
                let _ = answer.send(self.pin());
            }
            Command::Follow(stream, answer) => {
                let _ = answer.send(self.follow(stream));
            }
            Command::Copy(task) => self.begin(task),
        }
    }

    fn pin(&mut self) -> Result<StagingBuffer, Error> {
        let memory = Arc::new(Pinned::new()?);
        // SAFETY: it is held in `pinned` until its registration has ended.
        unsafe { self.cuda.register(memory.base(), crate::staging::STAGING_SIZE, Access::ReadWrite)? };
        self.pinned.push(Arc::clone(&memory));
        Ok(self.ring.buffer(memory))
    }

    fn follow(&mut self, others: Stream) -> Result<(), Error> {
        // SAFETY: the caller says that it is one of this context.
        if unsafe { self.cuda.is_captured(others)? } {
            // Ours would be captured with it: copies would not be carried out now, but whenever the graph is, from memory of others.
            let reason = "it is captured for a graph; read before the capture, or after it";
            return Err(Error::Stream { stream: others.0, reason });
        }
        let event = self.event()?;
        // SAFETY: the event and our stream are alive. The other one is the caller's, who says that it is one of this context.
        let followed = unsafe { self.cuda.record(event, others).and_then(|()| self.cuda.follow(self.stream, event)) };
        // Once it is waited for, it may be recorded anew: the stream waits for what it was.
        self.events.push(event);
        followed
    }

    fn begin(&mut self, mut task: CopyTask) {
        let parts = match task.source {
            Source::Staged(ref buffer) => vec![buffer.filled()],
            Source::Shared(ref mut spans) => match self.registered.parts(&*self.cuda, spans) {
                Some(parts) => parts,
                None => {
                    let spans = std::mem::take(spans);
                    return task.end(Ok(Ended::NotRegistered(spans)));
                }
            },
        };
        let event = match self.event() {
            Ok(event) => event,
            Err(error) => return task.end(Err(error)),
        };
        let (begun, failure) = self.begin_parts(&task, &parts);
        if begun == 0 {
            self.events.push(event);
            let ended = failure.map_or(Ok(Ended::Copied), Err);
            return task.end(ended);
        }
        // SAFETY: both are alive.
        match unsafe { self.cuda.record(event, self.stream) } {
            Ok(()) => self.under_way.push_back(UnderWay { task, event, since: Instant::now(), failure }),
            Err(error) => {
                // The context is broken. What the copy reads from stays, should the device read there all the same.
                tracing::error!(device = %self.device, %error, "the end of a copy cannot be seen: its source is kept for ever");
                let CopyTask { source, to, ticket, done } = task;
                std::mem::forget(source);
                drop((to, ticket));
                let _ = done.send(Err(error));
            }
        }
    }

    /// How many parts were begun, and why not the others.
    fn begin_parts(&self, task: &CopyTask, parts: &[Part]) -> (usize, Option<Error>) {
        let mut to = task.to;
        for (number, (from, length)) in parts.iter().enumerate() {
            // SAFETY: the task holds what it reads from until the event that is recorded next has completed, and its owner gave the memory
            // at `to` away until then.
            let begun = unsafe { self.cuda.copy(to, *from, *length, self.stream) };
            if let Err(error) = begun {
                return (number, Some(error));
            }
            to.0 += *length as u64;
        }
        (parts.len(), None)
    }

    /// Sees which copies have ended.
    fn look(&mut self) {
        while let Some(first) = self.under_way.front() {
            // SAFETY: it is alive.
            let completed = unsafe { self.cuda.has_completed(first.event) };
            if completed == Ok(false) {
                return;
            }
            let Some(UnderWay { task, event, failure, .. }) = self.under_way.pop_front() else { return };
            self.events.push(event);
            let failure = completed.err().or(failure);
            task.end(failure.map_or(Ok(Ended::Copied), Err));
        }
    }

    fn event(&mut self) -> Result<Event, Error> {
        self.events.pop().map_or_else(|| self.cuda.event(), Ok)
    }

    /// Gives back all that it has of the device. No copy is under way.
    fn end(mut self) {
        self.registered.end(&*self.cuda);
        for memory in self.pinned.drain(..) {
            // SAFETY: it was registered, and no copy reads from it.
            if let Err(error) = unsafe { self.cuda.unregister(memory.base()) } {
                tracing::warn!(%error, "memory stays pinned");
                std::mem::forget(memory);
            }
        }
        for event in self.events.drain(..) {
            // SAFETY: it is not used after this.
            unsafe { self.cuda.end_event(event) };
        }
        // SAFETY: neither is used after this: the stream is of this card, and so is the context that was retained.
        unsafe {
            self.cuda.end_stream(self.stream);
            self.cuda.release(self.device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_asked_for_often_at_first() {
        let micros = |taken| poll_after(Duration::from_micros(taken)).as_micros();
        assert_eq!([0, 160, 800, 8000, 80_000].map(micros), [20, 20, 100, 1000, 1000]);
    }
}
