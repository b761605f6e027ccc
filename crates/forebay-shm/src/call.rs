//! A call of a client that waits for its answer.

use forebay_transport::{LinkError, Reply};
use forebay_types::Failure;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Why a read was not answered with bytes.
#[derive(Clone, Debug)]
pub(crate) enum ReadError {
    /// The worker's answer.
    Service(Failure),
    /// There was none, and there will be no more.
    Link(LinkError),
    /// The bytes do not lie where they can be seen.
    Elsewhere,
}

/// What comes to a call.
pub(crate) type Answer = Result<Reply, ReadError>;

/// A call that waits for its answer.
#[derive(Debug)]
pub(crate) struct Call {
    /// The most payload that was asked for.
    pub(crate) limit: u32,
    pub(crate) answer: oneshot::Sender<Answer>,
    pub(crate) permit: OwnedSemaphorePermit,
}

impl Call {
    /// Ends the call. Its caller may have left: then what was shown to it is released here.
    pub(crate) fn end(self, result: Answer) {
        // Before the caller knows: its next call must find room.
        drop(self.permit);
        let _ = self.answer.send(result);
    }
}
