//! Both ends of a hand-over: what the plain machines decide is done here, over a socket, by a thread that may wait.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tracing::{debug, error, info, warn};

use crate::encoding::{decode, encode};
use crate::giving::{self, Giver, Outcome};
use crate::identity::Identity;
use crate::message::{Ask, Order, PROTOCOL, Refusal, Say};
use crate::sealed::{read_sealed, sealed};
use crate::state::{State, Written};
use crate::taking::{self, NotTaken, Taker};
use crate::wire::{Wire, WireError};

/// Files that are open for writing, at most: each has a descriptor.
const MAX_WRITTEN: usize = 100_000;

/// The old process, as far as a hand-over moves it. All of it may wait.
pub trait GivingSide {
    /// Paths of files that are open for writing and cannot go on in another process as they are, as while they are uploaded.
    fn writers(&mut self) -> Vec<String>;

    /// Stops serving, and waits until all that was taken is answered.
    ///
    /// # Errors
    /// Why it is not, within that time. Then [`GivingSide::resume`] follows.
    fn drain(&mut self, within: Duration) -> Result<(), Refusal>;

    /// What the new process needs. Nothing is under way, and nothing changes any more.
    ///
    /// # Errors
    /// When the connection cannot be duplicated.
    fn give(&mut self) -> io::Result<Given>;

    /// Serves again.
    fn resume(&mut self);

    /// A process that was given the mount has not said in time that it serves it: it may not any more. [`GivingSide::resume`] follows,
    /// or [`GivingSide::rescue`], unless it had said so in the last moment.
    fn taken_back(&mut self);

    /// Lets go of everything that only one process can have. The mount stays, and is not served any more.
    fn release(&mut self);

    /// After [`GivingSide::release`]: the new process does not serve. Leaves `given` to whoever has the mount served again.
    fn rescue(&mut self, given: Given);
}

/// What the new process needs.
#[derive(Debug)]
pub struct Given {
    /// What the kernel relies on.
    pub state: State,
    /// The connection to the kernel.
    pub connection: OwnedFd,
    /// Files that are open for writing, with a descriptor of the bytes of each.
    pub written: Vec<(Written, OwnedFd)>,
}

/// What the new process has been given, and may serve. Whoever does not come to serve it drops it in this order, in which its
/// fields go: the connection to the kernel first, and then that to the old process, which then serves on if it can.
#[derive(Debug)]
pub struct Held {
    /// What the kernel relies on.
    pub state: State,
    /// The connection to the kernel.
    pub connection: OwnedFd,
    /// Files that are open for writing, with a descriptor of the bytes of each.
    pub written: Vec<(Written, OwnedFd)>,
    /// The old process, which waits to hear whether the mount is served.
    pub holding: Holding,
}

/// The old process, which waits. Dropping it says that the mount is not served.
#[derive(Debug)]
pub struct Holding {
    wire: Wire,
    taker: Taker,
}

/// Gives the mount to the process at the other end of `socket`, if it can be. `cannot` says why it cannot, whoever asks. Waits for all
/// of it.
pub fn give(socket: UnixStream, identity: Identity, cannot: Option<Refusal>, side: &mut dyn GivingSide) -> Outcome {
    let wire = match Wire::of_hand_over(socket) {
        Ok(wire) => wire,
        Err(error) => {
            debug!(%error, "nobody to hand the mount over to");
            return Outcome::Kept;
        }
    };
    let giver = Giver::new(identity, cannot, Instant::now());
    Giving { wire, giver, look_at: None, given: None, side }.run()
}

struct Giving<'a> {
    wire: Wire,
    giver: Giver,
    /// When it is looked for writers.
    look_at: Option<Instant>,
    /// The state's memory and the connection, for as long as they may be needed once more.
    given: Option<(OwnedFd, OwnedFd)>,
    side: &'a mut dyn GivingSide,
}

