//! The mount of this process for the next one, and that of the process before for this one: over a socket of this user alone
//! ([`forebay_handover`] has what is said there).
//!
//! The thread that gives the mount away waits until all of this process has ended that only one process can have; so it is the last
//! part of a node that ends.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use anyhow::Context as _;
use forebay_fuse::HandOver;
use forebay_handover::{
    Given, GivingSide, Held, Identity, Keeps, NotTaken, Order, Refusal, Written, give, peer_of, take_if,
};
use forebay_private::{PrivateError, PrivateListener, may_talk, nobody, our_user};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::error::{Exit, Fault};
use crate::state;

/// How long a process that was given the mount may take to say that it serves it, when this one is told to end meanwhile.
const SETTLES_WITHIN: Duration = Duration::from_secs(30);
/// How long the thread that gives a mount away may take for its last words, when nobody waits for more.
const TOLD_WITHIN: Duration = Duration::from_secs(2);
/// How long no connection is accepted after the system refused to accept one.
const PAUSE: Duration = Duration::from_millis(100);

/// Has somebody keep what was given to a process that does not serve it. May wait.
pub(crate) type Rescuer = Arc<dyn Fn(Given) -> anyhow::Result<()> + Send + Sync>;

/// Gives the mount to the process that asks for it.
pub(crate) struct Handover {
    stop: CancellationToken,
    left: CancellationToken,
    /// Cancelled when nobody is talked to any more.
    over: CancellationToken,
    successor: Arc<OnceLock<u32>>,
    /// Cancelled when the process that was given the mount has not come to serve it, after this one had let go of everything.
    failed: CancellationToken,
    /// Whether the mount is being given away: this process has stopped serving it.
    giving: watch::Receiver<bool>,
    /// Told when all else of this process has ended.
    all_ended: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Handover {
    /// Listens at `socket`. `identity`: what the next process must have in common with this one; `rescue`: for the case that it does
    /// not come to serve.
    ///
    /// # Errors
    /// [`PrivateError`].
    pub(crate) fn serve(
        socket: &Path,
        identity: Identity,
        rescue: Option<Rescuer>,
        mount: HandOver,
    ) -> Result<Self, PrivateError> {
        let listener = PrivateListener::bind(socket)?;
        let (stop, left, failed) = (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
        let (all_ended, have_all_ended) = oneshot::channel();
        let (tell_giving, giving) = watch::channel(false);
        let successor = Arc::<OnceLock<u32>>::default();
        let (stopped, gone, next) = (stop.clone(), left.clone(), Arc::clone(&successor));
        let answerer = Answerer {
            identity,
            mount,
            rescue,
            stop: stopped,
            left: gone,
            failed: failed.clone(),
            successor: next,
            giving: tell_giving,
        };
        let over = CancellationToken::new();
        let ends = over.clone().drop_guard();
        let serving = tokio::spawn(async move {
            answerer.serve(listener, have_all_ended).await;
            drop(ends);
        });
        Ok(Self { stop, left, over, successor, failed, giving, all_ended, serving })
    }

    /// The process that serves the mount instead.
    pub(crate) fn successor(&self) -> Option<u32> {
        self.successor.get().copied()
    }

    /// Gives the mount to nobody from now on. Where it is being given just now, waits for what comes of it: who unmounts before
    /// takes it away from the next process. False: that is not known in time, or `at_once` was cancelled.
    #[must_use]
    pub(crate) async fn settle(&self, at_once: &CancellationToken) -> bool {
        self.stop.cancel();
        let mut giving = self.giving.clone();
        tokio::select! {
            // In this order: what is known counts also where nobody waits.
            biased;
            // An error means that nobody gives it away any more.
            _ = giving.wait_for(|is_giving| !is_giving) => true,
            () = self.left.cancelled() => true,
            () = at_once.cancelled() => false,
            () = tokio::time::sleep(SETTLES_WITHIN) => false,
        }
    }

    /// Waits, after [`Handover::settle`], until no process is talked to that has asked for the mount: it would have this one stop and
    /// go on once more. False: another process has the mount; it takes too long; or `at_once` was cancelled.
    pub(crate) async fn is_over(&self, at_once: &CancellationToken) -> bool {
        tokio::select! {
            biased;
            () = self.left.cancelled() => false,
            () = self.over.cancelled() => true,
            () = at_once.cancelled() => false,
            () = tokio::time::sleep(SETTLES_WITHIN) => false,
        }
    }

    /// All else has ended: the next process may have what was this one's. In the order "release first" this waits until that one serves,
    /// or has failed, and then has the mount kept for another one; `at_once` ends the wait. False: it has failed.
    #[must_use]
    pub(crate) async fn close(self, at_once: &CancellationToken) -> bool {
        self.stop.cancel();
        // It is not waited for where the mount was not given away.
        let _ = self.all_ended.send(());
        if *self.giving.borrow() && !self.left.is_cancelled() {
            // It was waited for, and in vain.
            self.serving.abort();
        }
        tokio::select! {
            _ = self.serving => {}
            () = async { at_once.cancelled().await; tokio::time::sleep(TOLD_WITHIN).await } => {
                warn!("the next process is not waited for: if it does not come to serve the mount, nobody does");
            }
        }
        !self.failed.is_cancelled()
    }
}

struct Answerer {
    identity: Identity,
    mount: HandOver,
    /// Who has the mount if the next process fails after this one has let go of everything.
    rescue: Option<Rescuer>,
    /// Cancelled when the mount is given to nobody any more.
    stop: CancellationToken,
    /// Cancelled when another process serves the mount.
    left: CancellationToken,
    /// Cancelled when that has not come to serve it.
    failed: CancellationToken,
    /// That process.
    successor: Arc<OnceLock<u32>>,
    /// Whether this process has stopped serving the mount.
    giving: watch::Sender<bool>,
}

impl Answerer {
    async fn serve(self, listener: PrivateListener, have_all_ended: oneshot::Receiver<()>) {
        let (giving, released) = loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted.and_then(tokio::net::UnixStream::into_std),
                () = self.stop.cancelled() => return,
            };
            let Ok(socket) = accepted else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let (released, is_released) = mpsc::channel();
            let (mount, stop, left) = (self.mount.clone(), self.stop.clone(), self.left.clone());
            let peer = peer_of(&socket).ok().and_then(|peer| peer.process);
            let (successor, giving) = (Arc::clone(&self.successor), self.giving.clone());
            let (rescue, failed) = (self.rescue.clone(), self.failed.clone());
            let identity = self.identity.clone();
            let mut giving = tokio::task::spawn_blocking(move || {
                let (cannot, mount) = (mount.cannot(), Some(mount));
                let mut side = Side {
                    mount,
                    keeper: None,
                    is_taken_back: false,
                    rescue,
                    stop,
                    left,
                    failed,
                    peer,
                    successor,
                    giving,
                    is_released,
                };
                give(socket, identity, cannot, &mut side)
            });
            tokio::select! {
                // It is served on.
                given = &mut giving => {
                    if let Err(error) = given {
                        warn!(%error, "giving the mount away panicked");
                        self.mount.resume();
                        self.giving.send_replace(false);
                    }
                }
                () = self.left.cancelled() => break (giving, released),
            }
        };
        // Its path goes with it, before the next process listens there. And so does the memory of the cache, which that one needs.
        drop((listener, self.mount));
        info!("another process serves the mount: this one ends");
        let _ = have_all_ended.await;
        // It fails only when the other process has died.
        let _ = released.send(());
        let _ = giving.await;
    }
}

