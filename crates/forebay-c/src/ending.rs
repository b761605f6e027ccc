//! Who is told that an operation has ended: eventfds of the caller's.
//!
//! The library keeps descriptors of its own of them. So whatever becomes of the caller's number, nothing is ever written to another file.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use forebay_locks::Mutex;
use forebay_session::Error;
use rustix::io::Errno;

/// Whether an operation has ended, and who is told when it does.
#[derive(Default)]
pub(crate) struct Ending(Mutex<State>);

#[derive(Default)]
struct State {
    is_over: bool,
    waiting: Vec<OwnedFd>,
}

impl Ending {
    /// Whether it has: who asks for what came of it then waits for no work any more.
    pub(crate) fn is_over(&self) -> bool {
        self.0.lock().is_over
    }

    /// Has 1 added to an eventfd once it has ended, or now if it has.
    pub(crate) fn tell(&self, eventfd: OwnedFd) {
        let mut state = self.0.lock();
        if state.is_over {
            add_one(&eventfd);
        } else {
            state.waiting.push(eventfd);
        }
    }

    fn over(&self) {
        let waiting = {
            let mut state = self.0.lock();
            state.is_over = true;
            std::mem::take(&mut state.waiting)
        };
        waiting.iter().for_each(add_one);
    }
}

/// A part of an operation's task, which is dropped with it, whatever becomes of that: it has ended then.
pub(crate) struct AtEnd(Arc<Ending>);

impl AtEnd {
    /// Of the operation whose end it is.
    pub(crate) fn of(ending: &Arc<Ending>) -> Self {
        Self(Arc::clone(ending))
    }
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        self.0.over();
    }
}

/// A descriptor of the library's own of the caller's eventfd.
///
/// # Errors
/// EBADF; EINVAL for a descriptor of something else.
pub(crate) fn own(eventfd: RawFd) -> Result<OwnedFd, Error> {
    let refused = |errno: Errno| Error::system("cannot use the descriptor that is to be told", &io::Error::from(errno));
    if eventfd < 0 {
        return Err(refused(Errno::BADF));
    }
    // SAFETY: it is looked at by this one call, which fails if there is no such descriptor.
    let given = unsafe { BorrowedFd::borrow_raw(eventfd) };
    let own = rustix::io::fcntl_dupfd_cloexec(given, 0).map_err(refused)?;
    match std::fs::read_link(format!("/proc/self/fd/{}", own.as_raw_fd())) {
        Ok(what) if what.as_os_str() != "anon_inode:[eventfd]" => {
            let what = format!("the descriptor {eventfd} that is to be told is {}", what.display());
            Err(Error::argument(what, "give one that eventfd(2) made"))
        }
        // Without /proc nobody can tell.
        _ => Ok(own),
    }
}

/// What is at its limit is readable already, so an error is none.
fn add_one(eventfd: &OwnedFd) {
    let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn made() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
    }

    /// What was added since the last look.
    fn count(eventfd: &OwnedFd) -> u64 {
        let mut count = [0_u8; 8];
        match rustix::io::read(eventfd, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                0
            }
        }
    }

    #[test]
    fn whoever_asks_before_or_after_the_end_is_told_once() {
        let (ending, told) = (Arc::new(Ending::default()), made());
        let at_end = AtEnd::of(&ending);
        ending.tell(own(told.as_raw_fd()).unwrap());
        ending.tell(own(told.as_raw_fd()).unwrap());
        assert_eq!((ending.is_over(), count(&told)), (false, 0));
        drop(at_end);
        assert_eq!((ending.is_over(), count(&told)), (true, 2));
        ending.tell(own(told.as_raw_fd()).unwrap());
        assert_eq!((count(&told), count(&told)), (1, 0));
    }

    #[test]
    fn a_descriptor_that_its_owner_closes_is_told_and_no_other_one() {
        let (ending, told) = (Arc::new(Ending::default()), made());
        let at_end = AtEnd::of(&ending);
        let other = own(told.as_raw_fd()).unwrap();
        ending.tell(own(told.as_raw_fd()).unwrap());
        drop(told);
        // It may have the number by now.
        let mut another = tempfile::tempfile().unwrap();
        drop(at_end);
        assert_eq!(count(&other), 1);
        let mut written = Vec::new();
        another.read_to_end(&mut written).unwrap();
        assert!(written.is_empty());
    }

    #[test]
    fn what_is_no_eventfd_is_refused() {
        assert_eq!(own(-1).unwrap_err().errno, libc::EBADF);
        assert_eq!(own(RawFd::MAX).unwrap_err().errno, libc::EBADF);
        let file = tempfile::tempfile().unwrap();
        let error = own(file.as_raw_fd()).unwrap_err();
        assert_eq!(error.errno, libc::EINVAL);
        assert!(error.to_string().contains("eventfd(2)"), "{error}");
    }
}