impl Giving<'_> {
    fn run(mut self) -> Outcome {
        let mut actions = VecDeque::new();
        loop {
            while let Some(action) = actions.pop_front() {
                if let giving::Action::End(outcome) = action {
                    return outcome;
                }
                if let Some(event) = self.act(action) {
                    actions.extend(self.giver.on(event, Instant::now()));
                }
            }
            let event = self.wait();
            actions.extend(self.giver.on(event, Instant::now()));
        }
    }

    /// Does it. What came of it, if that is known at once.
    fn act(&mut self, action: giving::Action) -> Option<giving::Event> {
        match action {
            giving::Action::Send(say) => {
                let is_told = say == Say::Yours;
                match self.wire.send(&say, &[]) {
                    Ok(()) => is_told.then_some(giving::Event::Told),
                    Err(error) => {
                        debug!(%error, ?say, "the process that takes the mount does not listen");
                        Some(giving::Event::Closed)
                    }
                }
            }
            giving::Action::LookForWriters(at) => {
                self.look_at = Some(at);
                None
            }
            giving::Action::Drain(within) => Some(match self.side.drain(within) {
                Ok(()) => giving::Event::Drained(self.side.writers()),
                Err(refusal) => giving::Event::NotDrained(refusal),
            }),
            giving::Action::Give => self.send_state().err().map(giving::Event::NotGiven),
            giving::Action::TakeBack => {
                self.take_back();
                None
            }
            giving::Action::Resume => {
                info!("the mount is not handed over, and served on");
                self.given = None;
                self.side.resume();
                None
            }
            giving::Action::Release => {
                self.side.release();
                Some(giving::Event::Released)
            }
            giving::Action::Rescue => {
                self.rescue();
                None
            }
            // It was looked for before.
            giving::Action::End(_) => None,
        }
    }

    fn send_state(&mut self) -> Result<(), String> {
        let given = self.side.give().map_err(|error| format!("the mount cannot be given: {error}"))?;
        let bytes = encode(&given.state).map_err(|malformed| malformed.to_string())?;
        let written = given.written.iter().map(|(file, _)| file);
        given.state.check_written(written).map_err(|nonsense| nonsense.to_string())?;
        let memory = sealed(&bytes).map_err(|error| format!("there is no memory for the state: {error}"))?;
        for (file, bytes) in given.written {
            let sent = self.wire.send(&Say::Written(file), &[bytes.as_fd()]);
            sent.map_err(|error| error.to_string())?;
        }
        let sent = self.wire.send(&Say::Given, &[memory.as_fd(), given.connection.as_fd()]);
        sent.map_err(|error| error.to_string())?;
        self.given = self.giver.may_rescue().then_some((memory, given.connection));
        Ok(())
    }

    fn rescue(&mut self) {
        let Some((memory, connection)) = self.given.take() else { return };
        let state = read_sealed(&memory).map_err(|error| error.to_string());
        match state.and_then(|bytes| decode(&bytes).map_err(|malformed| malformed.to_string())) {
            // What was open for writing is lost, as after a crash: its bytes are what another process had.
            Ok(state) => self.side.rescue(Given { state, connection, written: Vec::new() }),
            Err(error) => error!(error, "what was given to another process cannot be read any more: the mount ends"),
        }
    }

    fn take_back(&mut self) {
        let told = self.wire.send(&Say::TakenBack, &[]);
        // First told, and then not heard: who is not heard and was told nothing takes us to be dead, and serves.
        match told.and_then(|()| self.wire.hear_no_more()) {
            Ok(()) => {
                warn!("the process that was given the mount does not come to serve it: it is taken back");
                self.side.taken_back();
            }
            // Its end is there to be read, and before it what it said last.
            Err(WireError::Closed) => {}
            Err(error) => warn!(%error, "the mount cannot be taken back from the process that was given it"),
        }
    }

    fn wait(&mut self) -> giving::Event {
        loop {
            if self.look_at.take_if(|at| *at <= Instant::now()).is_some() {
                return giving::Event::Writers(self.side.writers());
            }
            let deadline = self.giver.deadline();
            let until = self.look_at.into_iter().chain(deadline).min();
            match self.wire.receive::<Ask>(until) {
                Ok(Some((ask, _))) => return giving::Event::Asked(ask),
                Ok(None) if deadline.is_some_and(|deadline| deadline <= Instant::now()) => return giving::Event::Late,
                Ok(None) => {}
                Err(WireError::Closed) => return giving::Event::Closed,
                // It may be about to serve, and only the end of the connection tells that it is not.
                Err(error) if self.giver.may_be_served_elsewhere() => {
                    warn!(%error, "the process that has the mount is not understood");
                    // Who talks nonsense without an end is late, too.
                    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                        return giving::Event::Late;
                    }
                }
                Err(error) => {
                    warn!(%error, "the process that takes the mount is not understood");
                    self.say_what_we_speak();
                    return giving::Event::Closed;
                }
            }
        }
    }

    /// A process of another version understands the header of any message.
    fn say_what_we_speak(&mut self) {
        let said = Say::Refused(Refusal::Other("it is not understood".to_owned()));
        // It may be gone.
        let _ = self.wire.send(&said, &[]);
    }
}

