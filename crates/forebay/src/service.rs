//! What the service manager hears of this process (`sd_notify(3)`): that it is ready, that it is alive, that it ends.
//!
//! systemd names a socket in `NOTIFY_SOCKET`, and takes lines there. A worker is ready when it listens and, in a
//! cluster, is registered; a mount when it answers; a coordinator when one of them leads. Until then its unit is
//! "activating" and says what it waits for, so what is ordered after it finds something to read. With `WatchdogSec=`
//! the process also says again and again that it is alive: a task of the runtime does, so a runtime that schedules
//! nothing any more is killed and started again. It looks at the threads beside the runtime before, those that serve
//! connections and those that serve the kernel's requests ([`forebay_locks::heartbeat`]): while one of them hangs it says
//! nothing. How long an origin, a worker or a disk takes has no part in that. Without a service manager nothing is sent.

use std::ffi::OsStr;
use std::io::{self, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_locks::heartbeat::{self, Sample, ThreadWatch};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::time::MissedTickBehavior;
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, warn};

/// Where the service manager listens.
const SOCKET: &str = "NOTIFY_SOCKET";
/// How long it waits for a sign of life, in microseconds.
const WATCHDOG: &str = "WATCHDOG_USEC";
/// Whose signs of life it waits for.
const WATCHDOG_PROCESS: &str = "WATCHDOG_PID";
/// A thread that is at one piece of work for less than this does not hang, however often it is looked: a machine may be busy, or
/// have to read memory from a disk.
const HANGS_AFTER: Duration = Duration::from_secs(60);
/// A manager that takes nothing for this long has more to do than to hear of us.
const TELL_WITHIN: Duration = Duration::from_secs(1);
/// How long it may take until it has seen to what it was told.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// The service manager that started this process, if one did.
pub(crate) struct Service {
    socket: Option<Arc<NotifySocket>>,
    _alive: Option<AbortOnDropHandle<()>>,
}

impl Service {
    /// The one that the environment names. From now on it hears that this process is alive. To be called in a runtime.
    pub(crate) fn of_environment() -> Self {
        let variable = std::env::var_os;
        let period = watchdog(variable(WATCHDOG).as_deref(), variable(WATCHDOG_PROCESS).as_deref(), std::process::id());
        Self::new(variable(SOCKET).as_deref(), period)
    }

    fn new(socket: Option<&OsStr>, watchdog: Option<Duration>) -> Self {
        let socket = socket.and_then(|address| match NotifySocket::at(address) {
            Ok(socket) => Some(Arc::new(socket)),
            Err(error) => {
                warn!(?address, %error, "the service manager hears nothing of this process: it cannot use {SOCKET}");
                None
            }
        });
        let alive = socket
            .as_ref()
            .zip(watchdog)
            .map(|(socket, period)| say_that_we_live(Arc::clone(socket), period, HANGS_AFTER, heartbeat::samples))
            .map(|alive| AbortOnDropHandle::new(tokio::spawn(alive)));
        Self { socket, _alive: alive }
    }

    /// Tells that this process is ready once `ready` is, until `end` is. What that gives; [`Service::ends`] or [`Service::goes_on`]
    /// follows.
    pub(crate) async fn follow<T>(&self, ready: impl Future<Output = ()>, end: impl Future<Output = T>) -> T {
        let mut end = std::pin::pin!(end);
        self.tell("STATUS=Started; waits for the cluster's state");
        tokio::select! {
            ended = &mut end => ended,
            () = ready => {
                self.tell("READY=1\nSTATUS=Serving");
                end.await
            }
        }
    }

    /// The service ends.
    pub(crate) fn ends(&self) {
        self.tell("STOPPING=1\nSTATUS=Ending");
    }

    /// The service goes on in another process. Waits until the manager knows that: of a service whose process has ended it ends all
    /// others, too. To be called from a thread that may wait.
    pub(crate) fn goes_on(&self, process: u32) {
        let Some(socket) = &self.socket else { return };
        socket.tell(&format!("MAINPID={process}\nSTATUS=Serving"));
        if let Err(error) = socket.wait() {
            warn!(%error, "it is not known whether the service manager has heard which process serves now");
        }
    }

