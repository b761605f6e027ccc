//! READ and WRITE by verbs: a queue pair of the job's own, whose completions the job's thread polls itself.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use forebay_memory::{Span, SpanMut};
use forebay_types::SECTOR_SIZE;
use forebay_verbs::{Ended, Event, EventKind, Id, Plain, Post, QueuePair, Read, Remote, wait_for_either};
use smallvec::SmallVec;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::link::traits::{Connector, Link, Operation, Patience};
use crate::memory::Buffer;
use crate::options::Kind;
use crate::plan::{CONNECT_DEADLINE, OPERATION_DEADLINE};
use crate::verbs::{Side, Thread, handshake, queue_pair};
use crate::wire::{self, Region, VerbsAnswer, VerbsGreeting, VerbsMemory};

/// Rounds without a completion after which a thread that polls looks at the clock.
const ROUNDS: u32 = 64;
/// How long a thread polls before it sleeps after all, as over UCX.
const POLL_WITHIN: Duration = Duration::from_micros(50);
/// How long it sleeps at most before it looks whether it should stop.
const NAP: Duration = Duration::from_millis(100);

/// Bytes of the seal of one sector (ADR 0035).
const SEAL: usize = 64;

/// The link.
pub(crate) struct VerbsLink {
    // Before what it is on.
    pair: QueuePair,
    thread: Thread,
    memory: VerbsMemory,
    /// Reads bring seals, too.
    seals: bool,
    server: SocketAddr,
    stop: CancellationToken,
    flying: HashMap<u64, Flying>,
    next: u64,
    done: Vec<Buffer>,
}

/// An operation, until all of its parts have ended.
struct Flying {
    left: usize,
    buffer: Parts,
}

/// What is here of its buffer.
enum Parts {
    Out(SmallVec<[Span; 2]>),
    In(SmallVec<[Option<SpanMut>; 2]>),
}

impl VerbsLink {
    /// Connects from `from` to `to`, says of which session it is, and is told of the memory there.
    pub(crate) fn connect(
        connector: &Connector,
        side: &Side,
        (from, to): (IpAddr, SocketAddr),
        kind: Kind,
    ) -> Result<Self, Error> {
        let (writes, seals) = (kind == Kind::Write, kind == Kind::Seal);
        let failed = |error: forebay_verbs::Error| Error::Connect { address: to, reason: format!("by verbs: {error}") };
        let options = queue_pair(true, seals);
        let thread = side.thread(QueuePair::entries(&options))?;
        let connecting = Connecting { thread: &thread, to, stop: &connector.stop, since: Instant::now() };
        let id = Id::new(&thread.events).map_err(failed)?;
        id.resolve_address(Some(SocketAddr::new(from, 0)), to, CONNECT_DEADLINE).map_err(failed)?;
        connecting.event(EventKind::AddressResolved)?;
        id.resolve_route(CONNECT_DEADLINE).map_err(failed)?;
        connecting.event(EventKind::RouteResolved)?;
        let mut pair = QueuePair::new(id, &side.registration, &thread.queue, &options).map_err(failed)?;
        pair.connect(handshake(true)).map_err(failed)?;
        connecting.event(EventKind::Established)?;
        let greeting = VerbsGreeting { session: connector.offer.session, writes }.encode();
        let say = |frame: &mut [u8]| {
            frame[..greeting.len()].copy_from_slice(&greeting);
            greeting.len()
        };
        pair.send(Post { signalled: true, ..Post::default() }, say).map_err(failed)?;
        let memory = connecting.memory(&mut pair)?;
        let check = memory.check(connector.offer.blocks, writes);
        check.map_err(|reason| Error::Protocol { address: connector.server, reason })?;
        Ok(Self {
            pair,
            thread,
            memory,
            seals,
            server: connector.server,
            stop: connector.stop.clone(),
            flying: HashMap::new(),
            next: 0,
            done: Vec::new(),
        })
    }

    /// Where a part of an operation is at the server.
    fn remote(&self, operation: Operation, part: usize, count: usize, length: usize) -> Remote {
        let frames = if operation.region == Region::Blocks { self.memory.blocks.len() } else { self.memory.area.len() };
        let place = operation.part(part, count, length, frames);
        let frame = place.frame as usize;
        let (start, key) = match operation.region {
            Region::Blocks => (self.memory.blocks[frame], self.memory.read_key),
            Region::Area => (self.memory.area[frame].0, self.memory.read_key),
        };
        let key = if operation.writes { self.memory.area[frame].1 } else { key };
        Remote { address: start.wrapping_add(place.offset.into()), key }
    }

