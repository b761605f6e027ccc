//! What a fuzzer sends over the sockets of a hand-over, of a keeper and of a launcher.

use std::fmt::Debug;
use std::io::{IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::kept::{AT_ONCE, Coming, FromKeeper, ToKeeper};
use crate::message::{Ask, Say};
use crate::restart::Restart;
use crate::wire::Wire;

/// Descriptors that go with one piece, at most: more than anybody takes.
const MAX: usize = 12;

/// Who listens.
#[derive(Clone, Copy, Debug)]
pub enum Listener {
    /// A keeper, to a daemon.
    Keeper,
    /// A daemon, to its keeper.
    Daemon,
    /// A launcher, to a keeper.
    Launcher,
    /// The process that gives a mount away.
    Giving,
    /// The one that takes it.
    Taking,
}

/// What is sent at once.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// What it says.
    pub bytes: &'a [u8],
    /// How many descriptors come with it.
    pub descriptors: u8,
    /// Whether it is a message, before which its header goes.
    pub is_message: bool,
}

/// These pieces are sent, and then the connection ends.
///
/// # Panics
/// When a message is not written again as it was, more comes with one than may, something is taken for whole that was announced otherwise,
/// or a descriptor stays open that nobody has.
pub fn messages(listener: Listener, pieces: &[Piece<'_>]) {
    let (ours, theirs) = pair();
    let (watched, passed) = pair();
    let wire = match listener {
        Listener::Keeper | Listener::Daemon | Listener::Launcher => Wire::new(ours),
        Listener::Giving | Listener::Taking => Wire::of_hand_over(ours),
    };
    let wire = wire.unwrap_or_else(|error| unreachable!("{error}"));
    theirs.set_nonblocking(true).unwrap_or_else(|error| unreachable!("{error}"));
    for piece in pieces {
        let count = usize::from(piece.descriptors).min(MAX);
        let mut bytes = Vec::new();
        if piece.is_message {
            bytes.extend_from_slice(&wire.header(piece.bytes.len() as u32, count as u16));
        }
        bytes.extend_from_slice(piece.bytes);
        // What does not fit is not waited for.
        if !sends(&theirs, &bytes, &passed, count) {
            break;
        }
    }
    drop((theirs, passed));
    match listener {
        Listener::Keeper => keeper(wire),
        Listener::Daemon => hear::<FromKeeper>(wire, |_, _| {}),
        Listener::Launcher => hear::<Restart>(wire, |_, _| {}),
        Listener::Giving => hear::<Ask>(wire, |_, _| {}),
        Listener::Taking => hear::<Say>(wire, |_, _| {}),
    }
    watched.set_nonblocking(true).unwrap_or_else(|error| unreachable!("{error}"));
    // Its other end, which came any number of times.
    assert!(matches!((&watched).read(&mut [0]), Ok(0)), "a descriptor that came is still open");
}

/// Takes what a mount lives by, as a keeper does.
fn keeper(wire: Wire) {
    let mut coming: Option<(u32, Coming)> = None;
    hear::<ToKeeper>(wire, |said, descriptors| match said {
        ToKeeper::Keep { clones, .. } => {
            coming = Coming::new(clones, descriptors).ok().map(|first| (clones, first));
        }
        ToKeeper::Clones => {
            if let Some((clones, mut so_far)) = coming.take()
                && so_far.more(descriptors).is_ok()
            {
                match so_far.whole() {
                    Ok(kept) => assert_eq!(kept.clones.len(), clones as usize),
                    Err(so_far) => coming = Some((clones, so_far)),
                }
            }
        }
        ToKeeper::Take | ToKeeper::Left | ToKeeper::Forget => {}
    });
}

/// Hears messages until there is none, or none that makes sense.
fn hear<M>(mut wire: Wire, mut heard: impl FnMut(M, Vec<OwnedFd>))
where
    M: Serialize + DeserializeOwned + PartialEq + Debug,
{
    while let Ok(Some((message, descriptors))) = wire.receive::<M>(None) {
        assert!(descriptors.len() <= AT_ONCE, "{} descriptors", descriptors.len());
        let written = postcard::to_stdvec(&message).unwrap_or_else(|error| unreachable!("{error}"));
        assert_eq!(postcard::from_bytes::<M>(&written).ok().as_ref(), Some(&message));
        heard(message, descriptors);
    }
}

/// Whether all of it went.
fn sends(socket: &UnixStream, bytes: &[u8], passed: &UnixStream, count: usize) -> bool {
    let descriptors = vec![passed.as_fd(); count];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    sent.is_ok_and(|sent| sent == bytes.len())
}

fn pair() -> (UnixStream, UnixStream) {
    UnixStream::pair().unwrap_or_else(|error| unreachable!("{error}"))
}