/// Takes the mount over from the process at the other end of `socket`, waiting for writers for as long as `patience`, and tells
/// `tell` whose files are waited for. In the order "serve first" the mount is to be served at once, with [`Holding::serves`]
/// just before; in the other one, the old process has let go of everything when this returns.
///
/// # Errors
/// [`NotTaken`]: the old process serves on, unless it says otherwise.
pub fn take(
    socket: UnixStream,
    identity: Identity,
    order: Order,
    patience: Duration,
    tell: &mut dyn FnMut(&[String]),
) -> Result<Held, NotTaken> {
    take_if(socket, identity, order, patience, tell, &|_| Ok(()))
}

/// Says why files that are open for writing cannot go on in this process, if they cannot.
pub type Accepts<'a> = &'a dyn Fn(&[(Written, OwnedFd)]) -> Result<(), String>;

/// The same, unless `accepts` says why not: it is asked while the old process can still go on.
///
/// # Errors
/// As of [`take`].
pub fn take_if<'a>(
    socket: UnixStream,
    identity: Identity,
    order: Order,
    patience: Duration,
    tell: &'a mut dyn FnMut(&[String]),
    accepts: Accepts<'a>,
) -> Result<Held, NotTaken> {
    let wire = Wire::of_hand_over(socket).map_err(|error| NotTaken::Io(error.to_string()))?;
    let (taker, first) = Taker::new(identity, order, patience, Instant::now());
    Taking { descriptors: Vec::new(), written: Vec::new(), state: None, taker, tell, accepts, wire }.run(first)
}

/// It goes in this order: the connection to the kernel before that to the old process.
struct Taking<'a> {
    /// As they came: the state's memory, and the connection.
    descriptors: Vec<OwnedFd>,
    /// What came before.
    written: Vec<(Written, OwnedFd)>,
    state: Option<State>,
    taker: Taker,
    tell: &'a mut dyn FnMut(&[String]),
    accepts: Accepts<'a>,
    wire: Wire,
}

impl Taking<'_> {
    fn run(mut self, first: Vec<taking::Action>) -> Result<Held, NotTaken> {
        let mut actions = VecDeque::from(first);
        loop {
            while let Some(action) = actions.pop_front() {
                let event = match action {
                    // It is ours only by `Serve`.
                    taking::Action::End(ended) => return Err(ended.err().unwrap_or(NotTaken::Closed)),
                    taking::Action::Serve => return self.held(),
                    action => self.act(action),
                };
                if let Some(event) = event {
                    actions.extend(self.taker.on(event, Instant::now()));
                }
            }
            let event = self.wait()?;
            actions.extend(self.taker.on(event, Instant::now()));
        }
    }

    fn act(&mut self, action: taking::Action) -> Option<taking::Event> {
        match action {
            taking::Action::Send(ask) => self.wire.send(&ask, &[]).err().map(|error| {
                debug!(%error, ?ask, "the old process does not listen");
                taking::Event::Closed
            }),
            taking::Action::Tell(names) => {
                (self.tell)(&names);
                None
            }
            taking::Action::Look => Some(match self.look() {
                Ok(state) => {
                    self.state = Some(state);
                    taking::Event::Understood
                }
                Err(why) => taking::Event::NotUnderstood(why),
            }),
            taking::Action::Drop => {
                self.descriptors.clear();
                self.written.clear();
                None
            }
            // They were looked for before.
            taking::Action::Serve | taking::Action::End(_) => None,
        }
    }

    fn look(&self) -> Result<State, String> {
        let [memory, _] = self.descriptors.as_slice() else {
            return Err(format!("{} descriptors came, and not two", self.descriptors.len()));
        };
        let bytes = read_sealed(memory).map_err(|error| error.to_string())?;
        let state = decode(&bytes).map_err(|malformed| malformed.to_string())?;
        let written = self.written.iter().map(|(file, _)| file);
        state.check_written(written).map_err(|nonsense| nonsense.to_string())?;
        (self.accepts)(&self.written)?;
        Ok(state)
    }

    fn wait(&mut self) -> Result<taking::Event, NotTaken> {
        let deadline = self.taker.deadline();
        loop {
            return match self.wire.receive::<Say>(deadline) {
                Ok(Some((Say::Written(file), descriptors))) => {
                    self.keep(file, descriptors)?;
                    continue;
                }
                Ok(Some((say, descriptors))) => {
                    if say == Say::Given {
                        self.descriptors = descriptors;
                    }
                    Ok(taking::Event::Said(say))
                }
                Ok(None) => Ok(taking::Event::Late),
                Err(WireError::Closed) => Ok(taking::Event::Closed),
                // What was given is closed with us.
                Err(WireError::Protocol(theirs)) => Err(NotTaken::Protocol { theirs, ours: PROTOCOL }),
                Err(error) => Err(NotTaken::Io(error.to_string())),
            };
        }
    }

    /// A file that is open for writing comes, before the state in which it is.
    fn keep(&mut self, file: Written, descriptors: Vec<OwnedFd>) -> Result<(), NotTaken> {
        let refused = |why: &str| NotTaken::NotUnderstood(why.to_owned());
        if self.state.is_some() || self.written.len() == MAX_WRITTEN {
            return Err(refused("files that are open for writing come too late, or are too many"));
        }
        let one = <[OwnedFd; 1]>::try_from(descriptors);
        let [bytes] = one.map_err(|_| refused("a file that is open for writing came without its bytes"))?;
        self.written.push((file, bytes));
        Ok(())
    }

    /// What is ours now. The old process waits to hear that it is served.
    fn held(mut self) -> Result<Held, NotTaken> {
        let (state, connection) = (self.state.take(), self.descriptors.pop());
        let both = state.zip(connection);
        let (state, connection) = both.ok_or_else(|| NotTaken::NotUnderstood("it gave nothing".to_owned()))?;
        let holding = Holding { wire: self.wire, taker: self.taker };
        Ok(Held { state, connection, written: self.written, holding })
    }
}

