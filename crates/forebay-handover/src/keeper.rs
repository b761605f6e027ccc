//! A keeper at work: what the plain machine decides ([`crate::keeping`]) is done here, by one thread, which hears from one thread for
//! each connection.

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{debug, error, info, warn};

use crate::keeping::{Action, Event, Keeper, Over, Peer};
use crate::kept::{Coming, FromKeeper, Kept, ToKeeper, send_kept};
use crate::launching::{Ended, Started};
use crate::peer::peer_of;
use crate::restart::Restart;
use crate::wire::{Wire, WireError};

/// How often it is looked whether the mount has ended: what waits for that is woken by each request.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked whether a daemon has ended that was started.
const STARTED_LOOKED_AT_EVERY: Duration = Duration::from_millis(50);

/// What a keeper's thread hears.
#[derive(Debug)]
enum Happened {
    Connected(UnixStream),
    Said(Peer, ToKeeper, Vec<OwnedFd>),
    Closed(Peer),
}

/// Who may be told of connections.
#[derive(Clone, Debug)]
pub struct Visitors(Sender<Happened>);

impl Visitors {
    /// A process connects, which may talk to us.
    pub fn connected(&self, socket: UnixStream) {
        // It fails when the keeper has ended; then the socket is closed.
        let _ = self.0.send(Happened::Connected(socket));
    }
}

/// A keeper of one mount.
#[derive(Debug)]
pub struct KeeperProcess {
    happened: Receiver<Happened>,
    tell: Sender<Happened>,
    keeper: Keeper<Arc<Kept>>,
    visitors: HashMap<Peer, Visitor>,
    latest: Peer,
    /// Where somebody listens who starts daemons in our place.
    launcher: Option<PathBuf>,
    /// Daemons that were started.
    started: Vec<Started>,
    looked_at: Instant,
}

/// A connection.
#[derive(Debug)]
struct Visitor {
    wire: Wire,
    socket: UnixStream,
    /// Its process, where the kernel says which.
    pid: Option<u32>,
    /// What it is about to give, and how it is started again.
    coming: Option<(Coming, Option<Restart>)>,
}

impl KeeperProcess {
    /// A keeper of nothing yet, and who tells it of connections. It has daemons started by whoever listens at `launcher`, or starts them
    /// itself.
    #[must_use]
    pub fn new(launcher: Option<PathBuf>) -> (Self, Visitors) {
        let (tell, happened) = channel();
        let visitors = Visitors(tell.clone());
        let now = Instant::now();
        let keeper = Keeper::new(now);
        let (none, started) = (HashMap::new(), Vec::new());
        (Self { happened, tell, keeper, visitors: none, latest: 0, launcher, started, looked_at: now }, visitors)
    }

    /// Keeps until there is nothing left to keep. What is held is closed when the keeper is dropped, and those who wait for that hear
    /// of it: nothing may lead to it any more by then.
    pub fn run(&mut self) {
        let over = loop {
            let mut event = self.next();
            let mut over = None;
            while let Some(happened) = event.take() {
                match self.keeper.on(happened, Instant::now()) {
                    Some(Action::LetGo(why)) => over = Some(why),
                    Some(action) => event = self.act(action),
                    None => {}
                }
            }
            if let Some(over) = over {
                break over;
            }
        };
        match over {
            Over::NeverBegan => debug!("there is nothing to keep"),
            Over::Ended => info!("the mount has ended, and is not kept any more"),
            Over::Unserved => {
                error!("no process serves the mount: it is let go of, and programs that use it get errors")
            }
        }
    }

