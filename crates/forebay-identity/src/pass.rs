//! Passes: how somebody who proved who it is over TLS is known again on a connection that proves nothing itself, as UCX's do.
//!
//! ```text
//!   client ─ TLS: admit me, my client id is C ──────────► worker   issue: C may come, once, and is so-and-so
//!          ◄─ a pass: two numbers that nobody guesses ───
//!          ─ UCX: connect, client id C ─────────────────►          arrive: else it is rejected, and no endpoint is made
//!          ─ hello, with the client's number ───────────►          redeem: who it is
//!          ◄─ welcome, with the server's number ─────────
//! ```
//!
//! UCX has one client id for each of its own workers, so the client chooses it, and all servers of that client know it: it
//! keeps strangers out, and proves nothing. The pass is the proof. Each side shows its own half only, so whoever listens at the
//! address of a worker in its place has no answer; and each message carries the half of its sender, since UCX believes what a
//! message says of the connection that it belongs to.
//!
//! A pass is good for one connection, and for [`PASS_LIFETIME`]. Pure: times are handed in. There are few at a time, so they are
//! looked at one after the other.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};

use crate::error::PassError;
use crate::trust::Peer;

/// How long a pass may wait to be used.
pub const PASS_LIFETIME: Duration = Duration::from_secs(10);
/// Passes that wait at once. A client uses its pass within a round trip or two, so these are for hundreds that start together.
const MAX_WAITING: usize = 4096;
/// Those of one identity: a whole group of clients may have a single one, and still leaves room for others.
const MAX_OF_ONE: usize = MAX_WAITING / 2;

/// What the two ends of a connection know, and nobody else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// What the client shows, in its hello and in each request.
    pub client: u64,
    /// What the server shows, in its welcome and in each reply.
    pub server: u64,
}

/// A number that nobody guesses. Never zero, which stands for none.
///
/// # Errors
/// [`PassError::Random`].
pub fn random_number() -> Result<u64, PassError> {
    let mut bytes = [0; 8];
    SystemRandom::new().fill(&mut bytes).map_err(|_| PassError::Random)?;
    Ok(u64::from_le_bytes(bytes).max(1))
}

impl Pass {
    /// A new one.
    ///
    /// # Errors
    /// [`PassError::Random`].
    pub fn random() -> Result<Self, PassError> {
        Ok(Self { client: random_number()?, server: random_number()? })
    }

    /// The bytes that a worker sends: both halves, the client's first, little-endian.
    #[must_use]
    pub fn encode(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.client.to_le_bytes());
        bytes[8..].copy_from_slice(&self.server.to_le_bytes());
        bytes
    }

    /// Reads them; `None` when there are more or fewer.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = <[u8; 16]>::try_from(bytes).ok()?;
        let both = u128::from_le_bytes(bytes);
        Some(Self { client: both as u64, server: (both >> 64) as u64 })
    }
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pass")
    }
}

/// The passes of a worker that wait to be used, the oldest first.
#[derive(Debug, Default)]
pub struct Passes {
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    client_id: u64,
    pass: Pass,
    peer: Peer,
    issued: Instant,
    /// A connection with this client id was let in for it, and has said no hello yet.
    has_arrived: bool,
}

impl Passes {
    /// `peer` may make one connection with this client id, and show `pass` on it.
    ///
    /// # Errors
    /// [`PassError`] when the id is none, or too many passes wait.
    pub fn issue(&mut self, client_id: u64, pass: Pass, peer: Peer, now: Instant) -> Result<(), PassError> {
        self.expire(now);
        if client_id == 0 {
            return Err(PassError::ClientId);
        }
        if self.waiting.len() >= MAX_WAITING {
            return Err(PassError::Full(MAX_WAITING));
        }
        if self.waiting.iter().filter(|waiting| waiting.peer.identity == peer.identity).count() >= MAX_OF_ONE {
            return Err(PassError::FullOfOne(MAX_OF_ONE));
        }
        self.waiting.push_back(Waiting { client_id, pass, peer, issued: now, has_arrived: false });
        Ok(())
    }

    /// Somebody connects with this client id: whether it is let in. Once for each pass.
    #[must_use]
    pub fn arrive(&mut self, client_id: u64, now: Instant) -> bool {
        self.expire(now);
        let expected = |waiting: &&mut Waiting| waiting.client_id == client_id && !waiting.has_arrived;
        let arrived = self.waiting.iter_mut().find(expected);
        arrived.map(|waiting| waiting.has_arrived = true).is_some()
    }

