//! The service manager as a keeper: systemd holds descriptors of a service, and gives them to its next process (`FDSTORE` in
//! `sd_notify(3)`).
//!
//! It is asked not to watch them (`FDPOLL=0`): it would be woken by each request of the mount. It lets go of a descriptor that it has
//! under another name already, so the connection has one name for ever, and the rest a number that goes up: what a process stored
//! is removed when the next one has stored what takes its place. What is stored once more, as after a hand-over that came to nothing,
//! has the number that it had.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::linux::fs::MetadataExt as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_handover::{Keeps, Kept};
use forebay_locks::Mutex;
use rustix::io::FdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tracing::{debug, warn};

/// The first descriptor that a manager gives.
const FIRST: i32 = 3;
/// Descriptors that go with one message.
const AT_ONCE: usize = 8;
/// A manager that takes nothing for this long has more to do than to hear of us.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);
const CONNECTION: &str = "forebay-connection";
const MEMORY: &str = "forebay-memory-";
const CLONE: &str = "forebay-clone-";

/// Whether what the manager gave was taken: it is given once.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The service manager that started this process.
#[derive(Debug)]
pub(crate) struct FdStore {
    address: SocketAddr,
    /// How many descriptors it holds.
    room: usize,
    stored: Mutex<Stored>,
}

/// What the manager has.
#[derive(Debug, Default)]
struct Stored {
    /// The number that was used last.
    number: u64,
    /// All names but that of the connection.
    names: BTreeSet<String>,
    /// Which memory has that number, if this process stored it: device and inode.
    memory: Option<(u64, u64)>,
}

impl FdStore {
    /// The one that the environment names, if it holds descriptors; and, at the first call, what it holds of a mount.
    pub(crate) fn of_environment() -> Option<(Self, Option<Kept>)> {
        let room = std::env::var("FDSTORE").ok()?.parse::<usize>().ok().filter(|room| *room > 0)?;
        let address = std::env::var_os("NOTIFY_SOCKET")?;
        let address = address_of(&address).inspect_err(|error| warn!(%error, "NOTIFY_SOCKET is none")).ok()?;
        let (kept, stored) = chosen(given());
        Some((Self { address, room, stored: Mutex::new(stored) }, kept))
    }

    fn store(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let lines = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}");
        descriptors.chunks(AT_ONCE).try_for_each(|descriptors| self.tell(&lines, descriptors))
    }

    fn remove<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> io::Result<()> {
        names.into_iter().try_for_each(|name| self.tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[]))
    }

    fn tell(&self, lines: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(TAKEN_WITHIN))?;
        socket.connect_addr(&self.address)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("there are too many descriptors"));
        }
        rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&socket, &[IoSlice::new(lines.as_bytes())], &mut control, SendFlags::NOSIGNAL)
        })?;
        Ok(())
    }

    /// Waits until the manager has seen to all that it was told: of a process that is dead it believes nothing.
    fn wait(&self) -> io::Result<()> {
        let (mut ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(TAKEN_WITHIN))?;
        self.tell("BARRIER=1", &[theirs.as_fd()])?;
        drop(theirs);
        // It closes its end.
        ours.read(&mut [0]).map(drop)
    }
}

impl Keeps for FdStore {
    fn name(&self) -> &'static str {
        "systemd"
    }

    fn process(&self) -> Option<u32> {
        None
    }

    fn keep(&self, what: &Kept) -> io::Result<()> {
        let mut stored = self.stored.lock();
        let count = what.clones.len() + 2;
        // Those before it are there until these are.
        if 2 * count > self.room {
            let told = format!("FileDescriptorStoreMax= of the unit is {}, and {} are needed", self.room, 2 * count);
            return Err(io::Error::other(told));
        }
        let which = which(&what.memory)?;
        let number = if stored.memory == Some(which) { stored.number } else { next_number(stored.number) };
        let (memory, clone) = (format!("{MEMORY}{number}"), format!("{CLONE}{number}"));
        // Also if it comes to nothing: it may be there all the same.
        stored.names.extend([memory.clone(), clone.clone()]);
        let clones: Vec<_> = what.clones.iter().map(|clone| clone.as_fd()).collect();
        self.store(CONNECTION, &[what.connection.as_fd()])?;
        self.store(&clone, &clones)?;
        // The last: what has it is whole.
        self.store(&memory, &[what.memory.as_fd()])?;
        self.wait()?;
        let names = BTreeSet::from([memory, clone]);
        self.remove(stored.names.difference(&names).map(String::as_str))?;
        *stored = Stored { number, names, memory: Some(which) };
        Ok(())
    }

    fn leave(&self) {
        // A next process of this service stores what it has once this one has let go of everything.
        self.forget();
    }

    fn knows_who_is_next(&self) -> bool {
        false
    }

    fn forget(&self) {
        let mut stored = self.stored.lock();
        let before = std::mem::take(&mut stored.names);
        stored.memory = None;
        let names = before.iter().map(String::as_str).chain([CONNECTION]);
        if let Err(error) = self.remove(names).and_then(|()| self.wait()) {
            debug!(%error, "the service manager does not take that the mount has ended");
        }
    }

    fn is_there(&self) -> bool {
        true
    }
}

/// Which memory it is: its device and its inode.
fn which(memory: &OwnedFd) -> io::Result<(u64, u64)> {
    let metadata = File::from(memory.try_clone()?).metadata()?;
    Ok((metadata.st_dev(), metadata.st_ino()))
}

/// The number of what is stored next. It goes up also from the process before to one that the manager did not start, and that so knows
/// nothing of what the manager has: time does, while the system runs.
fn next_number(last: u64) -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanos =
        u64::try_from(now.tv_sec).unwrap_or_default() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default();
    nanos.max(last + 1)
}