    /// Reads bytes, and behind a fence as many as the seals of their sectors have: any bytes of the server's will do.
    fn read_sealed(
        &mut self,
        number: u64,
        into: SpanMut,
        data: Remote,
    ) -> Result<Result<(), forebay_verbs::Error>, Error> {
        let (length, seals_length) = (into.len(), into.len().div_ceil(SECTOR_SIZE as usize) * SEAL);
        if !self.pair.can_read(&into, length, seals_length) {
            self.until(Patience::Sleep, |this| this.pair.can_read(&into, length, seals_length))?;
        }
        let seals = Remote { address: self.memory.blocks[0], key: self.memory.read_key };
        Ok(self.pair.read(Read { number, into, length, data, seals, seals_length }))
    }

    fn lost(&self, reason: impl ToString) -> Error {
        Error::Lost { address: self.server, reason: reason.to_string() }
    }

    /// Takes what has ended; whether anything had.
    fn progress(&mut self) -> Result<bool, Error> {
        let mut completions = Vec::new();
        let polled = self.thread.queue.poll(&mut completions);
        polled.map_err(|error| self.lost(error))?;
        let has_ended = !completions.is_empty();
        for completion in completions {
            match self.pair.ended(completion) {
                Ended::Sent => {}
                Ended::Failed(reason) => return Err(self.lost(reason)),
                Ended::Flushed => return Err(self.lost("the connection has ended")),
                Ended::Received { .. } => return Err(self.lost("it sent what nobody asked for")),
            }
            while let Some((number, plain)) = self.pair.next_plain() {
                self.part_ended(number, plain);
            }
            while let Some(done) = self.pair.next_read() {
                self.part_ended(done.number, Plain::Read(done.into));
            }
        }
        Ok(has_ended)
    }

    /// A part has ended: its number is that of its operation, and which part of it in the lowest bit.
    fn part_ended(&mut self, number: u64, plain: Plain) {
        let Some(flying) = self.flying.get_mut(&(number >> 1)) else { return };
        flying.left -= 1;
        if let (Parts::In(landed), Plain::Read(span)) = (&mut flying.buffer, plain) {
            landed[(number & 1) as usize] = Some(span);
        }
        if flying.left == 0
            && let Some(flying) = self.flying.remove(&(number >> 1))
        {
            self.done.push(match flying.buffer {
                Parts::Out(spans) => Buffer::Out(spans),
                Parts::In(spans) => Buffer::In(spans.into_iter().flatten().collect()),
            });
        }
    }

    /// Whether rdma_cm says that the connection has ended.
    fn look_at_events(&self) -> Result<(), Error> {
        while let Some(event) = self.thread.events.next_event().map_err(|error| self.lost(error))? {
            if event.kind != EventKind::TimewaitExit {
                return Err(self.lost("it ended the connection"));
            }
        }
        Ok(())
    }

    /// Takes what ends until `reached`, or until that has lasted too long.
    fn until(&mut self, patience: Patience, reached: impl Fn(&Self) -> bool) -> Result<(), Error> {
        let (mut idle, mut started) = (0_u32, None);
        loop {
            let has_ended = self.progress()?;
            if reached(self) {
                return Ok(());
            }
            if has_ended {
                idle = 0;
                continue;
            }
            idle += 1;
            if patience == Patience::Poll && !idle.is_multiple_of(ROUNDS) {
                std::hint::spin_loop();
                continue;
            }
            let now = Instant::now();
            let waited = now.duration_since(*started.get_or_insert(now));
            if patience == Patience::Poll && waited < POLL_WITHIN {
                continue;
            }
            if waited > OPERATION_DEADLINE {
                return Err(Error::TimedOut { address: self.server, waited: OPERATION_DEADLINE });
            }
            if self.stop.is_cancelled() {
                return Err(Error::Stopped);
            }
            self.look_at_events()?;
            self.thread.queue.arm().map_err(|error| self.lost(error))?;
            // What came before may not be told of.
            if self.progress()? {
                if reached(self) {
                    return Ok(());
                }
                continue;
            }
            let slept = wait_for_either(&self.thread.completions, &self.thread.events, NAP);
            slept.map_err(|error| self.lost(error))?;
            self.thread.completions.take_events();
        }
    }
}

