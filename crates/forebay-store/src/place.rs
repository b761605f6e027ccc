//! Where a copy stands in its tier's order: of which rank it is, and in which queues.

use forebay_types::Priority;

use crate::Keep;
use crate::sieve::Token;

/// Which copies go before others; the last rank never goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Low,
    Normal,
    High,
    Pinned,
}

pub(crate) const RANKS: usize = 4;
/// The ranks that go, the first ones first.
pub(crate) const GOING: [Rank; 3] = [Rank::Low, Rank::Normal, Rank::High];

impl From<Priority> for Rank {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Low => Self::Low,
            Priority::Normal => Self::Normal,
            Priority::High => Self::High,
        }
    }
}

/// Where a copy stands. Changed under its tier's lock only.
#[derive(Debug, Default)]
pub(crate) struct Place {
    pub(crate) keep: Keep,
    pub(crate) standing: Option<Standing>,
}

/// Its place in the order, while it is in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) rank: Rank,
    pub(crate) token: Token,
    /// In the queue of its account.
    pub(crate) of_account: Option<Token>,
}

impl Place {
    pub(crate) fn is_pinned(&self) -> bool {
        self.standing.is_some_and(|standing| standing.rank == Rank::Pinned)
    }
}
