//! Which process a value was made in.
//!
//! After `fork(2)` the child has its parent's memory and descriptors, and of its threads only the one that forked. Whatever the parent's
//! other threads were doing stays half done in the child for ever, locks included. And what the child has is not its own: a byte that it
//! sends on its parent's connection, or a lease that it gives back, breaks reads of the parent.
//!
//! So the child leaves all of it alone. [`generation`] is another number in the child from the first moment on: a handler that the C
//! library calls between `fork` and its return counts it up, whoever forks. A value [`OfProcess`] is only shown to
//! the process that made it, and only dropped there. In a child it is forgotten: its memory stays allocated, which costs nothing that
//! the fork did not copy.
//!
//! One thing of the parent's does concern others while a child has it: a worker on this host takes the end of a reader's socket as the end
//! of its leases, and the socket ends when the last process closes it. The same handler closes those ([`forebay_shm::inherited`]). It
//! also forgets how many of its parent's threads were waiting for workers ([`driving`]).

use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_client::driving;
use forebay_shm::inherited;

static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The number of this process among those that forked from one another: another one in a child than in its parent.
#[must_use]
pub fn generation() -> u64 {
    watch();
    GENERATION.load(Ordering::Relaxed)
}

/// Has the C library tell of forks. What was made before the first call is told apart all the same: it was made by one that called this.
fn watch() {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        // SAFETY: the handlers are functions of this library, which is never unloaded. That of the child does only what is safe in one of
        // a process with threads: it changes atomics and closes descriptors.
        let refused = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        if refused != 0 {
            tracing::warn!(errno = refused, "forks are not noticed: use no session in a forked process");
        }
    });
}

extern "C" fn before() {
    inherited::before_fork();
}

extern "C" fn in_parent() {
    inherited::after_fork_in_parent();
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    inherited::after_fork_in_child();
    driving::after_fork_in_child();
}

/// A value that only the process that made it uses and drops.
#[derive(Debug)]
pub struct OfProcess<T> {
    generation: u64,
    value: ManuallyDrop<T>,
}

impl<T> OfProcess<T> {
    /// Of this process.
    pub fn new(value: T) -> Self {
        Self { generation: generation(), value: ManuallyDrop::new(value) }
    }

    /// The value; `None` in a process that was forked from the one that made it.
    pub fn get(&self) -> Option<&T> {
        self.is_ours().then(|| &*self.value)
    }

    /// The value, to be changed; `None` in a process that was forked from the one that made it.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        if self.is_ours() { Some(&mut *self.value) } else { None }
    }

    /// Whether this process made it.
    pub fn is_ours(&self) -> bool {
        self.generation == GENERATION.load(Ordering::Relaxed)
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: it is dropped nowhere else, and not used after this.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// In a child: the random numbers of this thread, which it has of its parent, are no longer those that its parent draws.
pub fn renew_random_numbers() {
    if rand::rng().reseed().is_err() {
        tracing::warn!(
            "the system gives no random numbers: this process draws the same as the one that it was forked from"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    use super::*;

    /// What `check` says in a child, which ends without running anything of this program's.
    fn in_forked_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls `check` and ends: it takes no lock that another thread may hold, but for those of `malloc`, which the C
        // library has in order.
        match unsafe { libc::fork() } {
            0 => {
                let held = catch_unwind(AssertUnwindSafe(check)).unwrap_or(false);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!held)) }
            }
            child => {
                let mut status = 0;
                // SAFETY: the child is ours, and `status` is ours to write to.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
            }
        }
    }

    #[test]
    fn a_forked_child_neither_sees_nor_drops_what_is_its_parents() {
        let inner = Rc::new(());
        let value = OfProcess::new(Rc::clone(&inner));
        assert!(value.get().is_some());
        let before = generation();
        let is_left_alone = in_forked_child(|| {
            let is_hidden = generation() != before && value.get().is_none();
            // SAFETY: read as a move; the parent's copy is in another process, and this one ends with the test.
            drop(unsafe { std::ptr::read(&value) });
            is_hidden && Rc::strong_count(&inner) == 2
        });
        assert!(is_left_alone);
        assert_eq!((generation(), Rc::strong_count(&inner)), (before, 2));
        drop(value);
        assert_eq!(Rc::strong_count(&inner), 1);
    }
}