    /// Who connected with this client id and shows `client`, a pass's half. Nobody else can show it from then on.
    pub fn redeem(&mut self, client_id: u64, client: u64, now: Instant) -> Option<(Pass, Peer)> {
        self.expire(now);
        let is_this = |waiting: &Waiting| waiting.client_id == client_id && waiting.pass.client == client;
        let at = self.waiting.iter().position(is_this)?;
        let Waiting { pass, peer, has_arrived, .. } = self.waiting.remove(at)?;
        // Of several passes for one client id, it was let in for another: that one is still to come.
        let let_in = |waiting: &&mut Waiting| waiting.client_id == client_id && waiting.has_arrived;
        if !has_arrived && let Some(other) = self.waiting.iter_mut().find(let_in) {
            other.has_arrived = false;
        }
        Some((pass, peer))
    }

    fn expire(&mut self, now: Instant) {
        let is_over = |waiting: &Waiting| now.saturating_duration_since(waiting.issued) >= PASS_LIFETIME;
        while self.waiting.front().is_some_and(is_over) {
            self.waiting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::name::Scope;
    use forebay_types::Role;

    const ID: u64 = 7;

    fn peer(name: &str) -> Peer {
        let identity = Scope::new("example.org", "prod").unwrap().identity(Role::Reader, name).unwrap();
        Peer { identity, until: SystemTime::UNIX_EPOCH, authority: None }
    }

    fn pass(number: u64) -> Pass {
        Pass { client: number, server: number + 1000 }
    }

    #[test]
    fn a_pass_is_good_for_one_connection() {
        let (mut passes, now) = (Passes::default(), Instant::now());
        assert!(!passes.arrive(ID, now), "nobody was admitted");
        passes.issue(ID, pass(1), peer("team-a"), now).unwrap();
        assert!(!passes.arrive(ID + 1, now), "another client id");
        assert!(passes.arrive(ID, now));
        assert!(!passes.arrive(ID, now), "one connection for each pass");
        assert_eq!(passes.redeem(ID, 2, now), None, "another number");
        assert_eq!(passes.redeem(ID + 1, 1, now), None, "somebody else's pass");
        assert_eq!(passes.redeem(ID, 1, now), Some((pass(1), peer("team-a"))));
        assert_eq!(passes.redeem(ID, 1, now), None);
        assert!(!passes.arrive(ID, now));
    }

    #[test]
    fn a_pass_that_is_not_used_in_time_is_good_for_nothing() {
        let (mut passes, start) = (Passes::default(), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        passes.issue(ID, pass(1), peer("team-a"), at(0)).unwrap();
        passes.issue(ID, pass(2), peer("team-a"), at(500)).unwrap();
        assert!(passes.arrive(ID, at(9_999)), "just in time");
        assert_eq!(passes.redeem(ID, 1, at(10_000)), None, "and too late");
        assert!(passes.arrive(ID, at(10_499)));
        assert_eq!(passes.redeem(ID, 2, at(10_500)), None);
        assert!(!passes.arrive(ID, at(10_500)));
    }

    #[test]
    fn passes_of_one_client_are_used_in_any_order() {
        let (mut passes, now) = (Passes::default(), Instant::now());
        for number in 1..=3 {
            passes.issue(ID, pass(number), peer("team-a"), now).unwrap();
        }
        for number in [3, 1, 2] {
            assert!(passes.arrive(ID, now), "{number}");
            assert!(passes.redeem(ID, number, now).is_some(), "{number}");
        }
        assert!(!passes.arrive(ID, now));
    }

    #[test]
    fn one_identity_leaves_room_for_others_and_all_of_them_are_bounded() {
        let (mut passes, now) = (Passes::default(), Instant::now());
        assert_eq!(passes.issue(0, pass(1), peer("team-a"), now), Err(PassError::ClientId));
        let mut issue = |name: &str, number: usize| passes.issue(number as u64 + 1, pass(1), peer(name), now);
        for number in 0..MAX_OF_ONE {
            issue("greedy", number).unwrap();
        }
        assert_eq!(issue("greedy", 0), Err(PassError::FullOfOne(MAX_OF_ONE)));
        for number in MAX_OF_ONE..MAX_WAITING {
            issue("team-a", number).unwrap();
        }
        assert_eq!(issue("team-b", 0), Err(PassError::Full(MAX_WAITING)));
        assert_eq!(passes.issue(ID, pass(1), peer("greedy"), now + PASS_LIFETIME), Ok(()), "the others have expired");
    }

    #[test]
    fn a_pass_survives_the_wire_and_shows_itself_nowhere() {
        let pass = Pass::random().unwrap();
        assert_eq!(Pass::decode(&pass.encode()), Some(pass));
        assert!(pass.client != 0 && pass.server != 0 && pass.client != pass.server);
        assert_eq!((Pass::decode(&[0; 15]), Pass::decode(&[0; 17])), (None, None));
        assert_eq!(format!("{pass:?}"), "Pass");
    }
}