    fn tell(&self, lines: &str) {
        if let Some(socket) = &self.socket {
            socket.tell(lines);
        }
    }
}

/// Twice in each period: one message may come late. A thread that `look` shows at the same work for a whole period, and for as long as
/// `hangs_after`, hangs; then nothing is said, and the manager ends this process a period later, unless the thread goes on.
async fn say_that_we_live(
    socket: Arc<NotifySocket>,
    period: Duration,
    hangs_after: Duration,
    look: impl Fn() -> Vec<Sample>,
) {
    let every = (period / 2).max(Duration::from_millis(1));
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watch = ThreadWatch::after(looks(hangs_after, every));
    let mut did_hang = false;
    loop {
        ticks.tick().await;
        let hang = watch.look(look()).join(", ");
        if !hang.is_empty() {
            error!(threads = hang, ?period, "threads hang: the service manager is not told that this process is alive");
            socket.tell(&format!("STATUS=These threads hang: {hang}"));
        } else if did_hang {
            warn!("the threads that did hang go on");
            socket.tell("WATCHDOG=1\nSTATUS=Serving");
        } else {
            socket.tell("WATCHDOG=1");
        }
        did_hang = !hang.is_empty();
    }
}

/// How many times one looks in that time, who looks at these intervals.
fn looks(within: Duration, every: Duration) -> u32 {
    u32::try_from(within.as_nanos().div_ceil(every.as_nanos().max(1))).unwrap_or(u32::MAX)
}

/// How long the manager waits for a sign of life of this process, `own`.
fn watchdog(microseconds: Option<&OsStr>, process: Option<&OsStr>, own: u32) -> Option<Duration> {
    let is_ours = process.is_none_or(|process| process.to_str().and_then(|id| id.parse::<u32>().ok()) == Some(own));
    let period = microseconds?.to_str()?.parse::<u64>().ok()?;
    (is_ours && period > 0).then(|| Duration::from_micros(period))
}