/// This process, as far as a hand-over moves it.
struct Side {
    /// `None`: it is another process's, and nothing of it is left here.
    mount: Option<HandOver>,
    /// Who kept it over a crash when it was let go of.
    keeper: Option<Arc<dyn Keeps>>,
    /// Whether the process that was given it may not serve it any more, and may be there all the same.
    is_taken_back: bool,
    rescue: Option<Rescuer>,
    stop: CancellationToken,
    left: CancellationToken,
    failed: CancellationToken,
    /// The process that asks.
    peer: Option<u32>,
    successor: Arc<OnceLock<u32>>,
    giving: watch::Sender<bool>,
    is_released: mpsc::Receiver<()>,
}

impl GivingSide for Side {
    fn writers(&mut self) -> Vec<String> {
        // Nobody is waited for when this process ends: to drain is refused then.
        let mount = self.mount.as_ref().filter(|_| !self.stop.is_cancelled());
        mount.map(HandOver::held_back).unwrap_or_default()
    }

    fn drain(&mut self, within: Duration) -> Result<(), Refusal> {
        // First, so that whoever stops this sees one or the other.
        self.giving.send_replace(true);
        let mount = self.mount.as_ref().filter(|_| !self.stop.is_cancelled());
        mount.map_or(Err(Refusal::Detached), |mount| mount.drain(within))
    }

