//! The classic channel: threads that read requests from `/dev/fuse`, one after the other.
//!
//! After a short read a thread may busy-poll for the next (`busy_poll.rs`); long ones it may answer through a pipe (`pipe.rs`).
//!
//! Where rings are live one such thread stays, for what a ring does not carry: references given back, interrupts, and what the
//! kernel sends before the rings are ready.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forebay_locks::heartbeat::Pulse;
use rustix::io::Errno as SystemErrno;
use tracing::{debug, error};

use crate::channel::busy_poll::{BusyPoll, SHORT};
use crate::channel::descriptor::Descriptor;
use crate::channel::pause::{Pause, Stopped};
use crate::channel::pipe::Pipe;
use crate::errno::Errno;
use crate::protocol::abi::{MIN_BUFFER, opcode};
use crate::protocol::request::{Header, Malformed, Operation, parse, split};
use crate::reply::{Dispatch, Request};
use crate::served::Served;

/// Bytes of a message beside what is written: more than any header, head and names take, and a page.
const BESIDE_DATA: usize = 4096;

/// What a message was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Was {
    /// One of many.
    Another,
    /// A read of few bytes: the program that asked may ask again in no time.
    Short,
    /// The last one.
    Last,
}

/// Serves until the mount has ended, or threads are to pause.
///
/// # Errors
/// When the device cannot be read though the mount is there.
pub(crate) fn serve<D: Dispatch>(
    descriptor: &Arc<Descriptor>,
    awake: Option<&BusyPoll>,
    pipe: Option<&Pipe>,
    dispatch: &D,
    max_write: u32,
    served: &Served,
    pause: &Pause,
) -> io::Result<Stopped> {
    // Only what is written to takes memory: most messages are short.
    let mut buffer = vec![0; (max_write as usize + BESIDE_DATA).max(MIN_BUFFER)];
    let mut was = Was::Another;
    let pulse = Pulse::of_this_thread();
    while !pause.is_asked() {
        let soon = awake.filter(|_| was == Was::Short);
        let (from, read) = match soon.and_then(|awake| Some((awake.descriptor(), awake.read(&mut buffer)?))) {
            Some(awake) => awake,
            None => (descriptor, descriptor.read(&mut buffer)),
        };
        let length = match read {
            Ok(length) => length,
            Err(error) => match SystemErrno::from_io_error(&error) {
                // A signal; or the program that asked was killed before the request was read.
                Some(SystemErrno::INTR | SystemErrno::AGAIN | SystemErrno::NOENT) => continue,
                // Unmounted, or the connection was aborted.
                Some(SystemErrno::NODEV | SystemErrno::CONNABORTED) => return Ok(Stopped::Ended),
                _ => return Err(error),
            },
        };
        // No more than there was room for.
        let message = buffer.get(..length).unwrap_or_default();
        pulse.begin();
        was = take(from, pipe, dispatch, message, served);
        pulse.end();
        if was == Was::Last {
            return Ok(Stopped::Ended);
        }
    }
    Ok(Stopped::Paused)
}

/// Sees to one message.
#[inline]
fn take<D: Dispatch>(
    descriptor: &Arc<Descriptor>,
    pipe: Option<&Pipe>,
    dispatch: &D,
    message: &[u8],
    served: &Served,
) -> Was {
    let header = match Header::parse(message) {
        Ok(header) => header,
        Err(malformed) => {
            // It is not known which request to answer.
            error!(length = message.len(), %malformed, "the kernel sent what is no request");
            served.count_malformed();
            return Was::Another;
        }
    };
    match header.opcode {
        opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::NOTIFY_REPLY => {
            if let Err(malformed) = take_notice(dispatch, &header, message, served) {
                error!(?header, %malformed, "the kernel sent what is no request");
                served.count_malformed();
            }
            Was::Another
        }
        opcode::DESTROY => {
            descriptor.answer(header.unique, Ok(&[]));
            Was::Last
        }
        opcode::INIT => {
            debug!("the kernel begins a second time");
            descriptor.answer(header.unique, Err(Errno::EIO));
            Was::Another
        }
        _ => {
            let request = Request::device(header, message, descriptor, pipe);
            let is_short = matches!(request.operation(), Ok(Operation::Read { size, .. }) if size <= SHORT);
            contained(header.opcode, || dispatch.dispatch(request));
            if is_short { Was::Short } else { Was::Another }
        }
    }
}

/// What is not answered.
fn take_notice<D: Dispatch>(dispatch: &D, header: &Header, message: &[u8], served: &Served) -> Result<(), Malformed> {
    let (head, tail) = split(header, message)?;
    match parse(header.opcode, head, tail)? {
        Operation::Forget { lookups } => contained(header.opcode, || dispatch.forget(header.node, lookups)),
        Operation::BatchForget(forgets) => contained(header.opcode, || {
            forgets.iter().for_each(|(node, lookups)| dispatch.forget(node, lookups));
        }),
        Operation::Interrupt { unique } => {
            served.count_interrupt();
            contained(header.opcode, || dispatch.interrupted(unique));
        }
        _ => {}
    }
    Ok(())
}

/// Runs `work`. A panic in it is logged, and ends nothing but it.
pub(crate) fn contained(operation: u32, work: impl FnOnce()) {
    // The request is dropped, and so answered, while the panic unwinds; what else `work` sees is the dispatch's, which has to
    // be fit to be used by other threads after one of them has panicked.
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        error!(operation, "a request panicked; it is answered with an i/o error");
    }
}
