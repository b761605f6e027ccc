//! CACHE: requests as the cache's client makes them, over the transport that it uses.
//!
//! All jobs share one link, as all readers of a mount do. A payload larger than a block takes a request for each block.

use std::sync::Arc;

use forebay_memory::SpanMut;
use forebay_transport::driving::permitted;
use forebay_transport::{Op, Payload, Request, Transport};
use forebay_types::BlockKey;
use futures::FutureExt as _;
use futures::future::{BoxFuture, try_join_all};
use futures::stream::{FuturesUnordered, StreamExt as _};
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::link::traits::{Connector, Link, Operation, Patience};
use crate::memory::Buffer;
use crate::plan::OPERATION_DEADLINE;
use crate::wire::BENCH_FILE;

/// The link.
pub(crate) struct CacheLink {
    transport: Arc<dyn Transport>,
    blocks: usize,
    runtime: Handle,
    stop: CancellationToken,
    server: std::net::SocketAddr,
    flying: FuturesUnordered<BoxFuture<'static, Result<Buffer, String>>>,
}

impl CacheLink {
    pub(crate) fn new(connector: &Connector) -> Self {
        Self {
            transport: Arc::clone(&connector.cache),
            blocks: connector.offer.blocks as usize,
            runtime: connector.runtime.clone(),
            stop: connector.stop.clone(),
            server: connector.server,
            flying: FuturesUnordered::new(),
        }
    }
}

impl Link for CacheLink {
    fn start(&mut self, operation: Operation, buffer: Buffer) -> Result<(), Error> {
        let Buffer::In(spans) = buffer else {
            return Err(Error::Usage("the cache is read-only; leave WRITE to the one-sided operations".to_owned()));
        };
        let (count, blocks, transport) = (spans.len(), self.blocks, Arc::clone(&self.transport));
        let call = move |part: usize, span: SpanMut| {
            let place = operation.part(part, count, span.len(), blocks);
            let block = BlockKey { file: BENCH_FILE, index: place.frame.into() };
            let request = Request::on_block(Op::Read, block, place.offset, place.length, OPERATION_DEADLINE);
            read(Arc::clone(&transport), request, span)
        };
        let mut parts = spans.into_iter().enumerate();
        self.flying.push(match (parts.next(), count) {
            (Some((part, span)), 1) => {
                call(part, span).map(|read| Ok(Buffer::In(SmallVec::from_iter([read?])))).boxed()
            }
            (first, _) => {
                let calls: Vec<_> = first.into_iter().chain(parts).map(|(part, span)| call(part, span)).collect();
                try_join_all(calls).map(|read| Ok(Buffer::In(read?.into_iter().collect()))).boxed()
            }
        });
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<Buffer>, patience: Patience) -> Result<(), Error> {
        let (flying, stop, server) = (&mut self.flying, &self.stop, self.server);
        // Who waits for one answer may have it itself, as a reader's thread does.
        let here = (patience == Patience::Poll).then(|| {
            let _entered = self.runtime.enter();
            permitted(1, || flying.next().now_or_never()).0
        });
        self.runtime.block_on(async {
            let mut next = match here.flatten() {
                Some(first) => first,
                None => tokio::select! {
                    biased;
                    first = flying.next() => first,
                    () = stop.cancelled() => return Err(Error::Stopped),
                },
            };
            while let Some(outcome) = next {
                ended.push(outcome.map_err(|reason| Error::Lost { address: server, reason })?);
                next = flying.next().now_or_never().flatten();
            }
            Ok(())
        })
    }
}

/// One request: the buffer, filled.
async fn read(transport: Arc<dyn Transport>, request: Request, into: SpanMut) -> Result<SpanMut, String> {
    let wanted = request.length as usize;
    match transport.call(request, Some(into)).await.map_err(|error| error.to_string())?.payload {
        Payload::Landed(span) if span.len() == wanted => Ok(span),
        Payload::Landed(span) => Err(format!("a request for {wanted} bytes was answered with {}", span.len())),
        Payload::None | Payload::Shared(_) => {
            Err(format!("a request for {wanted} bytes was answered with none in its buffer"))
        }
    }
}
