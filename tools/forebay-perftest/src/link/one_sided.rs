//! READ and WRITE over UCX: one-sided operations, by a UCX worker of the job's own.
//!
//! There is no runtime: the job progresses its worker itself, and looks at its operations when there was progress. Each
//! operation of a WRITE is a put and a flush, and has ended when both have.

use std::cell::Cell;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::{Duration, Instant};

use forebay_memory::{FRAME_SIZE, Span, SpanMut};
use forebay_ucx::{Context, Endpoint, Payload, Protocol, Receiving, Registration, RemoteKey, Sending, Worker};
use smallvec::SmallVec;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::link::traits::{Connector, Link, Operation, Patience};
use crate::memory::Buffer;
use crate::plan::{CONNECT_DEADLINE, OPERATION_DEADLINE};
use crate::wire::{GREETING, Region, UcxOffer, WELCOME};

/// Rounds without progress after which a thread that polls looks at the clock.
const ROUNDS: u32 = 64;
/// How long a thread polls before it sleeps after all. What takes longer gains nothing by polling, and where a processor has
/// to move the bytes, the one that polls may be the one that is needed: over shared memory, on two busy cores, 1 MiB took 8 ms
/// with a thread that never slept, which is two time slices.
const POLL_WITHIN: Duration = Duration::from_micros(50);
/// How often connecting is tried within its deadline.
const CONNECT_ATTEMPTS: u32 = 3;
/// How long a thread sleeps at most before it looks whether it should stop.
const NAP: Duration = Duration::from_millis(100);

/// The link. Fields are dropped in order: keys before their endpoint, the worker last.
pub(crate) struct OneSidedLink {
    flying: Vec<Flying>,
    blocks: Vec<RemoteKey>,
    area: Vec<RemoteKey>,
    endpoint: Endpoint,
    registration: Registration,
    waiting: Waiting,
}

/// An operation, until all of its parts have ended.
struct Flying {
    pending: SmallVec<[Pending; 3]>,
    buffer: Ended,
}

/// What is left of its buffer meanwhile.
enum Ended {
    Out(SmallVec<[Span; 2]>),
    In(SmallVec<[Option<SpanMut>; 2]>),
}

enum Pending {
    Receiving(usize, Receiving),
    Sending(Sending),
}

impl OneSidedLink {
    /// Connects, is welcomed, and unpacks the keys. What is not answered is tried again: UCX 1.13 was seen, once in a great many runs, to
    /// connect two sides of which one never heard of the other.
    pub(crate) fn connect(
        connector: &Connector,
        context: &Context,
        registration: &Registration,
        offer: &UcxOffer,
    ) -> Result<Self, Error> {
        let within = CONNECT_DEADLINE / CONNECT_ATTEMPTS;
        for _ in 1..CONNECT_ATTEMPTS {
            match Self::connect_once(connector, context, registration, offer, within) {
                Err(Error::TimedOut { .. }) => {}
                connected => return connected,
            }
        }
        let address = SocketAddr::new(connector.server.ip(), offer.port);
        let told = |error| match error {
            Error::TimedOut { .. } => {
                let reason = format!("by UCX: no answer to {CONNECT_ATTEMPTS} attempts within {CONNECT_DEADLINE:?}");
                Error::Connect { address, reason }
            }
            error => error,
        };
        Self::connect_once(connector, context, registration, offer, within).map_err(told)
    }

    fn connect_once(
        connector: &Connector,
        context: &Context,
        registration: &Registration,
        offer: &UcxOffer,
        within: Duration,
    ) -> Result<Self, Error> {
        let address = SocketAddr::new(connector.server.ip(), offer.port);
        let worker = Worker::new(context)?;
        let welcomed = Rc::new(Cell::new(false));
        let welcome = Rc::clone(&welcomed);
        worker.on_message(WELCOME, move |_| welcome.set(true))?;
        let endpoint = worker.connect(address, connector.bind)?;
        let mut waiting = Waiting { worker, server: connector.server, stop: connector.stop.clone() };
        let session = connector.offer.session.to_le_bytes();
        endpoint.am_send(GREETING, &session, Payload::None, None, Protocol::Eager).detach();
        waiting.until(within, Patience::Sleep, &endpoint, || welcomed.get().then_some(Ok(()))).map_err(|error| {
            match error {
                Error::Stopped | Error::TimedOut { .. } => error,
                error => Error::Connect { address, reason: format!("by UCX: {}", reason(&error)) },
            }
        })?;
        let key = |packed: &Vec<u8>| {
            let key = RemoteKey::unpack(&endpoint, packed)?;
            let reason = || format!("it offers memory of {}", key.size());
            match key.size().as_u64() {
                size if size == FRAME_SIZE as u64 => Ok(key),
                _ => Err(Error::Protocol { address: connector.server, reason: reason() }),
            }
        };
        let blocks = offer.blocks.iter().map(key).collect::<Result<_, _>>()?;
        let area = offer.area.iter().map(key).collect::<Result<_, _>>()?;
        *connector.lanes.lock() = endpoint.lanes()?;
        Ok(Self { flying: Vec::new(), blocks, area, endpoint, registration: registration.clone(), waiting })
    }
}