    fn give(&mut self) -> io::Result<Given> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        self.mount.as_ref().ok_or_else(gone)?.give()
    }

    fn resume(&mut self) {
        self.mount.iter().for_each(HandOver::resume);
        self.giving.send_replace(false);
    }

    fn taken_back(&mut self) {
        self.is_taken_back = true;
        self.mount.iter().for_each(HandOver::taken_back);
    }

    fn release(&mut self) {
        // First: whoever learns that the mount has ended here asks why. It is given away once.
        if let Some(peer) = self.peer {
            let _ = self.successor.set(peer);
        }
        if let Some(mount) = self.mount.take() {
            self.keeper = mount.keeper();
            mount.leave();
        }
        self.left.cancel();
        // An error means that this process has ended by another way: then nothing is left to let go of.
        let _ = self.is_released.recv();
    }

    fn rescue(&mut self, given: Given) {
        self.failed.cancel();
        // Whoever keeps it over a crash has been told that it is the next process's, and knows when that dies; but not that it hangs.
        let is_kept = self.keeper.as_ref().is_some_and(|keeper| keeper.is_there() && keeper.knows_who_is_next());
        if is_kept && !self.is_taken_back {
            return warn!("the next process does not serve the mount: its keeper has it");
        }
        let Some(rescue) = &self.rescue else {
            return warn!("the next process does not serve the mount, and no program is named to keep it: it ends");
        };
        match rescue(given) {
            Ok(()) => warn!("the next process does not serve the mount: it is kept, and this process is started again"),
            Err(error) => {
                error!(error = format!("{error:#}"), "the next process does not serve the mount, and nobody keeps it");
            }
        }
    }
}

/// A process that serves a mount, and is to be asked for it.
#[derive(Debug)]
pub(crate) struct Running {
    socket: PathBuf,
}

