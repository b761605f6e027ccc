//! The end of a queue pair: it is destroyed, and then its memory is free.

use std::mem::ManuallyDrop;

use forebay_memory::SpanMut;

use super::{Memory, QueuePair};
use crate::cm::Id;

/// What of a pair the compiler lets go to another thread without a word.
const _: () = {
    const fn may_be_moved<T: Send>() {}
    may_be_moved::<Memory>();
    may_be_moved::<Id>();
};

impl QueuePair {
    /// Ends the connection, and destroys it. The buffer that was exposed by this window is the caller's again: no peer reaches it any
    /// more. `None`: it was not, or the pair cannot be destroyed.
    #[must_use]
    pub fn destroy(mut self, window: usize) -> Option<SpanMut> {
        self.disconnect();
        self.end(Some(window))
    }

    /// Destroys it, once. The buffer that was exposed by this window.
    fn end(&mut self, window: Option<usize>) -> Option<SpanMut> {
        if std::mem::replace(&mut self.has_ended, true) {
            return None;
        }
        let library = self.id.channel.library;
        // SAFETY: the pair is alive, and not used after this. When this returns, the card does nothing more for it.
        let result = unsafe { (library.verbs.ibv_destroy_qp)(self.pair.as_ptr()) };
        if result != 0 {
            let reason = std::io::Error::from_raw_os_error(result.abs()).to_string();
            tracing::error!(reason, "a queue pair cannot be destroyed; its memory is kept");
            return None;
        }
        self.receiving.release(self.with_card.len());
        self.sending.release(self.requests as usize);
        let exposed = window.and_then(|window| self.memory.windows.take_out(window));
        // SAFETY: both are taken here alone, and not used after this. The id has no pair any more.
        unsafe {
            (*self.id.id).qp = std::ptr::null_mut();
            ManuallyDrop::drop(&mut self.memory);
            ManuallyDrop::drop(&mut self.id);
        }
        exposed
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        drop(self.end(None));
    }
}
