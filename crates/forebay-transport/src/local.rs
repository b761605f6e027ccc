//! Client and worker in one process: a reply is a view of the worker's memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_memory::{SpanMut, Spans};
use forebay_types::{BlockKey, Failure, FailureKind, FileVersion};

use crate::caller::Caller;
use crate::error::{CallError, LinkError};
use crate::look::Look;
use crate::reply::{Payload, Reply, Response, ResponsePayload};
use crate::request::Request;
use crate::traits::{PeerMemory, Service, Transport, TransportKind};

const PEER: &str = "local";

/// The link to a worker in this process.
pub struct LocalTransport {
    service: Arc<dyn Service>,
    closed: AtomicBool,
}

impl LocalTransport {
    /// A link to `service`.
    #[must_use]
    pub fn new(service: Arc<dyn Service>) -> Self {
        Self { service, closed: AtomicBool::new(false) }
    }
}

/// The reply that a caller in this process gets for a service's answer.
fn reply_of(response: Response, request: &Request) -> Result<Reply, CallError> {
    let response = response.fitting(request).map_err(CallError::Service)?;
    let payload = match response.payload {
        ResponsePayload::None => Payload::None,
        ResponsePayload::Spans(spans) => Payload::Shared(spans),
        ResponsePayload::File(_) => {
            let message = "the service answered with a file, which the local transport does not take";
            return Err(CallError::Service(Failure::new(FailureKind::Internal, message)));
        }
    };
    Ok(Reply { provenance: response.provenance, body: response.body, payload })
}

impl PeerMemory for LocalTransport {
    fn try_read(&self, block: &BlockKey, offset: u32, length: u32) -> Option<Spans> {
        self.service.try_read(block, offset, length)
    }

    fn try_look(&self, block: &BlockKey, offset: u32, length: u32, look: Look<'_>) -> bool {
        self.service.try_look(block, offset, length, look)
    }

    fn holds(&self, block: &BlockKey, offset: u32, length: u32) -> bool {
        self.service.holds(block, offset, length)
    }

    fn expect_reads(&self, version: &Arc<FileVersion>, block: &BlockKey, ranges: &[(u32, u32)], gap: u32) {
        self.service.expect_reads(version, block, ranges, gap);
    }

    fn is_open(&self) -> bool {
        true
    }
}

#[async_trait::async_trait]
impl Transport for LocalTransport {
    async fn call(&self, request: Request, _into: Option<SpanMut>) -> Result<Reply, CallError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(LinkError::Lost { peer: PEER.to_owned(), reason: "it was closed".to_owned() }.into());
        }
        let request = request.by(Caller::Local);
        if let Some(response) = self.service.try_handle(&request) {
            return reply_of(response, &request);
        }
        let deadline = request.deadline;
        match tokio::time::timeout(deadline, self.service.handle(request.clone(), false)).await {
            Ok(Ok(response)) => reply_of(response, &request),
            Ok(Err(failure)) => Err(CallError::Service(failure)),
            Err(_) => Err(LinkError::TimedOut { peer: PEER.to_owned(), waited: deadline }.into()),
        }
    }

    fn memory(&self) -> Option<&dyn PeerMemory> {
        Some(self)
    }

    fn kind(&self) -> TransportKind {
        TransportKind::Local
    }

    fn peer(&self) -> &str {
        PEER
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::Fixture;

    /// What the suite needs to run against the local transport, whose peer dies only with the process.
    struct Local(Arc<LocalTransport>);

    #[async_trait::async_trait]
    impl Fixture for Local {
        async fn start(service: Arc<dyn Service>) -> Self {
            Self(Arc::new(LocalTransport::new(service)))
        }

        fn transport(&self) -> Arc<dyn Transport> {
            self.0.clone()
        }

        async fn kill(&self) -> bool {
            false
        }

        async fn revive(&self) {}
    }

    crate::transport_conformance!(Local);
}
