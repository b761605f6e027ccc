//! What a daemon says to a keeper, and what is kept.
//!
//! A keeper is never started anew while its mount is there, so later versions of the program talk to it: what is said here stays
//! as it is, and new variants are put behind the others.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use crate::peer::peer_of;
use crate::restart::Restart;
use crate::wire::{Wire, WireError};

/// How long a keeper may take to answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// Descriptors that go with one message.
pub(crate) const AT_ONCE: usize = 8;
/// Descriptors that requests are read from, at most: two for each of a thousand threads.
const MAX_CLONES: u32 = 4096;

/// What a mount lives by.
#[derive(Debug)]
pub struct Kept {
    /// What [`crate::Journal`] writes to.
    pub memory: OwnedFd,
    /// The connection to the kernel.
    pub connection: OwnedFd,
    /// Further descriptors of it, from which requests are read: what was read from one, and not answered, ends with it.
    pub clones: Vec<OwnedFd>,
}

impl Kept {
    /// It once more.
    ///
    /// # Errors
    /// When there are too many descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        let clones = self.clones.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        Ok(Self { memory: self.memory.try_clone()?, connection: self.connection.try_clone()?, clones })
    }

    /// Whether the kernel has ended the mount.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        // To wait for it would have each request of the mount wake us.
        is_hung_up(self.connection.as_fd())
    }
}

/// Whether the other end of it is gone.
fn is_hung_up(descriptor: BorrowedFd<'_>) -> bool {
    // Nothing is asked for, so there is only what is told unasked.
    let mut watched = [PollFd::new(&descriptor, PollFlags::empty())];
    poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Whoever has what a mount lives by while no process serves it.
pub trait Keeps: Debug + Send + Sync {
    /// What it is called in logs and counters.
    fn name(&self) -> &'static str;

    /// The process that it is, where it is one for this mount alone.
    fn process(&self) -> Option<u32>;

    /// Keeps this, in the place of what it had of the mount. This process serves from now on. May wait.
    ///
    /// # Errors
    /// When it does not take it.
    fn keep(&self, what: &Kept) -> io::Result<()>;

    /// Another process serves the mount from now on.
    fn leave(&self);

    /// Whether it knows that process by then, and so has the mount until that one has it kept, or dies. One that does not has nothing
    /// of it after [`Keeps::leave`].
    fn knows_who_is_next(&self) -> bool {
        true
    }

    /// The mount has ended: what is kept may be closed. Waits until it is.
    fn forget(&self);

    /// Whether it is there.
    fn is_there(&self) -> bool;
}

/// What a daemon says to a keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToKeeper {
    /// It serves a mount, which lives by this: the memory and the connection, which come with this message, and so many clones, which
    /// come with the next ones.
    Keep {
        /// How many.
        clones: u32,
        /// How the daemon is started again; `None`: somebody else does that.
        restart: Option<Restart>,
    },
    /// Clones.
    Clones,
    /// It wants what is held, and serves from then on.
    Take,
    /// It has given the mount to another daemon.
    Left,
    /// The mount has ended.
    Forget,
}

/// What a keeper says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromKeeper {
    /// It has all of it.
    Kept,
    /// Here it is, as in [`ToKeeper::Keep`].
    Given {
        /// How many clones come.
        clones: u32,
    },
    /// Clones.
    Clones,
    /// It holds nothing.
    Nothing,
    /// Another daemon serves the mount.
    Served,
}

/// Sends `what` after `first`, the message that it is announced by.
pub(crate) fn send_kept<M: Serialize>(wire: &mut Wire, first: &M, more: &M, what: &Kept) -> Result<(), WireError> {
    wire.send(first, &[what.memory.as_fd(), what.connection.as_fd()])?;
    for clones in what.clones.chunks(AT_ONCE) {
        let clones: Vec<_> = clones.iter().map(AsFd::as_fd).collect();
        wire.send(more, &clones)?;
    }
    Ok(())
}

/// What comes in several messages.
#[derive(Debug)]
pub(crate) struct Coming {
    what: Kept,
    clones: usize,
}

impl Coming {
    /// What is announced by a message that came with `descriptors`.
    pub(crate) fn new(clones: u32, descriptors: Vec<OwnedFd>) -> Result<Self, WireError> {
        let two = <[OwnedFd; 2]>::try_from(descriptors);
        let [memory, connection] = two.map_err(|_| WireError::Nonsense("it is not two descriptors"))?;
        if clones > MAX_CLONES {
            return Err(WireError::Nonsense("there are too many clones"));
        }
        // At most 4096.
        Ok(Self { what: Kept { memory, connection, clones: Vec::new() }, clones: clones as usize })
    }