/// An error without the server's address, which the caller adds.
fn reason(error: &Error) -> String {
    match error {
        Error::Lost { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}

impl Link for OneSidedLink {
    fn start(&mut self, operation: Operation, buffer: Buffer) -> Result<(), Error> {
        let keys = if operation.region == Region::Blocks { &self.blocks } else { &self.area };
        let registration = Some(&self.registration);
        let mut pending = SmallVec::new();
        let buffer = match buffer {
            Buffer::Out(spans) => {
                for (part, span) in spans.iter().enumerate() {
                    let place = operation.part(part, spans.len(), span.len(), keys.len());
                    let key = &keys[place.frame as usize];
                    pending.push(Pending::Sending(key.put(place.offset.into(), span.clone(), registration)));
                }
                pending.push(Pending::Sending(self.endpoint.flush()));
                Ended::Out(spans)
            }
            Buffer::In(spans) => {
                let count = spans.len();
                for (part, span) in spans.into_iter().enumerate() {
                    let place = operation.part(part, count, span.len(), keys.len());
                    let key = &keys[place.frame as usize];
                    pending.push(Pending::Receiving(part, key.get(place.offset.into(), span, registration)));
                }
                Ended::In((0..count).map(|_| None).collect())
            }
        };
        self.flying.push(Flying { pending, buffer });
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<Buffer>, patience: Patience) -> Result<(), Error> {
        let (flying, before) = (&mut self.flying, ended.len());
        self.waiting.until(OPERATION_DEADLINE, patience, &self.endpoint, || {
            let mut index = 0;
            while let Some(operation) = flying.get_mut(index) {
                match operation.look() {
                    Ok(false) => index += 1,
                    Ok(true) => ended.push(flying.swap_remove(index).into_buffer()),
                    Err(error) => return Some(Err(error)),
                }
            }
            (ended.len() > before).then_some(Ok(()))
        })
    }

    fn rest(&mut self) {
        while self.waiting.worker.progress() > 0 {}
    }
}

impl Flying {
    /// Whether all of it has ended.
    fn look(&mut self) -> Result<bool, forebay_ucx::Error> {
        let mut cx = TaskContext::from_waker(Waker::noop());
        let mut failed = None;
        let buffer = &mut self.buffer;
        self.pending.retain(|pending| match pending {
            Pending::Sending(sending) => match Pin::new(sending).poll(&mut cx) {
                Poll::Pending => true,
                Poll::Ready(outcome) => {
                    failed = failed.take().or(outcome.err());
                    false
                }
            },
            Pending::Receiving(part, receiving) => match Pin::new(receiving).poll(&mut cx) {
                Poll::Pending => true,
                Poll::Ready((mut spans, outcome)) => {
                    failed = failed.take().or(outcome.err());
                    if let Ended::In(landed) = buffer {
                        landed[*part] = spans.pop();
                    }
                    false
                }
            },
        });
        failed.map_or(Ok(self.pending.is_empty()), Err)
    }

    fn into_buffer(self) -> Buffer {
        match self.buffer {
            Ended::Out(spans) => Buffer::Out(spans),
            Ended::In(spans) => Buffer::In(spans.into_iter().flatten().collect()),
        }
    }
}

/// What progresses the worker while the job waits.
struct Waiting {
    worker: Worker,
    server: SocketAddr,
    stop: CancellationToken,
}

impl Waiting {
    /// Progresses until `reached` says that, or why not, or the endpoint fails, or the deadline has passed.
    fn until(
        &mut self,
        deadline: Duration,
        patience: Patience,
        endpoint: &Endpoint,
        mut reached: impl FnMut() -> Option<Result<(), forebay_ucx::Error>>,
    ) -> Result<(), Error> {
        let lost = |reason: String| Error::Lost { address: self.server, reason };
        let (mut idle, mut started) = (0_u32, None);
        loop {
            // What was begun may have ended at once, so this comes before the first progress, too.
            if let Some(outcome) = reached() {
                return outcome.map_err(|error| lost(error.to_string()));
            }
            if self.worker.progress() > 0 {
                idle = 0;
                continue;
            }
            if let Some(status) = endpoint.failure() {
                return Err(lost(status.to_string()));
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
            if waited > deadline {
                return Err(Error::TimedOut { address: self.server, waited: deadline });
            }
            if self.stop.is_cancelled() {
                return Err(Error::Stopped);
            }
            self.worker.sleep(NAP)?;
        }
    }
}
