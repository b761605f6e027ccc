//! Verbs as client and server set them up: an I/O thread for the cache, and queue pairs of the benchmark's own for READ and WRITE.

use std::sync::Arc;
use std::time::Duration;

use forebay_memory::Pool;
use forebay_rdma::RdmaError;
use forebay_rdma::verbs::{VerbsLibrary, VerbsOptions, VerbsThread};
use forebay_verbs::{
    CompletionChannel, CompletionQueue, Device, Domain, EventChannel, Handshake, PathOptions, QueuePairOptions,
    Reading, Registration,
};

use crate::error::Error;
use crate::options::VerbsCard;
use crate::plan::{AREA_FRAMES, MAX_DEPTH, OPERATION_DEADLINE};

/// Bytes of the longest message over a queue pair of READ and WRITE.
pub(crate) const MESSAGE: usize = 1024;
/// Messages that either end takes: one, and one for each frame to write to.
const MESSAGES: u32 = 1 + AREA_FRAMES as u32;

/// How long a card may be without acknowledgement: two thirds of what is silence to the cache's client here (`client::cache`), as in a
/// mount. Soft-RoCE breaks connections when it sends again what was only late (ADR 0032).
const UNACKNOWLEDGED: Duration = Duration::from_secs(OPERATION_DEADLINE.as_secs() / 3);

/// Sealed reads of one queue pair that are under way, as many as the cache's client has.
const SEALED_READS: u32 = 16;

/// An I/O thread of the cache.
pub(crate) fn verbs_thread(card: &VerbsCard, pool: &Pool) -> Result<Arc<VerbsThread>, Error> {
    let library = VerbsLibrary::load().map_err(RdmaError::from)?;
    let unacknowledged = UNACKNOWLEDGED;
    let options = VerbsOptions { unacknowledged, ..VerbsOptions::new(&card.device, pool.clone(), pool.capacity()) };
    Ok(Arc::new(VerbsThread::start(library, options)?))
}

/// A card, with a pool that it may use, for queue pairs of any thread.
#[derive(Clone)]
pub(crate) struct Side {
    library: VerbsLibrary,
    pub(crate) registration: Arc<Registration>,
}

impl Side {
    /// Registers `pool` with `card`, as one piece. Blocks. `None`: the card has no memory windows, so there is no READ and WRITE.
    pub(crate) fn new(card: &VerbsCard, pool: &Pool) -> Result<Option<Self>, RdmaError> {
        let library = VerbsLibrary::load()?;
        let device = Device::open(library, &card.device)?;
        if !device.has_windows() {
            return Ok(None);
        }
        let registration = Registration::growing(&Domain::new(device)?, pool, pool.capacity());
        registration.grow_with(pool.capacity(), |_| true)?;
        Ok(Some(Self { library, registration: Arc::new(registration) }))
    }

    /// What a thread needs for its queue pairs, which have so many entries together.
    pub(crate) fn thread(&self, entries: usize) -> Result<Thread, RdmaError> {
        let completions = CompletionChannel::new(self.registration.domain().device())?;
        let queue = CompletionQueue::new(&completions, entries)?;
        Ok(Thread { queue, completions, events: EventChannel::new(self.library)? })
    }
}

/// Of one thread.
pub(crate) struct Thread {
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) completions: Arc<CompletionChannel>,
    pub(crate) events: Arc<EventChannel>,
}

/// The queue pair of a client, which has all its operations under way there, each in two parts at most, and may read seals; or of a
/// server.
pub(crate) fn queue_pair(is_client: bool, seals: bool) -> QueuePairOptions {
    QueuePairOptions {
        receives: MESSAGES,
        receive_length: MESSAGE,
        requests: if is_client { 2 * MAX_DEPTH + 2 } else { 4 * MESSAGES },
        frames: MESSAGES,
        frame_length: MESSAGE,
        inline: 0,
        windows: if is_client { 0 } else { AREA_FRAMES },
        reads: if seals { SEALED_READS } else { 0 },
    }
}

/// What either end says when it connects.
pub(crate) fn handshake(is_client: bool) -> Handshake<'static> {
    let reading = if is_client { Reading::Ours } else { Reading::Theirs };
    Handshake { private_data: &[], retries: 7, receiver_not_ready_retries: 7, reading, path: PathOptions::default() }
}
