//! The client: a handle that any thread may use, in front of a connection that lives on a lane.

use std::sync::Arc;

use forebay_memory::SpanMut;
use forebay_transport::{CallError, LinkError, Op, Reply, Request, Transport, TransportKind};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::connection::{Call, Command};
use crate::lane::Lane;
use crate::options::ClientOptions;
use crate::serving::serve;
use crate::trace::{Kind, Timing, Trace};

/// The link to one worker over one lane. Nothing is connected before the first call.
pub struct RdmaTransport {
    address: Arc<str>,
    commands: mpsc::UnboundedSender<Command>,
    /// One permit for each call under way. Closed with the link.
    places: Arc<Semaphore>,
    trace: Option<Arc<Trace>>,
    // Its thread serves the connection.
    _lane: Arc<Lane>,
}

/// Tells the connection to look for calls whose caller has left.
struct Leaving<'a>(&'a mpsc::UnboundedSender<Command>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let _ = self.0.send(Command::Sweep);
    }
}

impl RdmaTransport {
    /// A link to the worker at `address`, written `HOST:PORT`, over `lane`.
    #[must_use]
    pub fn new(address: impl Into<Arc<str>>, lane: Arc<Lane>, options: ClientOptions) -> Self {
        let address = address.into();
        let (commands, queue) = mpsc::unbounded_channel();
        let places = Arc::new(Semaphore::new(options.max_outstanding.clamp(1, Semaphore::MAX_PERMITS)));
        let (peer, trace) = (Arc::clone(&address), options.trace.clone());
        // If the lane has ended, so has the queue, and calls learn of it.
        lane.run(move |core| drop(tokio::task::spawn_local(serve(core.clone(), peer, options, queue))));
        Self { address, commands, places, trace, _lane: lane }
    }

    fn closed(&self) -> LinkError {
        LinkError::Lost { peer: self.address.to_string(), reason: "it was closed".to_owned() }
    }

    async fn begin(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        let limit = request.payload_limit(into.as_ref()).map_err(CallError::Service)?;
        let began = tokio::time::Instant::now();
        let kind = if request.op == Op::Read { Kind::Read } else { Kind::Call };
        let timing = self.trace.as_ref().map(|trace| Timing::new(trace, kind));
        let permit = Arc::clone(&self.places).acquire_owned().await.map_err(|_| self.closed())?;
        let request = Request { deadline: request.deadline.saturating_sub(began.elapsed()), ..request };
        let into = into.filter(|_| request.op == Op::Read);
        let (answer, answered) = oneshot::channel();
        let call = Call { into, limit, answer, timing, _permit: permit };
        self.commands.send(Command::Call(request, call)).map_err(|_| self.closed())?;
        let leaving = Leaving(&self.commands);
        // Dropped without an answer when the lane ends.
        let result = answered.await.unwrap_or_else(|_| Err(self.closed().into()));
        std::mem::forget(leaving);
        result
    }
}

#[async_trait::async_trait]
impl Transport for RdmaTransport {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        let waited = request.deadline;
        match tokio::time::timeout(waited, self.begin(request, into)).await {
            Ok(result) => result,
            Err(_) => Err(LinkError::TimedOut { peer: self.address.to_string(), waited }.into()),
        }
    }

    fn kind(&self) -> TransportKind {
        TransportKind::Ucx
    }

    fn peer(&self) -> &str {
        &self.address
    }

    async fn close(&self) {
        self.places.close();
        let (closed, is_closed) = oneshot::channel();
        if self.commands.send(Command::Close(closed)).is_ok() {
            // Dropped without a word when the lane ends first.
            let _ = is_closed.await;
        }
    }
}

impl Drop for RdmaTransport {
    fn drop(&mut self) {
        self.places.close();
    }
}