    /// What happens next, if it is anything for the machine.
    fn next(&mut self) -> Option<Event<Arc<Kept>>> {
        let deadline = self.keeper.deadline();
        let every = if deadline.is_some() { STARTED_LOOKED_AT_EVERY } else { LOOKED_AT_EVERY };
        // Also where somebody has much to say.
        let look_at = (self.looked_at + every).min(deadline.unwrap_or(self.looked_at + every));
        let left = look_at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            self.looked_at = Instant::now();
            return self.look();
        }
        match self.happened.recv_timeout(left) {
            Ok(Happened::Connected(socket)) => {
                self.greet(socket);
                None
            }
            Ok(Happened::Said(peer, said, descriptors)) => self.said(peer, said, descriptors),
            Ok(Happened::Closed(peer)) => {
                self.visitors.remove(&peer);
                Some(Event::Closed(peer))
            }
            // Nothing: it is time to look. We can always tell ourselves something, so it is not the end.
            Err(_) => None,
        }
    }

    fn look(&mut self) -> Option<Event<Arc<Kept>>> {
        if self.keeper.held().is_some_and(|kept| kept.has_ended()) {
            return Some(Event::Ended);
        }
        // A thread that the kernel does not let go of, as one that waits for a mount or a disk, keeps all that its process had open.
        for visitor in self.visitors.values().filter(|visitor| visitor.pid.is_some_and(is_dying)) {
            info!(pid = ?visitor.pid, "a process of the mount was killed, and does not end: it is not waited for");
            // The thread that listens hears of it.
            let _ = visitor.socket.shutdown(Shutdown::Both);
        }
        let mut exited = None;
        self.started.retain_mut(|started| match started.ended() {
            Ok(None) => true,
            Ok(Some(Ended(code))) => {
                info!(pid = started.pid(), code, "a process that was to serve the mount has ended");
                exited = Some(code);
                false
            }
            Err(error) => {
                warn!(pid = started.pid(), %error, "it is not known whether a process that was to serve the mount has ended");
                false
            }
        });
        let is_late = self.keeper.deadline().is_some_and(|deadline| deadline <= Instant::now());
        exited.map(Event::Exited).or_else(|| is_late.then_some(Event::Late))
    }

    /// Has a thread listen to it.
    fn greet(&mut self, socket: UnixStream) {
        self.latest += 1;
        let (peer, tell) = (self.latest, self.tell.clone());
        let wires = || Ok::<_, std::io::Error>((Wire::new(socket.try_clone()?)?, Wire::new(socket.try_clone()?)?));
        let begun = wires().and_then(|(wire, heard)| {
            thread::Builder::new().name(format!("forebay-peer-{peer}")).spawn(move || listen(peer, heard, &tell))?;
            Ok(wire)
        });
        match begun {
            Ok(wire) => {
                let pid = peer_of(&socket).ok().and_then(|peer| peer.process);
                self.visitors.insert(peer, Visitor { wire, socket, pid, coming: None });
            }
            Err(error) => warn!(%error, "a process that wants to talk to the keeper is sent away"),
        }
    }

    fn said(&mut self, peer: Peer, said: ToKeeper, descriptors: Vec<OwnedFd>) -> Option<Event<Arc<Kept>>> {
        let visitor = self.visitors.get_mut(&peer)?;
        let taken = match said {
            ToKeeper::Keep { clones, restart } => {
                Coming::new(clones, descriptors).map(|coming| visitor.coming = Some((coming, restart)))
            }
            ToKeeper::Clones => match &mut visitor.coming {
                Some((coming, _)) => coming.more(descriptors),
                None => Err(WireError::Nonsense("clones of nothing")),
            },
            ToKeeper::Take => return Some(Event::Take(peer)),
            ToKeeper::Left => return Some(Event::Left(peer)),
            ToKeeper::Forget => return Some(Event::Forget(peer)),
        };
        if let Err(error) = taken {
            warn!(%error, "a process is not understood");
            // The thread that listens hears of it.
            let _ = visitor.socket.shutdown(Shutdown::Both);
            return None;
        }
        let (coming, restart) = visitor.coming.take()?;
        match coming.whole() {
            Ok(kept) => Some(Event::Keep(peer, Arc::new(kept), restart)),
            Err(coming) => {
                visitor.coming = Some((coming, restart));
                None
            }
        }
    }

    /// Does it. What came of it, if that is known at once.
    fn act(&mut self, action: Action<Arc<Kept>>) -> Option<Event<Arc<Kept>>> {
        match action {
            Action::Kept(peer) => self.say(peer, &FromKeeper::Kept),
            Action::SayNothing(peer) => self.say(peer, &FromKeeper::Nothing),
            Action::SayServed(peer) => self.say(peer, &FromKeeper::Served),
            Action::Give(peer, kept) => {
                info!("a process takes the mount that another one has left behind");
                // As many as came.
                let first = FromKeeper::Given { clones: kept.clones.len() as u32 };
                if let Some(visitor) = self.visitors.get_mut(&peer)
                    && let Err(error) = send_kept(&mut visitor.wire, &first, &FromKeeper::Clones, &kept)
                {
                    warn!(%error, "it does not listen");
                    let _ = visitor.socket.shutdown(Shutdown::Both);
                }
            }
            Action::Start(restart) => match Started::by(self.launcher.as_deref(), &restart) {
                Ok(started) => {
                    warn!(pid = started.pid(), ?restart, "the process that served the mount has died: started again");
                    self.started.push(started);
                }
                Err(error) => {
                    error!(%error, ?restart, "the process that served the mount has died, and cannot be started again");
                    return Some(Event::Exited(None));
                }
            },
            // It was looked for before.
            Action::LetGo(_) => {}
        }
        None
    }

    fn say(&mut self, peer: Peer, what: &FromKeeper) {
        if let Some(visitor) = self.visitors.get_mut(&peer)
            && let Err(error) = visitor.wire.send(what, &[])
        {
            debug!(%error, "a process does not listen");
        }
    }
}

impl Drop for KeeperProcess {
    fn drop(&mut self) {
        // Threads that listen have the sockets, too.
        for visitor in self.visitors.values() {
            let _ = visitor.socket.shutdown(Shutdown::Both);
        }
    }
}

/// Whether a process was killed, or has ended: its first thread has, which ends last otherwise (`proc_pid_stat(5)`).
fn is_dying(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before it may have any characters.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('Z' | 'X'))
}

/// Tells what is said on a connection, to its end.
fn listen(peer: Peer, mut wire: Wire, tell: &Sender<Happened>) {
    let mut is_heard = true;
    while is_heard {
        let happened = match wire.receive::<ToKeeper>(None) {
            Ok(Some((said, descriptors))) => Happened::Said(peer, said, descriptors),
            Ok(None) => continue,
            Err(error) => {
                if !matches!(error, WireError::Closed) {
                    warn!(%error, "a process that talks to the keeper is not understood");
                }
                Happened::Closed(peer)
            }
        };
        // Nobody hears us when the keeper has ended.
        is_heard = !matches!(happened, Happened::Closed(_));
        is_heard &= tell.send(happened).is_ok();
    }
}