    /// Takes further ones.
    pub(crate) fn more(&mut self, descriptors: Vec<OwnedFd>) -> Result<(), WireError> {
        let is_expected = !descriptors.is_empty() && self.what.clones.len() + descriptors.len() <= self.clones;
        self.what.clones.extend(descriptors);
        if is_expected { Ok(()) } else { Err(WireError::Nonsense("there are more clones than were announced")) }
    }

    /// All of it, if it is there; itself otherwise.
    pub(crate) fn whole(self) -> Result<Kept, Self> {
        if self.what.clones.len() == self.clones { Ok(self.what) } else { Err(self) }
    }
}

/// What a keeper has for a daemon that asks.
#[derive(Debug)]
pub enum Taken {
    /// Nothing yet.
    Nothing,
    /// The mount of a daemon that has died. This process serves it from now on.
    Given(Kept),
    /// Another daemon serves the mount.
    Served,
}

/// A keeper, as a daemon has it. When it is dropped without [`Keeps::forget`] or [`Keeps::leave`], the keeper takes the daemon to be
/// dead.
#[derive(Debug)]
pub struct KeeperLink {
    conversation: Mutex<Conversation>,
    socket: UnixStream,
    restart: Option<Restart>,
}

/// What is asked of a keeper, and what it answers, in the order in which it was asked. Nothing in an answer says to what it is one.
#[derive(Debug)]
struct Conversation {
    wire: Wire,
    /// Answers that have not begun to come: the last one is to what was asked last, those before it come late.
    awaited: u32,
    /// How long the keeper may take to answer.
    within: Duration,
}

impl Conversation {
    fn new(socket: UnixStream, within: Duration) -> io::Result<Self> {
        Ok(Self { wire: Wire::new(socket)?, awaited: 0, within })
    }

    /// Says something that is answered.
    fn ask(&mut self, what: &ToKeeper) -> Result<(), WireError> {
        self.wire.send(what, &[])?;
        self.awaited += 1;
        Ok(())
    }

    /// The same, to keep `what`.
    fn ask_to_keep(&mut self, first: &ToKeeper, what: &Kept) -> Result<(), WireError> {
        send_kept(&mut self.wire, first, &ToKeeper::Clones, what)?;
        self.awaited += 1;
        Ok(())
    }

    /// The answer to what was asked last, or its beginning; `None` when it does not come in time. What comes late is passed over, or what
    /// was asked before would be taken for done now.
    fn answer(&mut self) -> Result<Option<(FromKeeper, Vec<OwnedFd>)>, WireError> {
        let until = Instant::now() + self.within;
        while let Some((said, descriptors)) = self.wire.receive(Some(until))? {
            // The rest of an answer.
            if matches!(said, FromKeeper::Clones) {
                continue;
            }
            self.awaited = self.awaited.saturating_sub(1);
            if self.awaited == 0 {
                return Ok(Some((said, descriptors)));
            }
            debug!(?said, "the keeper answers late");
        }
        Ok(None)
    }

    /// What comes next of an answer that has begun.
    fn more(&mut self) -> Result<Option<(FromKeeper, Vec<OwnedFd>)>, WireError> {
        self.wire.receive(Some(Instant::now() + self.within))
    }
}

impl KeeperLink {
    /// Over `socket`, to a keeper that starts this process again by `restart`, if it is to.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub fn new(socket: UnixStream, restart: Option<Restart>) -> io::Result<Self> {
        let conversation = Conversation::new(socket.try_clone()?, ANSWERED_WITHIN)?;
        Ok(Self { conversation: Mutex::new(conversation), socket, restart })
    }

    /// What the keeper has.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn take(&self) -> io::Result<Taken> {
        let mut conversation = self.conversation.lock();
        conversation.ask(&ToKeeper::Take).map_err(told)?;
        match in_time(conversation.answer())? {
            (FromKeeper::Nothing, _) => Ok(Taken::Nothing),
            (FromKeeper::Served, _) => Ok(Taken::Served),
            (FromKeeper::Given { clones }, descriptors) => {
                let mut coming = Coming::new(clones, descriptors).map_err(told)?;
                loop {
                    coming = match coming.whole() {
                        Ok(kept) => return Ok(Taken::Given(kept)),
                        Err(coming) => coming,
                    };
                    match in_time(conversation.more())? {
                        (FromKeeper::Clones, descriptors) => coming.more(descriptors).map_err(told)?,
                        (other, _) => return Err(unexpected(&other)),
                    }
                }
            }
            (other, _) => Err(unexpected(&other)),
        }
    }
}

