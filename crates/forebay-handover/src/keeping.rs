//! A keeper: has what a mount lives by while no daemon has it.
//!
//! It serves nobody and understands nothing of what it holds, so there is nothing in it that could fail with a daemon. A daemon
//! that ends without a word is dead, and what it had is kept for the next one; a daemon that says that the mount has ended is
//! believed. Plain, as [`crate::giving`]: what is held is of any type, and in a process, descriptors.

/// What happens, to a keeper of what is of type `D`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperEvent<D> {
    /// A daemon gives what the mount lives by, in the place of what it gave before.
    Keep(D),
    /// A daemon wants what is held: it serves from then on.
    Claim,
    /// The daemon that serves says that the mount has ended.
    Forget,
    /// The daemon that serves is gone.
    Gone,
    /// The kernel has ended the connection.
    Ended,
}

/// What is to be done by a keeper of what is of type `D`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperAction<D> {
    /// Give copies of this to the daemon that asked.
    Give(D),
    /// There is nothing to give, or another daemon serves.
    Refuse,
    /// What was held may be closed. There is nothing left to keep: the keeper may end.
    LetGo,
    /// Nothing.
    Nothing,
}

/// A keeper of one mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper<D> {
    held: Option<D>,
    is_served: bool,
}

impl<D> Default for Keeper<D> {
    fn default() -> Self {
        Self { held: None, is_served: false }
    }
}

impl<D: Clone> Keeper<D> {
    /// A keeper of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What it holds.
    #[must_use]
    pub fn held(&self) -> Option<&D> {
        self.held.as_ref()
    }

    /// Takes an event.
    pub fn on(&mut self, event: KeeperEvent<D>) -> KeeperAction<D> {
        match event {
            KeeperEvent::Keep(what) => {
                (self.held, self.is_served) = (Some(what), true);
                KeeperAction::Nothing
            }
            // A live daemon gives the mount away itself.
            KeeperEvent::Claim => match self.held.clone().filter(|_| !self.is_served) {
                Some(what) => {
                    self.is_served = true;
                    KeeperAction::Give(what)
                }
                None => KeeperAction::Refuse,
            },
            KeeperEvent::Gone => {
                self.is_served = false;
                KeeperAction::Nothing
            }
            KeeperEvent::Forget | KeeperEvent::Ended => {
                *self = Self::default();
                KeeperAction::LetGo
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_daemon_had_is_given_to_the_next_one_and_to_one_at_a_time() {
        let mut keeper = Keeper::new();
        assert_eq!(keeper.on(KeeperEvent::Claim), KeeperAction::Refuse, "there is nothing yet");
        keeper.on(KeeperEvent::Keep(7));
        assert_eq!(keeper.on(KeeperEvent::Claim), KeeperAction::Refuse, "its daemon lives");
        keeper.on(KeeperEvent::Gone);
        assert_eq!(keeper.on(KeeperEvent::Claim), KeeperAction::Give(7));
        assert_eq!(keeper.on(KeeperEvent::Claim), KeeperAction::Refuse, "that one serves now");
        keeper.on(KeeperEvent::Gone);
        assert_eq!(keeper.on(KeeperEvent::Claim), KeeperAction::Give(7), "it died, too");
        keeper.on(KeeperEvent::Keep(8));
        keeper.on(KeeperEvent::Gone);
        assert_eq!(keeper.on(KeeperEvent::Claim), KeeperAction::Give(8), "what it gave last");
    }

    #[test]
    fn a_mount_that_has_ended_is_let_go_of_whoever_says_so() {
        for end in [KeeperEvent::Forget, KeeperEvent::Ended] {
            let mut keeper = Keeper::new();
            keeper.on(KeeperEvent::Keep(7));
            assert_eq!(keeper.on(end), KeeperAction::LetGo);
            assert_eq!(keeper.held(), None);
            assert_eq!(keeper.on(KeeperEvent::Claim), KeeperAction::Refuse);
        }
    }
}