impl Link for VerbsLink {
    fn start(&mut self, operation: Operation, buffer: Buffer) -> Result<(), Error> {
        let number = self.next;
        self.next += 1;
        let (parts, kept): (SmallVec<[Plain; 2]>, Parts) = match buffer {
            Buffer::Out(spans) => (spans.iter().cloned().map(Plain::Write).collect(), Parts::Out(spans)),
            Buffer::In(spans) => {
                let nothing = spans.iter().map(|_| None).collect();
                (spans.into_iter().map(Plain::Read).collect(), Parts::In(nothing))
            }
        };
        let count = parts.len();
        // What a card takes at once may be less than what is wanted: the rest waits for what has ended.
        if !self.pair.takes_plain(count as u32) {
            self.until(Patience::Sleep, |this| this.pair.takes_plain(count as u32))?;
        }
        self.flying.insert(number, Flying { left: count, buffer: kept });
        for (part, plain) in parts.into_iter().enumerate() {
            let length = match &plain {
                Plain::Read(span) => span.len(),
                Plain::Write(span) => span.len(),
            };
            let remote = self.remote(operation, part, count, length);
            let number = (number << 1) | part as u64;
            let posted = match plain {
                Plain::Read(into) if self.seals => self.read_sealed(number, into, remote)?,
                plain => self.pair.post_plain(number, plain, remote),
            };
            posted.map_err(|error| self.lost(error))?;
        }
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<Buffer>, patience: Patience) -> Result<(), Error> {
        self.until(patience, |this| !this.done.is_empty())?;
        ended.append(&mut self.done);
        Ok(())
    }
}

/// A link in the making.
struct Connecting<'a> {
    thread: &'a Thread,
    to: SocketAddr,
    stop: &'a CancellationToken,
    since: Instant,
}

impl Connecting<'_> {
    fn failed(&self, reason: impl ToString) -> Error {
        Error::Connect { address: self.to, reason: format!("by verbs: {}", reason.to_string()) }
    }

    /// What `look` finds before the deadline.
    fn find<T>(&self, mut look: impl FnMut() -> Result<Option<T>, Error>) -> Result<T, Error> {
        loop {
            self.thread.queue.arm().map_err(|error| self.failed(error))?;
            if let Some(found) = look()? {
                return Ok(found);
            }
            if self.stop.is_cancelled() {
                return Err(Error::Stopped);
            }
            if self.since.elapsed() > CONNECT_DEADLINE {
                return Err(self.failed(format!("no answer within {CONNECT_DEADLINE:?}")));
            }
            let slept = wait_for_either(&self.thread.completions, &self.thread.events, NAP);
            slept.map_err(|error| self.failed(error))?;
            self.thread.completions.take_events();
        }
    }

    fn event(&self, kind: EventKind) -> Result<Event, Error> {
        let event = self.find(|| self.thread.events.next_event().map_err(|error| self.failed(error)))?;
        match event.kind == kind {
            true => Ok(event),
            false => Err(self.failed(format!("{} (status {})", event.name, event.status))),
        }
    }

    /// What the server says of its memory.
    fn memory(&self, pair: &mut QueuePair) -> Result<VerbsMemory, Error> {
        self.find(|| {
            let mut completions = Vec::new();
            self.thread.queue.poll(&mut completions).map_err(|error| self.failed(error))?;
            let mut found = None;
            for completion in completions {
                match pair.ended(completion) {
                    Ended::Sent => {}
                    Ended::Failed(reason) => return Err(self.failed(reason)),
                    Ended::Flushed => return Err(self.failed("the connection has ended")),
                    Ended::Received { receive, length } => match wire::decode(pair.message_in(receive, length)) {
                        Ok(VerbsAnswer::More) => {}
                        Ok(VerbsAnswer::Memory(memory)) => found = Some(memory),
                        Ok(VerbsAnswer::Refused(reason)) => return Err(Error::Refused { address: self.to, reason }),
                        Err(error) => {
                            return Err(Error::Protocol { address: self.to, reason: error.to_string() });
                        }
                    },
                }
            }
            Ok(found)
        })
    }
}
