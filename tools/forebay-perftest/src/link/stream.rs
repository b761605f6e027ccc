//! READ and WRITE over plain sockets: the baseline. Requests go out ahead, answers come back in their order.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::control;
use crate::error::Error;
use crate::link::traits::{Connector, Link, Operation, Patience};
use crate::memory::Buffer;
use crate::plan::{AREA_FRAMES, OPERATION_DEADLINE};
use crate::wire::{self, Region, Request, StreamRequest};

/// How long the thread sleeps in the kernel at most before it looks whether it should stop.
const NAP: Duration = Duration::from_millis(200);

/// The link.
pub(crate) struct StreamLink {
    stream: TcpStream,
    server: std::net::SocketAddr,
    blocks: usize,
    stop: CancellationToken,
    /// In the order of their requests.
    flying: VecDeque<Buffer>,
}

impl StreamLink {
    pub(crate) fn connect(connector: &Connector) -> Result<Self, Error> {
        let mut stream = control::open(connector.server, connector.bind)?;
        wire::ask(&mut stream, connector.server, &Request::Stream { session: connector.offer.session })?;
        stream.set_read_timeout(Some(NAP))?;
        stream.set_write_timeout(Some(NAP))?;
        Ok(Self {
            stream,
            server: connector.server,
            blocks: connector.offer.blocks as usize,
            stop: connector.stop.clone(),
            flying: VecDeque::new(),
        })
    }

    /// Repeats `step`, which moves some bytes, until nothing is `left`.
    fn all(&mut self, mut step: impl FnMut(&mut TcpStream) -> std::io::Result<(usize, bool)>) -> Result<(), Error> {
        let lost = |reason: String| Error::Lost { address: self.server, reason };
        let mut since = None;
        loop {
            match step(&mut self.stream) {
                Ok((_, true)) => return Ok(()),
                Ok((0, false)) => return Err(lost("it closed the connection".to_owned())),
                Ok(_) => since = None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if self.stop.is_cancelled() {
                        return Err(Error::Stopped);
                    }
                    if since.get_or_insert_with(Instant::now).elapsed() > OPERATION_DEADLINE {
                        return Err(Error::TimedOut { address: self.server, waited: OPERATION_DEADLINE });
                    }
                }
                Err(error) => return Err(lost(error.to_string())),
            }
        }
    }

    fn send(&mut self, request: StreamRequest, payload: &[u8]) -> Result<(), Error> {
        let header = request.encode();
        let mut slices = [IoSlice::new(&header), IoSlice::new(payload)];
        let mut rest = &mut slices[..];
        // Without a payload its slice is empty: skipped by this.
        IoSlice::advance_slices(&mut rest, 0);
        self.all(|stream| {
            let sent = stream.write_vectored(rest)?;
            IoSlice::advance_slices(&mut rest, sent);
            Ok((sent, rest.iter().all(|slice| slice.is_empty())))
        })
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<(), Error> {
        let mut at = 0;
        self.all(|stream| {
            let received = stream.read(&mut into[at..])?;
            at += received;
            Ok((received, at == into.len()))
        })
    }
}

impl Link for StreamLink {
    fn start(&mut self, operation: Operation, buffer: Buffer) -> Result<(), Error> {
        let Operation { writes, region, .. } = operation;
        let frames = if region == Region::Blocks { self.blocks } else { AREA_FRAMES };
        let request = |part, count, length| {
            let place = operation.part(part, count, length, frames);
            StreamRequest { writes, region, place }
        };
        match &buffer {
            Buffer::Out(spans) => {
                for (part, span) in spans.iter().enumerate() {
                    self.send(request(part, spans.len(), span.len()), span)?;
                }
            }
            Buffer::In(spans) => {
                for (part, span) in spans.iter().enumerate() {
                    self.send(request(part, spans.len(), span.len()), &[])?;
                }
            }
        }
        self.flying.push_back(buffer);
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<Buffer>, _: Patience) -> Result<(), Error> {
        let Some(mut buffer) = self.flying.pop_front() else { return Ok(()) };
        match &mut buffer {
            Buffer::Out(spans) => {
                for _ in 0..spans.len() {
                    self.receive(&mut [0])?;
                }
            }
            Buffer::In(spans) => {
                for span in spans {
                    self.receive(span)?;
                }
            }
        }
        ended.push(buffer);
        Ok(())
    }
}
