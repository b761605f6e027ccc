//! How a run is to be kept: what a policy wishes for the bytes of a file.

use std::num::NonZeroU64;

use forebay_types::Priority;

/// How a run is to be kept. The default is as the cache sees fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Keep {
    /// Whose runs are evicted first.
    pub priority: Priority,
    /// Eviction passes the run by until its block is removed, as far as there is room for pins: a quarter of each tier is
    /// never pinned, so that readers have memory to read into. What was to be pinned beyond that is kept by its priority
    /// alone. Where there are disks, it is the copy on disk that stays.
    pub pinned: bool,
    /// Whose quota it counts against.
    pub account: Option<Account>,
}

/// Names a quota. It is the same after a restart, so runs on disk remember it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Account(NonZeroU64);

impl Account {
    /// The account of this name: its 64-bit FNV-1a hash (Fowler, Noll, Vo).
    #[must_use]
    pub fn of(name: &[u8]) -> Self {
        let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self(NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN))
    }

    /// Its number; 0 stands for none.
    pub(crate) fn to_u64(account: Option<Self>) -> u64 {
        account.map_or(0, |account| account.0.get())
    }

    /// What [`Account::to_u64`] gave.
    pub(crate) fn from_u64(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }
}

/// A [`Keep`] as the header of an extent holds it: 0 is the default, so that extents which were written before there were
/// any read as that.
impl Keep {
    const PRIORITY: u8 = 0b11;
    const PINNED: u8 = 0b100;

    pub(crate) fn to_bits(self) -> u8 {
        let priority = match self.priority {
            Priority::Normal => 0,
            Priority::Low => 1,
            Priority::High => 2,
        };
        priority | if self.pinned { Self::PINNED } else { 0 }
    }

    pub(crate) fn from_bits(bits: u8, account: u64) -> Self {
        let priority = match bits & Self::PRIORITY {
            1 => Priority::Low,
            2 => Priority::High,
            _ => Priority::Normal,
        };
        Self { priority, pinned: bits & Self::PINNED != 0, account: Account::from_u64(account) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_the_published_hash_of_its_name() {
        // Of the test vectors at http://www.isthe.com/chongo/tech/comp/fnv/.
        assert_eq!(Account::to_u64(Some(Account::of(b"foobar"))), 0x8594_4171_f739_67e8);
        assert_eq!(Account::to_u64(None), 0);
    }

    #[test]
    fn what_a_header_says_reads_back_and_nothing_said_is_the_default() {
        for priority in [Priority::Low, Priority::Normal, Priority::High] {
            for pinned in [false, true] {
                for account in [None, Some(Account::of(b"/a"))] {
                    let keep = Keep { priority, pinned, account };
                    assert_eq!(Keep::from_bits(keep.to_bits(), Account::to_u64(account)), keep);
                }
            }
        }
        assert_eq!(Keep::from_bits(0, 0), Keep::default());
    }
}
