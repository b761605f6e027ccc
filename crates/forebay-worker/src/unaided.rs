//! Blocks that readers want without the help of other workers ([`Flags::UNAIDED`](forebay_transport::Flags::UNAIDED)):
//! a worker that would be asked keeps them waiting.
//!
//! A miss is fetched once for all its readers. So it is the block that is marked and not the fetch: a fetch that already
//! waits for a peer when such a reader comes stops waiting, and goes to the origin.

use std::collections::HashMap;
use std::pin::pin;

use forebay_locks::Mutex;
use forebay_types::BlockKey;
use tokio::sync::Notify;

/// See above. As many entries as there are such requests under way.
#[derive(Default)]
pub(crate) struct Unaided {
    readers: Mutex<HashMap<BlockKey, usize>>,
    more: Notify,
}

/// A reader of that kind, until it is dropped.
pub(crate) struct UnaidedReader<'a> {
    of: &'a Unaided,
    key: BlockKey,
}

impl Unaided {
    /// A reader that wants `key` without help begins.
    pub(crate) fn begin(&self, key: BlockKey) -> UnaidedReader<'_> {
        *self.readers.lock().entry(key).or_default() += 1;
        self.more.notify_waiters();
        UnaidedReader { of: self, key }
    }

    /// Waits until there is a reader that wants `key` without help.
    pub(crate) async fn wanted(&self, key: &BlockKey) {
        loop {
            let mut more = pin!(self.more.notified());
            // What begins from here on is noticed.
            more.as_mut().enable();
            if self.readers.lock().contains_key(key) {
                return;
            }
            more.await;
        }
    }
}

impl Drop for UnaidedReader<'_> {
    fn drop(&mut self) {
        let mut readers = self.of.readers.lock();
        if let Some(count) = readers.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                readers.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use forebay_types::FileId;

    fn key(index: u64) -> BlockKey {
        BlockKey { file: FileId([1; 16]), index }
    }

    #[tokio::test]
    async fn a_block_is_wanted_without_help_while_there_is_such_a_reader_of_it() {
        let (unaided, wanted) = (Unaided::default(), key(1));
        let mut one = pin!(unaided.wanted(&wanted));
        assert!(one.as_mut().now_or_never().is_none());
        let elsewhere = unaided.begin(key(2));
        assert!(one.as_mut().now_or_never().is_none());
        let readers = [unaided.begin(wanted), unaided.begin(wanted)];
        one.await;
        let [first, second] = readers;
        drop(first);
        unaided.wanted(&wanted).await;
        drop((second, elsewhere));
        assert!(unaided.wanted(&wanted).now_or_never().is_none());
        assert!(unaided.readers.lock().is_empty());
    }
}
