//! A connection to the kernel that goes on in another process.
//!
//! The kernel does not know which process has it. What one process has agreed on with it at the start holds for all, so it goes
//! along; and before it goes, whoever takes requests pauses.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::backing::Backings;
use crate::channel::descriptor::Descriptor;
use crate::channel::pause::Pause;
use crate::protocol::init::Negotiated;
use crate::served::{Channel, Served};

/// A connection whose first request was answered, here or by another process.
#[derive(Debug)]
pub struct Adopted {
    pub(crate) descriptor: Arc<Descriptor>,
    pub(crate) negotiated: Negotiated,
    pub(crate) backings: Backings,
}

impl Adopted {
    /// The connection that `descriptor` is one of, and what was agreed on over it.
    ///
    /// # Errors
    /// When there are too many descriptors.
    pub fn new(descriptor: OwnedFd, negotiated: Negotiated) -> io::Result<Self> {
        Self::sharing(Arc::new(Descriptor::new(descriptor)), negotiated)
    }

    pub(crate) fn sharing(descriptor: Arc<Descriptor>, negotiated: Negotiated) -> io::Result<Self> {
        Ok(Self { backings: Backings::new(descriptor.another()?), descriptor, negotiated })
    }

    /// Where files are registered that are passed through, and those are known that another process has registered.
    #[must_use]
    pub fn backings(&self) -> Backings {
        self.backings.clone()
    }
}

/// Has a session pause. Clones are the same.
#[derive(Clone, Debug)]
pub struct Pauser {
    pause: Arc<Pause>,
    served: Arc<Served>,
    /// The session's own: whoever can have it pause does not keep the mount.
    descriptor: Weak<Descriptor>,
}

impl Pauser {
    pub(crate) fn new(pause: Arc<Pause>, served: Arc<Served>, descriptor: &Arc<Descriptor>) -> Self {
        Self { pause, served, descriptor: Arc::downgrade(descriptor) }
    }

    /// Has nobody take requests any more, and waits for that. What was taken goes on. False: it is not so within that time, or
    /// requests come over rings, which do not pause; then [`Pauser::go_on`] follows.
    #[must_use]
    pub fn pause(&self, within: Duration) -> bool {
        let carried = self.served.carried();
        carried.is_some_and(|carried| matches!(carried.channel, Channel::Device { .. })) && self.pause.ask(within)
    }

    /// [`crate::Session::serve`] may be called again.
    pub fn go_on(&self) {
        self.pause.end();
    }

    /// A descriptor of the connection.
    ///
    /// # Errors
    /// `ENODEV` when the session has ended; when there are too many descriptors.
    pub fn connection(&self) -> io::Result<OwnedFd> {
        let descriptor = self.descriptor.upgrade().ok_or(rustix::io::Errno::NODEV)?;
        descriptor.as_fd().try_clone_to_owned()
    }
}
