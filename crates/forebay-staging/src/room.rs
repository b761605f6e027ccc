//! The room for staged bytes, and the waiting for it: the shell of [`Space`].

use std::collections::HashMap;
use std::time::Duration;

use forebay_locks::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::space::{Space, Ticket};

/// Bytes that may be staged by this process.
#[derive(Debug)]
pub(crate) struct Room {
    state: Mutex<RoomState>,
    /// A writer began to wait, or there may be something to let go of for those that do.
    pressure: Notify,
}

#[derive(Debug)]
struct RoomState {
    space: Space,
    turns: HashMap<Ticket, oneshot::Sender<()>>,
}

/// Room that was taken and not used yet; what is left of it is given back.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    room: &'a Room,
    bytes: u64,
}

impl Room {
    pub(crate) fn new(size: u64) -> Self {
        Self {
            state: Mutex::new(RoomState { space: Space::new(size), turns: HashMap::new() }),
            pressure: Notify::new(),
        }
    }

    /// Room for `bytes`, now or not at all.
    pub(crate) fn try_take(&self, bytes: u64) -> Option<Reserved<'_>> {
        let taken = self.state.lock().space.take(bytes);
        taken.then(|| Reserved { room: self, bytes })
    }

    /// Waits for room; `None` when none was free in time, or never can be.
    pub(crate) async fn take(&self, bytes: u64, limit: Duration) -> Option<Reserved<'_>> {
        let (turn, my_turn) = oneshot::channel();
        let ticket = {
            let mut state = self.state.lock();
            if state.space.take(bytes) {
                return Some(Reserved { room: self, bytes });
            }
            if bytes > state.space.size() {
                return None;
            }
            let ticket = state.space.wait(bytes);
            state.turns.insert(ticket, turn);
            ticket
        };
        let mut waiting = Waiting { room: self, ticket, bytes };
        self.pressure.notify_one();
        tokio::time::timeout(limit, my_turn).await.ok()?.ok()?;
        waiting.bytes = 0;
        Some(Reserved { room: self, bytes })
    }

    /// Takes room for bytes that are staged already.
    pub(crate) fn take_anyway(&self, bytes: u64) {
        self.state.lock().space.take_anyway(bytes);
    }

    /// Gives room back.
    pub(crate) fn give(&self, bytes: u64) {
        if bytes > 0 {
            let mut state = self.state.lock();
            state.space.give(bytes);
            state.serve();
        }
    }

    /// The size, the bytes in use, and how many wait.
    pub(crate) fn occupancy(&self) -> (u64, u64, usize) {
        let state = self.state.lock();
        (state.space.size(), state.space.used(), state.space.waiting())
    }

    /// The bytes that the waiting writers lack.
    pub(crate) fn missing(&self) -> u64 {
        self.state.lock().space.missing()
    }

    /// There may be something to let go of.
    pub(crate) fn look_again(&self) {
        if self.missing() > 0 {
            self.pressure.notify_one();
        }
    }

    /// Returns when a writer waits for room, or something changed for those that do.
    pub(crate) async fn pressed(&self) {
        self.pressure.notified().await;
    }
}

impl RoomState {
    fn serve(&mut self) {
        while let Some(ticket) = self.space.next() {
            if let Some(turn) = self.turns.remove(&ticket) {
                // A writer that left meanwhile finds in `Waiting` that its turn had come, and gives the room back.
                let _ = turn.send(());
            }
        }
    }
}

/// Leaves the queue when the wait ends without its turn: out of time, or given up by the writer.
struct Waiting<'a> {
    room: &'a Room,
    ticket: Ticket,
    /// 0 when the turn was taken.
    bytes: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut state = self.room.state.lock();
        state.turns.remove(&self.ticket);
        if !state.space.leave(self.ticket) {
            state.space.give(self.bytes);
        }
        state.serve();
    }
}

impl Reserved<'_> {
    /// So many bytes are staged now; the rest is given back.
    pub(crate) fn spend(mut self, bytes: u64) {
        debug_assert!(bytes <= self.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.room.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const LONG: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn room_that_is_given_back_goes_to_those_who_wait() {
        let room = Arc::new(Room::new(10));
        let mine = room.try_take(8).unwrap();
        let theirs = {
            let room = Arc::clone(&room);
            tokio::spawn(async move { room.take(6, LONG).await.map(|reserved| reserved.spend(6)) })
        };
        tokio::time::timeout(LONG, room.pressed()).await.unwrap();
        assert_eq!((room.missing(), room.try_take(1).is_none()), (4, true));
        mine.spend(3);
        assert_eq!(theirs.await.unwrap(), Some(()));
        assert_eq!(room.occupancy(), (10, 9, 0));
    }

    #[tokio::test]
    async fn one_who_gives_up_waiting_leaves_nothing_behind() {
        let room = Room::new(10);
        let mine = room.try_take(10).unwrap();
        assert!(room.take(1, Duration::from_millis(1)).await.is_none());
        assert!(room.take(11, LONG).await.is_none(), "there never will be so much");
        {
            let mut waiting = Box::pin(room.take(1, LONG));
            assert!(tokio::time::timeout(Duration::from_millis(1), &mut waiting).await.is_err());
            drop(mine);
            // Its turn has come, and it is dropped before it hears of it.
        }
        assert_eq!(room.occupancy(), (10, 0, 0));
    }
}