impl Keeps for KeeperLink {
    fn name(&self) -> &'static str {
        "keeper"
    }

    fn process(&self) -> Option<u32> {
        peer_of(&self.socket).ok()?.process
    }

    fn keep(&self, what: &Kept) -> io::Result<()> {
        let mut conversation = self.conversation.lock();
        let clones = u32::try_from(what.clones.len()).ok().filter(|clones| *clones <= MAX_CLONES);
        let clones = clones.ok_or_else(|| io::Error::other("there are too many threads"))?;
        let first = ToKeeper::Keep { clones, restart: self.restart.clone() };
        conversation.ask_to_keep(&first, what).map_err(told)?;
        match in_time(conversation.answer())? {
            (FromKeeper::Kept, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    fn leave(&self) {
        // It is not answered.
        if let Err(error) = self.conversation.lock().wire.send(&ToKeeper::Left, &[]) {
            debug!(%error, "the keeper does not listen");
        }
    }

    fn forget(&self) {
        let mut conversation = self.conversation.lock();
        if let Err(error) = conversation.ask(&ToKeeper::Forget) {
            // It sees for itself that the mount has ended.
            return debug!(%error, "the keeper does not listen");
        }
        // It ends, or says that it does not.
        match conversation.answer() {
            Err(WireError::Closed) => {}
            other => warn!(?other, "the keeper of the mount does not end"),
        }
    }

    fn is_there(&self) -> bool {
        !is_hung_up(self.socket.as_fd())
    }
}

fn in_time<T>(answer: Result<Option<T>, WireError>) -> io::Result<T> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "the keeper of the mount does not answer");
    answer.map_err(told)?.ok_or_else(late)
}

fn told(error: WireError) -> io::Error {
    match error {
        WireError::Io(error) => error,
        error => io::Error::other(format!("the keeper of the mount: {error}")),
    }
}

fn unexpected(said: &FromKeeper) -> io::Error {
    io::Error::other(format!("the keeper of the mount says what was not asked: {said:?}"))
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;

    use super::*;

    /// A link that does not wait, and the other end of it. What is sent over a socket of this machine is there at once.
    fn impatient() -> (KeeperLink, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let conversation = Conversation::new(ours.try_clone().unwrap(), Duration::ZERO).unwrap();
        (KeeperLink { conversation: Mutex::new(conversation), socket: ours, restart: None }, theirs)
    }

    fn keeper(socket: &UnixStream) -> Wire {
        Wire::new(socket.try_clone().unwrap()).unwrap()
    }

    fn descriptor() -> OwnedFd {
        tempfile::tempfile().unwrap().into()
    }

    fn kept() -> Kept {
        Kept { memory: descriptor(), connection: descriptor(), clones: Vec::new() }
    }

    fn is_late<T>(ended: io::Result<T>) -> bool {
        ended.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
    }

    #[test]
    fn an_answer_that_comes_late_is_none_to_what_was_asked_after_it() {
        let (link, socket) = impatient();
        let mut keeper = keeper(&socket);
        assert!(is_late(link.keep(&kept())));
        keeper.send(&FromKeeper::Kept, &[]).unwrap();
        assert!(is_late(link.keep(&kept())), "it is the first one that is kept");
        for _ in 0..2 {
            keeper.send(&FromKeeper::Kept, &[]).unwrap();
        }
        link.keep(&kept()).unwrap();
        assert!(is_late(link.keep(&kept())), "nothing is left");
        for said in [FromKeeper::Kept, FromKeeper::Served] {
            keeper.send(&said, &[]).unwrap();
        }
        assert!(matches!(link.take().unwrap(), Taken::Served));
    }

    #[test]
    fn what_nobody_waited_for_is_passed_over_with_all_that_belongs_to_it() {
        let (link, socket) = impatient();
        let mut keeper = keeper(&socket);
        assert!(is_late(link.take()));
        let file = descriptor();
        keeper.send(&FromKeeper::Given { clones: 2 }, &[file.as_fd(), file.as_fd()]).unwrap();
        keeper.send(&FromKeeper::Clones, &[file.as_fd(), file.as_fd()]).unwrap();
        keeper.send(&FromKeeper::Kept, &[]).unwrap();
        link.keep(&kept()).unwrap();
        keeper.send(&FromKeeper::Given { clones: 1 }, &[file.as_fd(), file.as_fd()]).unwrap();
        assert!(is_late(link.take()), "a clone is missing");
        keeper.send(&FromKeeper::Clones, &[file.as_fd()]).unwrap();
        keeper.send(&FromKeeper::Nothing, &[]).unwrap();
        assert!(matches!(link.take().unwrap(), Taken::Nothing));
    }

    #[test]
    fn the_end_is_waited_for_whatever_comes_late_before_it() {
        let (link, socket) = impatient();
        assert!(is_late(link.keep(&kept())));
        keeper(&socket).send(&FromKeeper::Kept, &[]).unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        let mut conversation = link.conversation.lock();
        conversation.ask(&ToKeeper::Forget).unwrap();
        assert!(matches!(conversation.answer(), Err(WireError::Closed)));
    }
}
