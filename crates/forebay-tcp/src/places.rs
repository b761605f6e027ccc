//! The places that one connection has among the requests of all connections of a server.
//!
//! A connection has those of its requests in flight, and while there are any it keeps those of the ones that have left for the
//! next: so a busy connection touches nothing that all share.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::Semaphore;
use tokio_util::sync::PollSemaphore;

/// Places that a connection keeps besides twice those that it uses.
const SPARE: usize = 4;

/// Those of one connection. They go back to the others when it is dropped.
pub(crate) struct Places {
    all: Arc<Semaphore>,
    /// Waits for one more.
    waiting: PollSemaphore,
    held: usize,
}

impl Places {
    /// None yet, of `all`: a permit for each.
    pub(crate) fn new(all: &Arc<Semaphore>) -> Self {
        Self { all: Arc::clone(all), waiting: PollSemaphore::new(Arc::clone(all)), held: 0 }
    }

    /// Whether there is a place for one more than `in_flight`, which is taken if need be.
    pub(crate) fn take(&mut self, in_flight: usize) -> bool {
        if self.held <= in_flight {
            let Ok(place) = self.all.try_acquire() else { return false };
            place.forget();
            self.held += 1;
        }
        true
    }

    /// Waits for a place. False when there will be none: the semaphore was closed.
    pub(crate) fn poll_take(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let Some(place) = ready!(self.waiting.poll_acquire(context)) else { return Poll::Ready(false) };
        place.forget();
        self.held += 1;
        Poll::Ready(true)
    }

    /// Gives back those that the `in_flight` do not need, since a connection may not look at its places again for long. When more
    /// than `plenty` are left for the others, it keeps those that it may soon need.
    pub(crate) fn give_back(&mut self, in_flight: usize, plenty: usize) {
        let are_plenty = in_flight > 0 && self.all.available_permits() > plenty;
        self.keep(if are_plenty { 2 * in_flight + SPARE } else { in_flight });
    }

    /// Gives back all but so many.
    pub(crate) fn keep(&mut self, count: usize) {
        if self.held > count {
            self.all.add_permits(self.held - count);
            self.held = count;
        }
    }

    /// Whether there is none for anybody: others may wait for those that are held here.
    pub(crate) fn are_all_taken(&self) -> bool {
        self.all.available_permits() == 0
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.keep(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_keeps_places_only_while_there_are_plenty_for_others() {
        let all = Arc::new(Semaphore::new(8));
        let mut places = Places::new(&all);
        assert!((0..8).all(|in_flight| places.take(in_flight)));
        assert!(places.take(7) && !places.take(8) && places.are_all_taken());
        places.give_back(1, 4);
        assert_eq!(all.available_permits(), 7, "others may wait");
        assert!((1..7).all(|in_flight| places.take(in_flight)));
        places.give_back(1, 0);
        assert_eq!(all.available_permits(), 2, "twice those in use, and some to spare");
        places.give_back(0, 0);
        assert_eq!(all.available_permits(), 8, "an idle one keeps none");
    }

    #[tokio::test]
    async fn what_is_waited_for_counts_and_goes_back_with_the_connection() {
        let all = Arc::new(Semaphore::new(1));
        let (mut one, mut other) = (Places::new(&all), Places::new(&all));
        assert!(one.take(0) && !other.take(0));
        let waits = std::future::poll_fn(|context| other.poll_take(context));
        drop(one);
        assert!(waits.await);
        assert!(all.available_permits() == 0 && other.take(0));
        drop(other);
        assert_eq!(all.available_permits(), 1);
    }
}
