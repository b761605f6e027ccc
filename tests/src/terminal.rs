//! A terminal without a person: a pair of pseudo-terminals.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::pty::{self, OpenptFlags};

/// The master side of a terminal, and the terminal. What is written to the terminal when the master is closed is an
/// error.
///
/// # Panics
/// When there are none left.
#[must_use]
pub fn terminal() -> (OwnedFd, File) {
    let master = pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    pty::grantpt(&master).and_then(|()| pty::unlockpt(&master)).expect("it is ours");
    let name = pty::ptsname(&master, Vec::new()).expect("it has a name").into_string().expect("which is text");
    let terminal = File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(name);
    (master, terminal.expect("it can be opened"))
}