/// Where the manager listens.
fn address_of(address: &OsStr) -> io::Result<SocketAddr> {
    match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(Path::new(address)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a path nor an abstract name")),
    }
}

/// The descriptors of ours that the manager gave to this process, with their names.
fn given() -> Vec<(String, OwnedFd)> {
    let variable = |name: &str| std::env::var(name).ok();
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    // A child inherits the variables.
    if number("LISTEN_PID") != Some(std::process::id()) || IS_TAKEN.swap(true, Ordering::AcqRel) {
        return Vec::new();
    }
    let count = number("LISTEN_FDS").and_then(|count| i32::try_from(count).ok()).unwrap_or_default();
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let given = (FIRST..FIRST.saturating_add(count)).zip(names.split(':'));
    let is_ours = |name: &str| name == CONNECTION || name.starts_with(MEMORY) || name.starts_with(CLONE);
    let given = given.filter(|&(_, name)| is_ours(name));
    given.filter_map(|(number, name)| Some((name.to_owned(), owned(number)?))).collect()
}

/// A descriptor that the manager gave.
fn owned(number: i32) -> Option<OwnedFd> {
    // SAFETY: it is not used beyond the next line, which finds out whether it is open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(borrowed, FdFlags::CLOEXEC).ok()?;
    // SAFETY: it is open, and ours: the manager opened it for this process, by a name of ours, and this is reached once.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Of all that the manager holds, what the last process of the mount had that stored all of it; and what there is to be removed.
fn chosen(given: Vec<(String, OwnedFd)>) -> (Option<Kept>, Stored) {
    let latest = |of: &str| {
        let numbers = given.iter().filter_map(|(name, _)| name.strip_prefix(of)?.parse::<u64>().ok());
        numbers.max()
    };
    let (whole, number) = (latest(MEMORY), latest(MEMORY).max(latest(CLONE)).unwrap_or_default());
    let names = given.iter().map(|(name, _)| name.clone()).filter(|name| name != CONNECTION).collect();
    let stored = Stored { number, names, memory: None };
    let Some(whole) = whole else { return (None, stored) };
    let memory_name = format!("{MEMORY}{whole}");
    let (mut memory, mut connection, mut clones) = (None, None, Vec::new());
    // What an earlier process read from is empty by now, but it is closed only when the kernel has handed it out again.
    for (name, descriptor) in given {
        match name.as_str() {
            CONNECTION => connection = Some(descriptor),
            name if name == memory_name => memory = Some(descriptor),
            name if name.starts_with(CLONE) => clones.push(descriptor),
            _ => {}
        }
    }
    let kept = memory.zip(connection).map(|(memory, connection)| Kept { memory, connection, clones });
    (kept, stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn what_was_stored_whole_is_chosen_and_what_was_stored_before_removed() {
        let names = ["forebay-memory-3", "forebay-clone-3", "forebay-clone-4", CONNECTION, "forebay-clone-3"];
        let (kept, stored) = chosen(names.map(|name| (name.to_owned(), descriptor())).into());
        assert_eq!(kept.unwrap().clones.len(), 3, "also those of a process that died while it stored");
        assert_eq!((stored.number, stored.names.len()), (4, 3));
        let (kept, stored) = chosen(vec![("forebay-memory-7".to_owned(), descriptor())]);
        assert!(kept.is_none());
        assert_eq!(stored.number, 7);
        let (kept, stored) = chosen(Vec::new());
        assert!(kept.is_none() && stored.names.is_empty());
    }

    #[test]
    fn descriptors_go_to_the_manager_and_are_removed_when_others_are_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let address = address_of(path.as_os_str()).unwrap();
        let store = FdStore { address, room: 100, stored: Mutex::default() };
        let hear = || {
            let mut bytes = [0; 256];
            // What comes with it is closed, as it finds no place.
            let length = manager.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..length].to_vec()).unwrap()
        };
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| (0..14).map(|_| hear()).collect::<Vec<_>>());
            let memory = || OwnedFd::from(tempfile::tempfile().unwrap());
            let what = || Kept { memory: memory(), connection: descriptor(), clones: vec![descriptor()] };
            // As long as both are there, they are two.
            let (earlier, later) = (what(), what());
            store.keep(&earlier).unwrap();
            store.keep(&later).unwrap();
            store.keep(&later).unwrap();
            let heard = heard.join().unwrap();
            let named = |message: &String| message.rsplit('=').next().unwrap().to_owned();
            let names: Vec<String> = heard.iter().map(named).collect();
            let [first, second] = [2, 6].map(|memory| names[memory].strip_prefix(MEMORY).unwrap());
            assert!(first.parse::<u64>().unwrap() < second.parse().unwrap(), "what is stored last is what counts");
            let named = |of: &str, number: &str| format!("{of}{number}");
            let stored = |number| [CONNECTION.to_owned(), named(CLONE, number), named(MEMORY, number), "1".to_owned()];
            let removed = [named(CLONE, first), named(MEMORY, first)];
            // The manager lets go of what comes a second time: so nothing of it is removed.
            assert_eq!(names, [&stored(first)[..], &stored(second), &removed, &stored(second)].concat());
            assert!(heard[8].starts_with("FDSTOREREMOVE=1") && heard[0].contains("FDPOLL=0"));
        });
        let store = FdStore { room: 5, ..store };
        let what = Kept { memory: descriptor(), connection: descriptor(), clones: vec![descriptor()] };
        assert!(store.keep(&what).unwrap_err().to_string().contains("FileDescriptorStoreMax"));
    }

    #[test]
    fn what_is_no_unix_socket_is_refused() {
        assert!(address_of(OsStr::new("vsock:2:1")).is_err() && address_of(OsStr::new("")).is_err());
        assert!(address_of(OsStr::new("@name")).is_ok());
    }
}
