//! A link whose callers may wait for their answers themselves ([`crate::driving`]): the suite runs over it as over any other.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_memory::SpanMut;

use crate::driving::permitted;
use crate::error::CallError;
use crate::reply::Reply;
use crate::request::Request;
use crate::traits::{PeerMemory, Transport, TransportKind};

/// The link, and how many of its calls were answered so.
pub struct Driven {
    link: Arc<dyn Transport>,
    most: usize,
    answered: AtomicU64,
}

impl Driven {
    /// The same as `link`, with up to `most` threads of this process that wait at once.
    #[must_use]
    pub fn new(link: Arc<dyn Transport>, most: usize) -> Self {
        Self { link, most, answered: AtomicU64::new(0) }
    }

    /// How many calls were answered to the thread that made them.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

#[async_trait::async_trait]
impl Transport for Driven {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        let (mut call, mut is_first) = (self.link.call(request, into), true);
        poll_fn(|context| {
            if !std::mem::take(&mut is_first) {
                return call.as_mut().poll(context);
            }
            let (polled, answered) = permitted(self.most, || call.as_mut().poll(context));
            self.answered.fetch_add(u64::from(answered), Ordering::Relaxed);
            polled
        })
        .await
    }

    fn memory(&self) -> Option<&dyn PeerMemory> {
        self.link.memory()
    }

    fn kind(&self) -> TransportKind {
        self.link.kind()
    }

    fn peer(&self) -> &str {
        self.link.peer()
    }

    async fn close(&self) {
        self.link.close().await;
    }
}