/// Where the service manager listens, and what it is told through.
struct NotifySocket {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl NotifySocket {
    /// # Errors
    /// When `address` is none of a Unix socket, or there can be no socket.
    fn at(address: &OsStr) -> io::Result<Self> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(Path::new(address))?,
            _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a path nor an abstract name")),
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(TELL_WITHIN))?;
        Ok(Self { socket, address })
    }

    /// Waits until the manager has seen to all that it was told: it closes what came with this.
    fn wait(&self) -> io::Result<()> {
        let (mut ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(SEEN_WITHIN))?;
        self.socket.connect_addr(&self.address)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [theirs.as_fd()];
        // There is room for it.
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let lines = [IoSlice::new(b"BARRIER=1")];
        rustix::io::retry_on_intr(|| rustix::net::sendmsg(&self.socket, &lines, &mut control, SendFlags::NOSIGNAL))?;
        drop(theirs);
        ours.read(&mut [0]).map(drop)
    }

    /// Connects to nothing: a manager that was started anew listens at the same address.
    fn tell(&self, lines: &str) {
        if let Err(error) = self.socket.send_to_addr(lines.as_bytes(), &self.address) {
            warn!(%error, lines, "the service manager does not take what it is told");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::net::{RecvAncillaryBuffer, RecvFlags};

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let length = socket.recv(&mut bytes).expect("a message in time");
        String::from_utf8(bytes[..length].to_vec()).expect("text")
    }

    #[test]
    fn signs_of_life_are_asked_of_the_process_that_is_named() {
        let text = |text| Some(OsStr::new(text));
        assert_eq!(watchdog(text("30000000"), text("7"), 7), Some(Duration::from_secs(30)));
        assert_eq!(watchdog(text("30000000"), None, 7), Some(Duration::from_secs(30)));
        assert_eq!(watchdog(text("30000000"), text("8"), 7), None, "a child inherits the variables");
        for nonsense in [None, text(""), text("0"), text("soon")] {
            assert_eq!(watchdog(nonsense, None, 7), None, "{nonsense:?}");
        }
    }

    #[test]
    fn a_thread_has_a_minute_however_often_it_is_looked() {
        let seconds = Duration::from_secs;
        assert_eq!(looks(HANGS_AFTER, seconds(30)), 2, "the units say sixty seconds");
        assert_eq!((looks(HANGS_AFTER, seconds(1)), looks(HANGS_AFTER, seconds(45))), (60, 2));
        assert_eq!((looks(Duration::ZERO, seconds(1)), looks(seconds(1), Duration::ZERO)), (0, 1_000_000_000));
    }

    #[test]
    fn what_is_no_unix_socket_is_refused() {
        assert!(NotifySocket::at(OsStr::new("vsock:2:1")).is_err());
        assert!(NotifySocket::at(OsStr::new("")).is_err());
    }

    #[test]
    fn a_manager_at_an_abstract_name_is_told_what_one_at_a_path_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("forebay-test-{}", std::process::id());
        let at_path = UnixDatagram::bind(&path).unwrap();
        let at_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (socket, address) in [(at_path, path.into_os_string()), (at_name, format!("@{name}").into())] {
            socket.set_read_timeout(Some(SOON)).unwrap();
            NotifySocket::at(&address).unwrap().tell("READY=1\nSTATUS=Serving");
            assert_eq!(received(&socket), "READY=1\nSTATUS=Serving", "{address:?}");
        }
    }

    /// As `sd_notify_barrier(3)` has it.
    #[tokio::test]
    async fn a_manager_knows_which_process_goes_on_before_this_one_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_read_timeout(Some(SOON)).unwrap();
        let has_seen = Arc::new(AtomicBool::new(false));
        let sees = Arc::clone(&has_seen);
        let hearing = std::thread::spawn(move || {
            assert_eq!(received(&manager), "MAINPID=7\nSTATUS=Serving");
            let (mut bytes, mut space) = ([0; 64], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut into = [IoSliceMut::new(&mut bytes)];
            let heard = rustix::net::recvmsg(&manager, &mut into, &mut control, RecvFlags::empty()).unwrap();
            sees.store(true, Ordering::SeqCst);
            drop(control);
            assert_eq!(&bytes[..heard.bytes], b"BARRIER=1");
        });
        Service::new(Some(path.as_os_str()), None).goes_on(7);
        assert!(has_seen.load(Ordering::SeqCst));
        hearing.join().unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn signs_of_life_go_on_until_the_service_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        let service = Service::new(Some(path.as_os_str()), Some(Duration::from_millis(20)));
        let listening = tokio::task::spawn_blocking(move || [received(&socket), received(&socket)]);
        assert_eq!(listening.await.unwrap(), ["WATCHDOG=1", "WATCHDOG=1"]);
        drop(service);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn while_a_thread_hangs_no_sign_of_life_is_given_and_when_it_goes_on_there_are_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        let hangs = Arc::new(AtomicBool::new(true));
        let thread = Arc::clone(&hangs);
        let look = move || {
            let progress = thread.load(Ordering::SeqCst).then_some(7);
            vec![Sample { thread: 1, name: "tcp-0".to_owned(), progress }]
        };
        let at = Arc::new(NotifySocket::at(path.as_os_str()).unwrap());
        let alive = say_that_we_live(at, Duration::from_millis(20), Duration::ZERO, look);
        let alive = AbortOnDropHandle::new(tokio::spawn(alive));
        let hearing = tokio::task::spawn_blocking(move || {
            let mut heard = vec![received(&socket), received(&socket)];
            while heard.len() < 5 {
                let next = received(&socket);
                assert!(next != "WATCHDOG=1", "it hangs: {heard:?}");
                heard.push(next);
            }
            hangs.store(false, Ordering::SeqCst);
            while heard.last().is_none_or(|last| last != "WATCHDOG=1") {
                heard.push(received(&socket));
            }
            heard
        });
        let heard = hearing.await.unwrap();
        drop(alive);
        assert_eq!(heard[..3], ["WATCHDOG=1", "WATCHDOG=1", "STATUS=These threads hang: tcp-0"]);
        let again = heard.iter().position(|heard| heard == "WATCHDOG=1\nSTATUS=Serving").expect("it goes on");
        assert_eq!(heard[again + 1], "WATCHDOG=1");
    }

    #[tokio::test]
    async fn without_a_manager_nothing_is_told() {
        Service::new(None, Some(Duration::from_millis(1))).tell("READY=1");
        Service::new(Some(OsStr::new("nowhere")), None).tell("READY=1");
    }
}
