//! Locks that a forked child may use: those of the standard library, which a holder's panic does not poison; and [`heartbeat`], by which
//! it is seen that a thread waits for one for ever. And how long a thread that waits for a peer busy-polls before it sleeps: [`spin`].
//!
//! A lock of `std::sync` is a futex and nothing else. `parking_lot`, whose interface this is, keeps the threads that wait for any lock of
//! the process in one table. After `fork(2)` the table of the child still names threads that are not there, by addresses on stacks that are
//! given to others: the next thread that waits in the same place of the table follows them (parking_lot's issue 515). Python forks
//! processes whose threads read (`forebay_session::fork`), so no lock of ours may be of that kind.

pub mod heartbeat;
pub mod spin;

use std::fmt;
use std::sync::{self, PoisonError, TryLockError};
use std::time::{Duration, Instant};

pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A lock with one holder.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// One that nobody holds.
    #[inline]
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// What it guards.
    #[inline]
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until nobody else holds it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` when another thread holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// What it guards, which nobody else sees.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: fmt::Debug + ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(value) => f.debug_tuple("Mutex").field(&&*value).finish(),
            None => f.write_str("Mutex(<locked>)"),
        }
    }
}

/// A lock with one holder that changes what it guards, or any number that read it.
#[derive(Default)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// One that nobody holds.
    #[inline]
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until nobody changes it. A thread must not hold it already: it may wait behind one that waits to change it.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody else holds it.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it guards, which nobody else sees.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: fmt::Debug + ?Sized> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.try_read() {
            Ok(value) => f.debug_tuple("RwLock").field(&&*value).finish(),
            Err(_) => f.write_str("RwLock(<locked>)"),
        }
    }
}

/// Where threads wait for a change of what a [`Mutex`] guards. They may wake without one, and look again.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// One that nobody waits for.
    #[must_use]
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Waits for a change.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, at most for `time`; whether that has passed.
    pub fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, time: Duration) -> (MutexGuard<'a, T>, bool) {
        let (guard, timeout) = self.0.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner);
        (guard, timeout.timed_out())
    }

    /// Waits for a change, at most until `deadline`; whether that has passed.
    pub fn wait_until<'a, T>(&self, guard: MutexGuard<'a, T>, deadline: Instant) -> (MutexGuard<'a, T>, bool) {
        self.wait_for(guard, deadline.saturating_duration_since(Instant::now()))
    }

    /// Wakes one of those that wait.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    use super::*;

    #[test]
    fn a_holder_that_panics_leaves_its_lock_to_others() {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(1));
        let panics = AssertUnwindSafe(|| {
            *mutex.lock() = 2;
            *lock.write() = 2;
            let _held = (mutex.lock(), lock.write());
            panic!("as it should");
        });
        assert!(catch_unwind(panics).is_err());
        assert_eq!(*mutex.lock(), 2);
        assert_eq!(*mutex.try_lock().unwrap(), 2);
        assert_eq!(*lock.read(), 2);
        *lock.write() = 3;
        assert_eq!(*lock.read(), 3);
    }

    #[test]
    fn a_lock_that_is_held_is_not_waited_for_by_those_who_only_try_or_print_it() {
        let (mutex, lock) = (Mutex::new(7), RwLock::new(8));
        assert_eq!(format!("{mutex:?} {lock:?}"), "Mutex(7) RwLock(8)");
        let _held = (mutex.lock(), lock.write());
        assert!(mutex.try_lock().is_none());
        assert_eq!(format!("{mutex:?} {lock:?}"), "Mutex(<locked>) RwLock(<locked>)");
    }

    #[test]
    fn a_change_wakes_those_who_wait_and_a_deadline_ends_their_wait() {
        let (value, changed) = (Mutex::new(0), Condvar::new());
        thread::scope(|scope| {
            scope.spawn(|| {
                *value.lock() = 1;
                changed.notify_all();
            });
            let mut seen = value.lock();
            while *seen == 0 {
                seen = changed.wait(seen);
            }
            let (seen, is_late) = changed.wait_until(seen, Instant::now());
            assert!(is_late && *seen == 1);
        });
    }
}
