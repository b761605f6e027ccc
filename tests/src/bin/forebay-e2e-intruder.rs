//! Tries to get at what is another's, and says what came of it; see `forebay_e2e::intrude`.
//!
//! `forebay-e2e-intruder KIND:WHAT…`:
//!
//! * `path:PATH`: lists it, opens it, and connects to it, whatever it is;
//! * `bind:DIRECTORY`: lists it where this process mounts it. It is mounted over `/sys`: for a mount namespace of its own only;
//! * `process:NUMBER`: looks at a process, and takes a descriptor from it; with the numbers of the `/proc` that is mounted;
//! * `trace:NUMBER`: traces it;
//! * `port:ADDRESS`: connects to it;
//! * `window:SOCKET`: says hello to a worker at the socket of its memory, and proves nothing, to get the descriptor.
//!
//! A line for each try, of parts with tabs between them: `got`, `refused` or `failed`; the try; why.

use std::fs::File;
use std::io::{self, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use forebay_transport::wire::Hello;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open, test_kill_process};

/// When a peer says nothing.
const SOON: Duration = Duration::from_secs(30);
/// A directory that every system has, and that nothing here needs.
const MOUNTPOINT: &str = "/sys";
/// The cluster, and the size of blocks, unless they are set.
const CLUSTER: &str = "forebay";
const BLOCK_SIZE: u32 = 4 << 20;
/// Standard error, which every process has.
const STANDARD_ERROR: i32 = 2;

fn main() -> anyhow::Result<()> {
    for argument in std::env::args().skip(1) {
        let (kind, what) = argument.split_once(':').context("usage: KIND:WHAT…")?;
        match kind {
            "path" => try_path(Path::new(what))?,
            "bind" => tell(&format!("bind: list {what} elsewhere"), list_elsewhere(Path::new(what)))?,
            "process" => try_process(what.parse()?)?,
            "trace" => tell(&format!("trace: {what}"), trace(what.parse()?))?,
            "port" => tell(&format!("port: {what}"), connect(what.parse()?))?,
            "window" => tell(&format!("window: {what}"), see_memory(Path::new(what)))?,
            _ => bail!("{kind:?} is no kind of try"),
        }
    }
    Ok(())
}

/// Says what came of a try.
fn tell<T>(attempt: &str, result: io::Result<T>) -> io::Result<()> {
    let (outcome, why) = match &result {
        Ok(_) => ("got", String::new()),
        Err(error) if is_refusal(error) => ("refused", error.to_string()),
        Err(error) => ("failed", error.to_string()),
    };
    writeln!(io::stdout(), "{outcome}\t{attempt}\t{why}")
}

/// Whether somebody said no: it is not ours, or not here.
fn is_refusal(error: &io::Error) -> bool {
    let refusals = [Errno::ACCESS, Errno::PERM, Errno::SRCH, Errno::NETUNREACH];
    Errno::from_io_error(error).is_some_and(|errno| refusals.contains(&errno))
}

fn try_path(path: &Path) -> io::Result<()> {
    let shown = path.display();
    tell(&format!("path: list {shown}"), path.read_dir())?;
    tell(&format!("path: open {shown}"), File::open(path))?;
    // A socket of packets refuses streams in other words, once one gets there.
    tell(&format!("path: connect to {shown}"), UnixStream::connect(path))
}

fn list_elsewhere(directory: &Path) -> io::Result<()> {
    mount_bind(directory, MOUNTPOINT)?;
    let listed = Path::new(MOUNTPOINT).read_dir().map(drop);
    unmount(MOUNTPOINT, UnmountFlags::DETACH)?;
    listed
}

fn try_process(number: i32) -> anyhow::Result<()> {
    let pid = Pid::from_raw(number).context("no number of a process")?;
    let of_process = |name: &str| PathBuf::from(format!("/proc/{number}/{name}"));
    tell(&format!("process: list the descriptors of {number}"), of_process("fd").read_dir())?;
    for name in ["mem", "maps", "environ"] {
        tell(&format!("process: read {name} of {number}"), File::open(of_process(name)))?;
    }
    tell(&format!("process: see the root of {number}"), of_process("root").read_link())?;
    let descriptor = || -> io::Result<OwnedFd> {
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(pidfd_getfd(process, STANDARD_ERROR, PidfdGetfdFlags::empty())?)
    };
    tell(&format!("process: take a descriptor of {number}"), descriptor())?;
    tell(&format!("process: signal {number}"), test_kill_process(pid).map_err(io::Error::from))?;
    Ok(())
}

/// Becomes the tracer of a process, which goes on; until this one ends.
fn trace(number: i32) -> io::Result<()> {
    let nothing = ptr::null_mut::<libc::c_void>();
    // SAFETY: with this request, the kernel takes nothing from the two pointers.
    let outcome = unsafe { libc::ptrace(libc::PTRACE_SEIZE, number, nothing, nothing) };
    if outcome == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&address, SOON)
}

/// Whether the descriptor of a worker's memory comes to who proves nothing.
fn see_memory(path: &Path) -> io::Result<()> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(SOON))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::send(&socket, &Hello::ours(CLUSTER, BLOCK_SIZE).encode(), SendFlags::NOSIGNAL)?;
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let (mut buffer, mut control) = (vec![0; 70_000], RecvAncillaryBuffer::new(&mut space));
        let mut receive = || {
            let flags = RecvFlags::CMSG_CLOEXEC;
            rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags)
        };
        let bytes = match receive() {
            // It left before it had heard everything. What it said before that is there, after this.
            Err(Errno::CONNRESET) => receive().map_or(0, |received| received.bytes),
            received => received?.bytes,
        };
        let has_descriptor = control.drain().any(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.count() > 0,
            _ => false,
        });
        if has_descriptor {
            return Ok(());
        }
        if bytes == 0 {
            return Err(Errno::ACCESS.into());
        }
    }
}
