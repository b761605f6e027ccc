//! Time, randomness and waiting, as the thread of a simulation sees them.
//!
//! The standard library, tokio and `rand` ask libc for the time, for random bytes, and to wait. This program defines those three
//! functions itself, so all of them ask here: in the thread that simulates the time is the simulated one, bytes come from the
//! seed, and a call that would wait notes for how long and returns at once. Every other thread gets what the kernel says. So
//! nothing of the product had to be changed to be simulated, and nothing of it can look at a clock that is not simulated.
//!
//! What a thread asks is a function of the seed alone only in a process that has done nothing else: tokio counts the runtimes of a
//! process, and hashes the count. Therefore one process runs one seed.

// The linker sees them, and no other crate.
#![allow(unreachable_pub)]

use std::cell::{Cell, RefCell};
use std::task::Waker;

/// Nanoseconds on the monotonic clock when a simulation begins: any time that has some before it.
const BOOT: u64 = 1_000_000 * SECOND;
/// Nanoseconds since 1970 then.
const WALL: i64 = 1_800_000_000 * SECOND as i64;
const SECOND: u64 = 1_000_000_000;

/// A runtime that looks for work so often without time passing never rests.
pub(crate) const RESTLESS: u64 = 200_000;

thread_local! {
    /// Nanoseconds since the simulation began; nothing in threads that do not simulate.
    static NOW: Cell<Option<u64>> = const { Cell::new(None) };
    /// How far the wall clock of the node that runs is off.
    static SKEW: Cell<i64> = const { Cell::new(0) };
    static RANDOM: Cell<u64> = const { Cell::new(0) };
    /// How long the runtime that has nothing to do would wait.
    static WAIT: Cell<Option<Wait>> = const { Cell::new(None) };
    /// Times that a runtime looked for news without waiting, since time passed.
    static LOOKS: Cell<u64> = const { Cell::new(0) };
    static WAKER: RefCell<Option<Waker>> = const { RefCell::new(None) };
}

/// For how long there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Until something comes from elsewhere.
    Forever,
    /// For so many milliseconds.
    Milliseconds(u32),
}

/// This thread simulates from now on, with what follows from `seed`.
pub(crate) fn begin(seed: u64) {
    RANDOM.set(seed);
    NOW.set(Some(0));
}

/// Nanoseconds since the simulation began.
pub(crate) fn now() -> u64 {
    NOW.get().unwrap_or(0)
}

/// It is this time from now on.
pub(crate) fn set_now(nanos: u64) {
    debug_assert!(nanos >= now());
    NOW.set(Some(nanos));
    LOOKS.set(0);
}

/// The wall clock is off by so many nanoseconds from now on.
pub(crate) fn set_skew(nanos: i64) {
    SKEW.set(nanos);
}

/// What to wake when the runtime has nothing to do.
pub(crate) fn wake_when_idle(waker: &Waker) {
    WAKER.with_borrow_mut(|known| *known = Some(waker.clone()));
}

/// How long the runtime would have waited, if it had nothing to do since this was asked last.
pub(crate) fn take_wait() -> Option<Wait> {
    WAIT.take()
}

/// How often runtimes looked for news since time passed: one that never rests looks for ever.
pub(crate) fn looks() -> u64 {
    LOOKS.get()
}

fn next_random() -> u64 {
    // SplitMix64 (Steele, Lea and Flood, 2014).
    let state = RANDOM.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    RANDOM.set(state);
    let mut mixed = state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// As libc's.
///
/// # Safety
/// `out` points to a `timespec` that may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, out: *mut libc::timespec) -> libc::c_int {
    let Some(now) = NOW.get() else {
        // SAFETY: the kernel writes a `timespec` to `out`, which the caller vouches for.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, out) } as libc::c_int;
    };
    let nanos = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => WALL + now as i64 + SKEW.get(),
        _ => (BOOT + now) as i64,
    };
    let (tv_sec, tv_nsec) = (nanos.div_euclid(SECOND as i64), nanos.rem_euclid(SECOND as i64));
    // SAFETY: as above.
    unsafe { out.write(libc::timespec { tv_sec, tv_nsec }) };
    0
}

/// As libc's.
///
/// # Safety
/// `length` bytes from `bytes` on may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(
    bytes: *mut libc::c_void,
    length: libc::size_t,
    flags: libc::c_uint,
) -> libc::ssize_t {
    if NOW.get().is_none() {
        // SAFETY: the kernel writes up to `length` bytes, which the caller vouches for.
        return unsafe { libc::syscall(libc::SYS_getrandom, bytes, length, flags) } as libc::ssize_t;
    }
    if length > 0 {
        // SAFETY: the caller vouches for so many bytes, and for nothing else seeing them meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts_mut(bytes.cast::<u8>(), length) };
        bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&next_random().to_le_bytes()[..chunk.len()]));
    }
    length as libc::ssize_t
}

/// As libc's, of which tokio's runtimes wait in this one. In a simulation nothing comes from outside of it, so there are no events;
/// the wait is noted, and the future that drives the runtime is woken.
///
/// # Safety
/// `events` has room for `most` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    epoll: libc::c_int,
    events: *mut libc::epoll_event,
    most: libc::c_int,
    timeout: libc::c_int,
) -> libc::c_int {
    if NOW.get().is_none() {
        let no_mask = std::ptr::null::<libc::sigset_t>();
        // SAFETY: as the caller vouches; without a mask of signals this is `epoll_wait`.
        let found = unsafe { libc::syscall(libc::SYS_epoll_pwait, epoll, events, most, timeout, no_mask, 8usize) };
        return found as libc::c_int;
    }
    LOOKS.set(LOOKS.get() + 1);
    if timeout == 0 && LOOKS.get() <= RESTLESS {
        return 0;
    }
    WAIT.set(Some(u32::try_from(timeout).map_or(Wait::Forever, Wait::Milliseconds)));
    if let Some(waker) = WAKER.take() {
        waker.wake();
    }
    0
}
