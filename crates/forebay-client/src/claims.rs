//! What the readers of all handles are ahead by, together: what the prefetch budget is divided by.
//!
//! A handle *claims* what was fetched ahead of its readers and not been read. Many are left open by readers that stopped in the
//! middle of a file, whose buffers others have long had; they must not hold the budget for as long as they are open. So a claim is
//! renewed by each read that looks at it, and is over when that has not happened for a [`TURN`] or two.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A claim that was made in one turn is over when the next one is.
const TURN: Duration = Duration::from_secs(1);

/// What one handle claims.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    bytes: u64,
    turn: u64,
}

/// Those of all handles.
#[derive(Debug)]
pub(crate) struct Claims {
    since: Instant,
    turns: Mutex<Turns>,
}

/// What was claimed in this turn and in the one before. Pure.
#[derive(Debug, Default)]
struct Turns {
    now: u64,
    recent: u64,
    older: u64,
}

impl Claims {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), turns: Mutex::default() }
    }

    /// What all handles claim but the one of `claim`.
    pub(crate) fn of_others(&self, claim: &Claim) -> u64 {
        let turn = self.turn();
        let mut turns = self.turns.lock();
        turns.advance(turn);
        turns.recent + turns.older - turns.counted(claim)
    }

    /// A handle claims so many bytes now.
    pub(crate) fn renew(&self, claim: &mut Claim, bytes: u64) {
        // Most readers claim nothing, and share nothing then.
        if bytes == 0 && claim.bytes == 0 {
            return;
        }
        let turn = self.turn();
        self.turns.lock().renew(turn, claim, bytes);
    }

    fn turn(&self) -> u64 {
        self.since.elapsed().as_secs() / TURN.as_secs()
    }
}

impl Turns {
    /// What of a claim is among what is counted.
    fn counted(&self, claim: &Claim) -> u64 {
        if claim.turn + 1 >= self.now { claim.bytes } else { 0 }
    }

    fn advance(&mut self, turn: u64) {
        if turn > self.now {
            self.older = if turn == self.now + 1 { self.recent } else { 0 };
            (self.now, self.recent) = (turn, 0);
        }
    }

    fn renew(&mut self, turn: u64, claim: &mut Claim, bytes: u64) {
        self.advance(turn);
        let counted = self.counted(claim);
        if claim.turn == self.now {
            self.recent -= counted;
        } else {
            self.older -= counted;
        }
        // Another thread may have looked at the clock later and come first.
        self.recent += bytes;
        *claim = Claim { bytes, turn: self.now };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[tokio::test(start_paused = true)]
    async fn a_handle_that_nobody_reads_claims_nothing_for_long() {
        let claims = Claims::new();
        let (mut idle, mut busy) = (Claim::default(), Claim::default());
        claims.renew(&mut idle, 100);
        claims.renew(&mut busy, 10);
        assert_eq!((claims.of_others(&idle), claims.of_others(&busy)), (10, 100));
        tokio::time::advance(TURN).await;
        claims.renew(&mut busy, 20);
        assert_eq!((claims.of_others(&idle), claims.of_others(&busy)), (20, 100));
        tokio::time::advance(TURN).await;
        assert_eq!((claims.of_others(&idle), claims.of_others(&busy)), (20, 0));
        claims.renew(&mut idle, 5);
        assert_eq!(claims.of_others(&busy), 5);
        tokio::time::advance(5 * TURN).await;
        assert_eq!(claims.of_others(&Claim::default()), 0);
    }

    proptest! {
        #[test]
        fn what_is_claimed_is_the_sum_of_what_was_claimed_in_the_last_two_turns(
            steps in prop::collection::vec((0usize..4, 0u64..1 << 40, 0u64..3), 1..100),
        ) {
            let (mut turns, mut turn) = (Turns::default(), 0);
            let mut claims: [Claim; 4] = Default::default();
            let mut model = [(0, 0); 4];
            for (handle, bytes, passes) in steps {
                turn += passes;
                turns.renew(turn, &mut claims[handle], bytes);
                model[handle] = (turn, bytes);
                let expected: u64 = model.iter().filter(|(at, _)| at + 1 >= turn).map(|(_, bytes)| bytes).sum();
                prop_assert_eq!(turns.recent + turns.older, expected);
                for (claim, (at, bytes)) in claims.iter().zip(model) {
                    prop_assert_eq!(turns.counted(claim), if at + 1 >= turn { bytes } else { 0 });
                }
            }
        }
    }
}
