//! The places of a listener that runs: who waits for one, and how a connection is told to leave its own. What is
//! decided is in [`crate::places`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_locks::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::places::{Admission, Doing, Places, Source, Verdict};

/// How long a connection that makes room may take for an answer that it was asked for at that very moment. The next one
/// waits for it.
const MAKES_ROOM_WITHIN: Duration = Duration::from_millis(250);

/// The places of a listener.
pub(crate) struct Seats {
    taken: Mutex<TakenSeats>,
    /// A connection has left its place, or may be told to.
    changed: Notify,
    /// All are to end.
    stop: CancellationToken,
}

struct TakenSeats {
    places: Places,
    leave: HashMap<u64, CancellationToken>,
}

impl Seats {
    /// `most` places; all connections are to end with `stop`.
    pub(crate) fn new(most: usize, stop: CancellationToken) -> Arc<Self> {
        let taken = TakenSeats { places: Places::new(most), leave: HashMap::new() };
        Arc::new(Self { taken: Mutex::new(taken), changed: Notify::new(), stop })
    }

    /// A place for a connection from `source`, once there is one; `None` if it is to have none.
    pub(crate) async fn place(self: &Arc<Self>, source: Source) -> Option<Place> {
        loop {
            match self.admit(source) {
                Verdict::Taken(number) => return Some(self.seat(number)),
                Verdict::Refused => return None,
                // What happens before this waits for it is not forgotten.
                Verdict::Wait => self.changed.notified().await,
            }
        }
    }

    fn admit(&self, source: Source) -> Verdict {
        let mut taken = self.taken.lock();
        let Admission { verdict, leaves } = taken.places.admit(source);
        if let Some(told) = leaves.and_then(|number| taken.leave.get(&number)) {
            told.cancel();
        }
        verdict
    }

    fn seat(self: &Arc<Self>, number: u64) -> Place {
        let told = self.stop.child_token();
        self.taken.lock().leave.insert(number, told.clone());
        let turn = Turn { seats: Arc::clone(self), number, answer_is_over: AtomicBool::new(false) };
        Place { turn: Arc::new(turn), told }
    }
}

/// The place of a connection; free again when it is dropped.
pub(crate) struct Place {
    turn: Arc<Turn>,
    /// It is to end.
    told: CancellationToken,
}

impl Place {
    /// What tells what the connection does.
    pub(crate) fn turn(&self) -> Arc<Turn> {
        Arc::clone(&self.turn)
    }

    /// Waits until the connection is to end.
    pub(crate) async fn told(&self) {
        self.told.cancelled().await;
    }

    /// How long its answer may still take now that it is to end, `within` at most; `None` if it is to end at once.
    pub(crate) fn grace(&self, within: Duration) -> Option<Duration> {
        let seats = &self.turn.seats;
        let makes_room = self.told.is_cancelled() && !seats.stop.is_cancelled();
        let doing = seats.taken.lock().places.doing(self.turn.number)?;
        match doing {
            // No answer is lost; it would be waited for until its head should have come.
            Doing::Silent => None,
            Doing::Awaited if makes_room => None,
            Doing::Answered | Doing::Awaited | Doing::Idle if makes_room => Some(within.min(MAKES_ROOM_WITHIN)),
            Doing::Answered | Doing::Awaited | Doing::Idle => Some(within),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Turn { seats, number, .. } = &*self.turn;
        let mut taken = seats.taken.lock();
        taken.places.leave(*number);
        taken.leave.remove(number);
        drop(taken);
        seats.changed.notify_one();
    }
}

/// Whose turn it is on a connection, as what serves it tells. It outlives the place, if what was asked for does.
pub(crate) struct Turn {
    seats: Arc<Seats>,
    number: u64,
    /// All of the answer was handed to the connection, which has not sent all of it.
    answer_is_over: AtomicBool,
}

impl Turn {
    /// The head of a request has come.
    pub(crate) fn asked(&self) {
        // Of several that a client sent at once, the next may begin before the last answer is out.
        self.answer_is_over.store(false, Ordering::Relaxed);
        self.now(Doing::Answered);
    }

    /// Its client is to go on.
    pub(crate) fn awaits(&self) {
        self.now(Doing::Awaited);
    }

    /// Its client went on.
    pub(crate) fn goes_on(&self) {
        self.now(Doing::Answered);
    }

    /// Nothing is added to the answer any more.
    pub(crate) fn answered(&self) {
        self.answer_is_over.store(true, Ordering::Relaxed);
    }

    /// All that was to be sent is with the kernel.
    pub(crate) fn sent(&self) {
        if self.answer_is_over.swap(false, Ordering::Relaxed) {
            self.now(Doing::Idle);
        }
    }

    fn now(&self, doing: Doing) {
        self.seats.taken.lock().places.now(self.number, doing);
        if doing != Doing::Answered {
            self.seats.changed.notify_one();
        }
    }
}
