//! Replies of a UCX connection whose payload is being fetched, each by a task that waits for the end of its operation.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use forebay_transport::LinkError;

use crate::client_link::{Call, LinkState};

/// See above.
#[derive(Default)]
pub(crate) struct Fetches {
    under_way: Cell<usize>,
    /// Those of them whose callers have been gone for long.
    forsaken: Cell<usize>,
}

impl Fetches {
    /// Whether there are any.
    pub(crate) fn are_under_way(&self) -> bool {
        self.under_way.get() > 0
    }

    /// Whether there are any whose callers wait, or have not been gone for long.
    pub(crate) fn are_awaited(&self) -> bool {
        self.under_way.get() > self.forsaken.get()
    }

    /// One begins; [`Fetches::end`] must follow.
    pub(crate) fn begin(&self) {
        self.under_way.update(|count| count + 1);
    }

    /// What comes of one that has begun: `receiving` fetches the payload of the answer to `call`.
    ///
    /// A mount cannot answer the kernel while its payload is in use here, not even with what another worker answered, and only the end of
    /// the connection gives it back. But others may have their answers over it. So the connection of a fetch that goes on for `patience`
    /// after its caller has left takes no more calls, and ends with the last that has a caller.
    ///
    /// # Errors
    /// The connection has ended before.
    pub(crate) async fn end<T>(
        &self,
        state: &LinkState,
        call: &mut Call,
        patience: Duration,
        receiving: impl Future<Output = T>,
    ) -> Result<T, LinkError> {
        let mut ending = pin!(async {
            tokio::select! {
                received = receiving => Ok(received),
                () = state.ended.cancelled() => Err(state.lost("it ended while a reply was being fetched")),
            }
        });
        let in_time = tokio::select! {
            ended = &mut ending => Some(ended),
            () = call.forsaken(patience) => None,
        };
        let ended = match in_time {
            Some(ended) => ended,
            None => {
                self.forsaken.update(|count| count + 1);
                state.retire("a reply has not arrived long after its caller left");
                let ended = ending.await;
                self.forsaken.update(|count| count - 1);
                ended
            }
        };
        self.under_way.update(|count| count - 1);
        ended
    }
}
