//! Credits: how many frames each end may send, so that no receive queue runs dry. Pure.
//!
//! Each end grants as many credits as it has receives for messages. A frame of a message takes one, and it comes back when the
//! receiver has given the receive to its card again: with the next frame that goes the other way, or, when half of them are owed and
//! nothing goes there, with a frame of credits alone. Such a frame takes none, for else two ends without credits would wait for each
//! other. It needs a receive all the same, so there are [`RESERVE`] more receives than credits.
//!
//! Why two are enough: a frame of credits goes out when half of the grant is owed. Until the peer has looked at it, the peer can use
//! the other half, and owe no more than that: a second one, and no third.

use crate::verbs::frame::FrameError;

/// Receives that no credit stands for.
pub(crate) const RESERVE: u16 = 2;

/// The credits of one connection, as one end counts them.
#[derive(Debug)]
pub(crate) struct Credits {
    /// What we grant.
    ours: u16,
    /// What the peer grants.
    theirs: u16,
    /// Frames of messages that we may send.
    left: u16,
    /// Receives that our card has again, and of which the peer does not know.
    owed: u16,
    /// Frames of messages that the peer may send, as far as it was told.
    allowed: u16,
}

impl Credits {
    /// Of a connection on which we take `ours` and the peer takes `theirs`.
    pub(crate) fn new(ours: u16, theirs: u16) -> Self {
        Self { ours, theirs, left: theirs, owed: 0, allowed: ours }
    }

    /// Whether a frame of a message may be sent.
    pub(crate) fn may_send(&self) -> bool {
        self.left > 0
    }

    /// Whether the peer must be told of credits, even if there is nothing else to say.
    pub(crate) fn must_tell(&self) -> bool {
        self.owed >= self.ours.div_ceil(2)
    }

    /// A frame is sent, which takes a credit or not: how many it returns.
    pub(crate) fn send(&mut self, takes_one: bool) -> u16 {
        self.left -= u16::from(takes_one);
        let told = std::mem::take(&mut self.owed);
        self.allowed += told;
        told
    }

    /// A frame has come that returns so many, and takes one or not.
    ///
    /// # Errors
    /// [`FrameError::Overrun`], [`FrameError::Credits`].
    pub(crate) fn received(&mut self, takes_one: bool, returned: u16) -> Result<(), FrameError> {
        if takes_one {
            self.allowed = self.allowed.checked_sub(1).ok_or(FrameError::Overrun)?;
        }
        // One of credits alone that returns none would be sent for nothing, as often as the peer likes.
        if returned > self.theirs - self.left || (!takes_one && returned == 0) {
            return Err(FrameError::Credits(returned));
        }
        self.left += returned;
        Ok(())
    }

    /// The receive of a frame that took one is the card's again.
    pub(crate) fn receives_again(&mut self) {
        self.owed += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_sends_without_a_credit_is_noticed_and_who_returns_what_it_was_not_given() {
        let mut credits = Credits::new(2, 3);
        assert_eq!((credits.received(true, 0), credits.received(true, 0)), (Ok(()), Ok(())));
        assert_eq!(credits.received(true, 0), Err(FrameError::Overrun));
        assert_eq!(credits.received(false, 1), Err(FrameError::Credits(1)), "all of them are here");
        credits.send(true);
        assert_eq!(credits.received(false, 0), Err(FrameError::Credits(0)), "a frame for nothing");
        assert_eq!(credits.received(false, 1), Ok(()));
        assert_eq!(credits.received(true, 0), Err(FrameError::Overrun), "it was told of none");
    }

    /// One end, whose card has receives.
    struct End {
        credits: Credits,
        receives: u16,
        /// Frames that have come and were not looked at: whether they took a credit, and what they return.
        arrived: VecDeque<(bool, u16)>,
    }

    impl End {
        fn new(ours: u16, theirs: u16) -> Self {
            Self { credits: Credits::new(ours, theirs), receives: ours + RESERVE, arrived: VecDeque::new() }
        }

        fn send(&mut self, to: &mut Self, takes_one: bool) {
            let returned = self.credits.send(takes_one);
            assert!(to.receives > 0, "a receive queue has run dry");
            to.receives -= 1;
            to.arrived.push_back((takes_one, returned));
        }

        fn send_if_it_may(&mut self, to: &mut Self) -> bool {
            let may = self.credits.may_send();
            if may {
                self.send(to, true);
            }
            may
        }

        /// Looks at the next frame, and tells of credits when it must.
        fn look(&mut self, to: &mut Self) -> bool {
            let Some((takes_one, returned)) = self.arrived.pop_front() else { return false };
            self.credits.received(takes_one, returned).unwrap();
            self.receives += 1;
            if takes_one {
                self.credits.receives_again();
            }
            if self.credits.must_tell() {
                self.send(to, false);
            }
            true
        }
    }

    proptest! {
        #[test]
        fn no_receive_queue_runs_dry_and_nobody_waits_for_ever(
            grants in (2u16..9, 2u16..9),
            steps in prop::collection::vec((any::<bool>(), any::<bool>()), 1..400),
        ) {
            let (mut left, mut right) = (End::new(grants.0, grants.1), End::new(grants.1, grants.0));
            for (is_left, sends) in steps {
                let (end, other) = if is_left { (&mut left, &mut right) } else { (&mut right, &mut left) };
                if sends {
                    end.send_if_it_may(other);
                } else {
                    end.look(other);
                }
            }
            // Once all that has come was looked at, each may send again.
            while left.look(&mut right) | right.look(&mut left) {}
            prop_assert!(left.send_if_it_may(&mut right) && right.send_if_it_may(&mut left));
        }
    }
}
