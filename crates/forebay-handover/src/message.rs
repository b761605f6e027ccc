//! What the two processes say to each other.
//!
//! The protocol has a number, which goes with each message ([`crate::wire`]): a process that speaks another one is told apart
//! before a byte of its message is read. New variants are put behind the others.

use serde::{Deserialize, Serialize};

use crate::encoding::{FORMAT, readable};
use crate::identity::{Difference, Identity};
use crate::state::Written;

/// The number of the protocol.
pub(crate) const PROTOCOL: u16 = 2;
/// Names that are told at once, at most: of files that are open for writing there may be many.
pub(crate) const MAX_NAMES: usize = 16;

/// What goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The new process serves, and then the old one lets go of everything else: readers wait for some milliseconds, and if the new
    /// one fails before it serves, the old one goes on.
    ServeFirst,
    /// The old process lets go of everything, and then the new one starts: it needs what only one process can have.
    ReleaseFirst,
}

/// What the new process begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// The oldest format of a state that it reads.
    pub(crate) oldest_format: u32,
    /// The newest.
    pub(crate) newest_format: u32,
    /// Its options.
    pub(crate) identity: Identity,
    /// What goes first.
    pub(crate) order: Order,
    /// How long writers may keep it waiting, in milliseconds.
    pub(crate) patience_millis: u64,
}

impl Hello {
    /// Of this version.
    pub(crate) fn new(identity: Identity, order: Order, patience: std::time::Duration) -> Self {
        let formats = readable();
        Self {
            oldest_format: *formats.start(),
            newest_format: *formats.end(),
            identity,
            order,
            // Half a million years are as good as for ever.
            patience_millis: u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// What the new process says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// It wants the mount.
    Hello(Hello),
    /// It has the state and the descriptor, understands them, and waits for leave to serve.
    Holding,
    /// It serves.
    Serving,
    /// It does not take the mount, because of this. It has closed what it was given.
    GivingUp(String),
}

/// What the old process says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Say {
    /// It gives the mount as soon as it can.
    Welcome,
    /// Files are open for writing: some of their paths.
    Waiting(Vec<String>),
    /// It does not give the mount, and serves on.
    Refused(Refusal),
    /// Here they are: the state, and then the connection. The descriptors come with this message.
    Given,
    /// It serves no more, and will not.
    Yours,
    /// Everything that only one process can have is free.
    Released,
    /// It has waited for long enough, hears no more after this, and serves again. Who has not said before that it serves may not.
    TakenBack,
    /// Before [`Say::Given`]: a file that is open for writing. A descriptor of its bytes comes with this message.
    Written(Written),
}

/// Why a mount is not given away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The new process is older.
    #[error(
        "the daemon that runs writes its state in format {running}, and this older program reads formats up to {newest}"
    )]
    Format {
        /// What the running daemon writes.
        running: u32,
        /// The newest that the new one reads.
        newest: u32,
    },
    /// Options differ that a hand-over cannot change.
    #[error("options differ that a mount keeps for as long as it is there: {}", list(.0))]
    Options(Vec<Difference>),
    /// Files are open for writing that cannot go on in another process as they are.
    #[error("files are open for writing that were removed, or are being uploaded: {}", .0.join(", "))]
    Writers(Vec<String>),
    /// Requests are not answered in time.
    #[error("{0} requests of programs got no answer in time")]
    Unanswered(u64),
    /// The kernel's requests come over rings.
    #[error("the mount is served over io_uring, and rings cannot be given to another process")]
    Uring,
    /// It was unmounted lazily, and is served only for those who have files open.
    #[error("the mount was unmounted, and is served only for files that are still open")]
    Detached,
    /// It has just been mounted, or another process is taking it.
    #[error("the mount is not ready to be handed over at this moment")]
    Busy,
    /// Something else.
    #[error("{0}")]
    Other(String),
}

impl Refusal {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Format { .. } => "use the version that runs, or a newer one; or unmount and mount again",
            Self::Options(_) => "set them as they are, or unmount and mount again",
            Self::Writers(_) => "close those that were removed, or allow more time with `--timeout`",
            Self::Unanswered(_) => "try again when reads work: `forebay stats` shows whether workers are reached",
            Self::Uring => "unmount and mount again; with `fuse.io=device` the next replacement works",
            Self::Detached => "mount again",
            Self::Busy => "try again",
            Self::Other(_) => "see the log of the daemon that runs",
        }
    }
}

fn list(differences: &[Difference]) -> String {
    differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Whether a process that reads `oldest` to `newest` can take over from this one.
pub(crate) fn check_format(hello: &Hello) -> Result<(), Refusal> {
    let is_read = (hello.oldest_format..=hello.newest_format).contains(&FORMAT);
    if is_read { Ok(()) } else { Err(Refusal::Format { running: FORMAT, newest: hello.newest_format }) }
}
