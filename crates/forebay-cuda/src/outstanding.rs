//! Copies that may still write to memory of a device.

use std::sync::Arc;

use forebay_locks::{Condvar, Mutex};

/// The copies of one transfer. When this is dropped, none of them is under way any more: it waits for that.
///
/// It waits as long as the device takes. There is no deadline: the memory is somebody else's afterwards, and a device that does not
/// answer may write there still. A context that breaks ends its copies, with an error.
#[derive(Debug, Default)]
pub struct Outstanding(Arc<Count>);

/// One copy, to be dropped once it has ended.
#[derive(Debug)]
pub struct Ticket(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    copies: Mutex<usize>,
    ended: Condvar,
}

impl Outstanding {
    /// One more.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        *self.0.copies.lock() += 1;
        Ticket(Arc::clone(&self.0))
    }

    /// Waits until there are none.
    pub fn wait(&self) {
        let mut copies = self.0.copies.lock();
        while *copies > 0 {
            copies = self.0.ended.wait(copies);
        }
    }
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.wait();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        *self.0.copies.lock() -= 1;
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn it_is_dropped_when_the_last_copy_has_ended() {
        let outstanding = Outstanding::default();
        let (first, second) = (outstanding.ticket(), outstanding.ticket());
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                drop(first);
                ended.store(true, Ordering::SeqCst);
                drop(second);
            });
            drop(outstanding);
            assert!(ended.load(Ordering::SeqCst));
        });
    }
}