impl Running {
    /// The process that serves `mountpoint`, which must be resolved; `None` if there is none that gives it away.
    ///
    /// # Errors
    /// When it cannot be reached, or is another user's.
    pub(crate) fn find(mountpoint: &Path) -> anyhow::Result<Option<Self>> {
        for socket in state::handover_sockets(mountpoint) {
            match connect(&socket) {
                // It is asked when we are ready.
                Ok(_) => return Ok(Some(Self { socket })),
                Err(error) if is_nobody(&error, || is_served(mountpoint)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Takes the mount over, waiting for writers for as long as `patience`. `staging`: where what is written is staged, if anything is. Whoever drops this ends that, and the process that serves
    /// the mount goes on, unless it has let go of it already.
    ///
    /// # Errors
    /// Why not, with what to do about it.
    pub(crate) async fn take(
        self,
        identity: Identity,
        order: Order,
        patience: Duration,
        staging: Option<PathBuf>,
    ) -> anyhow::Result<Held> {
        let socket = connect(&self.socket)?;
        let mut hang_up = HangUp(Some(socket.try_clone().context("cannot duplicate a socket")?));
        let taking = move || {
            let accepts = |written: &[(Written, OwnedFd)]| accept(staging.as_deref(), written);
            take_if(socket, identity, order, patience, &mut |files| tell(files), &accepts)
        };
        let taken = tokio::task::spawn_blocking(taking).await.context("taking the mount over panicked")?;
        // What was taken has the connection now.
        hang_up.0 = None;
        Ok(taken.map_err(not_taken)?)
    }
}

/// Ends the connection when it is dropped. A thread that takes a mount over does not end with whoever waits for it, and would get
/// the mount for nobody.
struct HangUp(Option<UnixStream>);

impl Drop for HangUp {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            // It fails when the other process is gone.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// A connection to a process of this user, or of root.
pub(crate) fn connect(path: &Path) -> anyhow::Result<UnixStream> {
    let cannot = || format!("cannot connect to {}", path.display());
    let socket = UnixStream::connect(path).with_context(cannot)?;
    let peer = peer_of(&socket).with_context(cannot)?;
    if !may_talk(peer.user, our_user(), nobody()) {
        let what = format!("the process at {} is another user's", path.display());
        return Err(Fault::new(Exit::Denied, what, "mount as that user").into());
    }
    Ok(socket)
}

/// Whether nobody listens there. `is_served`: whether another user's process is known to serve the mount.
pub(crate) fn is_nobody(error: &anyhow::Error, is_served: impl FnOnce() -> bool) -> bool {
    match error.downcast_ref::<io::Error>().map(io::Error::kind) {
        Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => true,
        // Nobody but root gets to the sockets of root's mounts, also where there is none for this one.
        Some(io::ErrorKind::PermissionDenied) => !is_served(),
        _ => false,
    }
}

/// Whether a process is known to serve `mountpoint`.
pub(crate) fn is_served(mountpoint: &Path) -> bool {
    let shown = mountpoint.display().to_string();
    state::all().iter().any(|state| state.mountpoint == shown)
}

/// Whether what is open for writing can go on in a process with this staging directory.
fn accept(staging: Option<&Path>, written: &[(Written, OwnedFd)]) -> Result<(), String> {
    written.iter().try_for_each(|(file, bytes)| match staging {
        Some(staging) => forebay_staging::is_in(staging, &file.draft, bytes).map_err(|failure| failure.to_string()),
        None => Err("files are open for writing, and this process takes no writes".to_owned()),
    })
}

fn tell(files: &[String]) {
    info!(files = files.join(", "), "waiting for files that are open for writing");
}

fn not_taken(why: NotTaken) -> Fault {
    let exit = match &why {
        NotTaken::Refused(Refusal::Options(_) | Refusal::Format { .. } | Refusal::Uring) => Exit::Usage,
        NotTaken::Refused(Refusal::Writers(_) | Refusal::Unanswered(_) | Refusal::Busy | Refusal::Detached) => {
            Exit::Busy
        }
        NotTaken::Protocol { .. } => Exit::Usage,
        _ => Exit::Unavailable,
    };
    warn!(%why, "not taken over");
    Fault::new(exit, format!("not taken over: {why}"), why.remedy())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixListener;

    use forebay_config::{Config, Sources};

    use super::*;
    use crate::mounted;

    const SOON: Duration = Duration::from_secs(60);

    fn identity() -> Identity {
        let loaded = Config::load(&Sources::new()).unwrap();
        mounted::identity(Path::new("/mnt/data"), "s3://bucket", &loaded)
    }

    #[tokio::test]
    async fn the_other_process_hears_when_nobody_waits_for_the_mount_any_more() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("handover.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (asked, is_asked) = oneshot::channel();
        let running = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.set_read_timeout(Some(SOON)).unwrap();
            socket.read_exact(&mut [0; 8]).unwrap();
            asked.send(()).unwrap();
            // It answers nothing, and sees the end.
            socket.read_to_end(&mut Vec::new()).unwrap()
        });
        let taking = Running { socket }.take(identity(), Order::ReleaseFirst, SOON, None);
        tokio::select! {
            taken = taking => panic!("nobody gave it: {:?}", taken.err()),
            asked = is_asked => asked.unwrap(),
        }
        assert!(running.join().unwrap() > 0, "the rest of what was asked");
    }

    #[test]
    fn sockets_that_are_not_for_this_user_are_passed_by_unless_the_mount_is_served() {
        let error = |kind| anyhow::Error::from(io::Error::from(kind)).context("cannot connect");
        for kind in [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused] {
            assert!(is_nobody(&error(kind), || true));
        }
        let denied = error(io::ErrorKind::PermissionDenied);
        assert!(is_nobody(&denied, || false) && !is_nobody(&denied, || true));
        assert!(!is_nobody(&error(io::ErrorKind::TimedOut), || false));
    }
}
