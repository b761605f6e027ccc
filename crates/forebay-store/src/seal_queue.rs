//! The runs that are to be sealed, on their way to the task that does it (`sealer.rs`).

use std::sync::{Arc, Weak};

use forebay_one_sided::Board;
use tokio::sync::mpsc;

use crate::run::MemoryRun;

/// Runs that may wait. Those beyond that are asked for again.
const QUEUE: usize = 256;

/// Where runs wait to be sealed, and what they are sealed on. One that is evicted meanwhile does not keep its memory here.
pub(crate) struct SealQueue {
    pub(crate) board: Arc<Board>,
    waiting: mpsc::Sender<Weak<MemoryRun>>,
}

impl SealQueue {
    /// Of this board, and its other end.
    pub(crate) fn new(board: Arc<Board>) -> (Self, mpsc::Receiver<Weak<MemoryRun>>) {
        let (waiting, end) = mpsc::channel(QUEUE);
        (Self { board, waiting }, end)
    }

    /// Has a run sealed; false when there are too many that wait.
    pub(crate) fn offer(&self, copy: &Arc<MemoryRun>) -> bool {
        self.waiting.try_send(Arc::downgrade(copy)).is_ok()
    }
}
