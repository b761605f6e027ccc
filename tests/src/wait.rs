//! Waiting for a condition, always with a deadline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const EVERY: Duration = Duration::from_millis(10);

/// Tells threads that go on until they are told otherwise, when it is dropped: also where the thread fails that would have told them,
/// which waits for them then.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until `condition` holds.
///
/// # Panics
/// When it does not within `limit`.
#[track_caller]
pub fn eventually(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    once(what, limit, || condition().then_some(()));
}

/// Waits until `poll` has something, and gives it.
///
/// # Panics
/// When it has nothing within `limit`.
#[track_caller]
pub fn once<T>(what: &str, limit: Duration, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::sleep(EVERY);
    }
}