impl Holding {
    /// Says that this process serves the mount: to be called when nothing can fail any more, and just before the first request is
    /// taken. From then on the old process does not serve, whatever becomes of this one.
    ///
    /// The other way round, the old process would go on after a death in between with a state that knows nothing of what was
    /// answered here: it would give the same handles to other files.
    ///
    /// # Errors
    /// [`NotTaken::TakenBack`]: the old process has waited for too long, and serves again. This one must not.
    pub fn serves(&mut self) -> Result<(), NotTaken> {
        let Self { wire, taker } = self;
        let mut actions = VecDeque::from(taker.on(taking::Event::Serves, Instant::now()));
        while let Some(action) = actions.pop_front() {
            match action {
                taking::Action::Send(ask) => {
                    if let Err(error) = wire.send(&ask, &[]) {
                        // Of one that is dead the mount is ours all the more.
                        debug!(%error, ?ask, "the old process does not listen");
                        let taken_back = is_taken_back(wire);
                        actions.extend(taker.on(taking::Event::NotHeard { taken_back }, Instant::now()));
                    }
                }
                taking::Action::End(ended) => return ended,
                // Who calls has the descriptors.
                _ => {}
            }
        }
        Ok(())
    }

    /// Waits until the old process has let go of everything else.
    ///
    /// # Errors
    /// [`NotTaken::NotReleased`] when it does not; the mount is this process's all the same.
    pub fn released(mut self) -> Result<(), NotTaken> {
        // The old process waits for that. To say it again does nothing.
        self.serves()?;
        let Self { wire, taker } = self;
        if !taker.waits_for_release() {
            return Ok(());
        }
        let taking = Taking {
            descriptors: Vec::new(),
            written: Vec::new(),
            state: None,
            taker,
            tell: &mut |_| {},
            accepts: &|_| Ok(()),
            wire,
        };
        taking.released()
    }
}

/// Whether the old process has said that it has taken the mount back.
fn is_taken_back(wire: &mut Wire) -> bool {
    while let Ok(Some((said, _))) = wire.receive::<Say>(Some(Instant::now())) {
        if said == Say::TakenBack {
            return true;
        }
    }
    false
}

impl Taking<'_> {
    fn released(mut self) -> Result<(), NotTaken> {
        loop {
            let event = self.wait()?;
            for action in self.taker.on(event, Instant::now()) {
                if let taking::Action::End(ended) = action {
                    return ended;
                }
            }
        }
    }
}
