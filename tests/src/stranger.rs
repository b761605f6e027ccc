//! Another user of the machine.

use rustix::thread::{Gid, Uid, set_thread_gid, set_thread_groups, set_thread_uid};

/// The user of those who are nobody in particular.
pub const STRANGER: u32 = 65_534;

/// What `work` gives when another user does it, in a thread of its own: the kernel knows users by thread. `None`, said,
/// where we may not become one.
///
/// # Panics
/// When `work` does.
pub fn as_stranger<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let becoming = || {
        set_thread_groups(&[])?;
        set_thread_gid(Gid::from_raw(STRANGER))?;
        set_thread_uid(Uid::from_raw(STRANGER))
    };
    let thread = std::thread::spawn(move || becoming().map(|()| work()));
    match thread.join().expect("another user's work") {
        Ok(done) => Some(done),
        Err(error) => {
            crate::skipped(&format!("cannot become another user: {error}"));
            None
        }
    }
}
