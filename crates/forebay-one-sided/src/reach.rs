//! What a client can reach of a worker's memory: which regions of its slab and of its board, by which keys.
//!
//! ```text
//! opened   0 memory u32 (0 slab, 1 board) │ 4 key u32 │ 8 where it begins in that u64 │ 16 bytes u64 │ 24 address u64
//! ```

use std::collections::BTreeMap;

use crate::location::Plan;

/// Bytes of what a client is told of a region.
pub const OPENED_LEN: usize = 32;
/// Regions that a worker may open, at most: of 1 GiB each, more than a machine has.
const MAX_REGIONS: usize = 16_384;

/// Which memory of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Memory {
    /// What blocks lie in.
    Slab = 0,
    /// What their seals are on.
    Board = 1,
}

/// A region that may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Of which memory.
    pub memory: Memory,
    /// Its key.
    pub key: u32,
    /// Where it begins in that memory, in bytes.
    pub start: u64,
    /// Its bytes.
    pub length: u64,
    /// Its address, as the worker's card knows it.
    pub address: u64,
}

/// Why a region is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReachError {
    /// A kind of memory that this version does not know.
    #[error("it opens memory of kind {0}")]
    Memory(u32),
    /// No bytes, or some beyond the last address.
    #[error("it opens {length} bytes at {address:#x}, from byte {start} on")]
    Place {
        /// As [`Opened::start`].
        start: u64,
        /// As [`Opened::length`].
        length: u64,
        /// As [`Opened::address`].
        address: u64,
    },
    /// More than any worker has.
    #[error("it opens more than {MAX_REGIONS} regions of its memory")]
    Many,
}

impl Opened {
    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> [u8; OPENED_LEN] {
        let mut bytes = [0; OPENED_LEN];
        bytes[..4].copy_from_slice(&(self.memory as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.key.to_le_bytes());
        for (place, number) in bytes[8..].chunks_exact_mut(8).zip([self.start, self.length, self.address]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Reads what [`Opened::encode`] wrote.
    ///
    /// # Errors
    /// [`ReachError`]: the peer breaks the protocol.
    pub fn decode(bytes: &[u8; OPENED_LEN]) -> Result<Self, ReachError> {
        let [m0, m1, m2, m3, k0, k1, k2, k3, rest @ ..] = *bytes;
        let memory = match u32::from_le_bytes([m0, m1, m2, m3]) {
            0 => Memory::Slab,
            1 => Memory::Board,
            other => return Err(ReachError::Memory(other)),
        };
        let mut numbers = rest.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let mut next = || numbers.next().unwrap_or_default();
        let (start, length, address) = (next(), next(), next());
        if length == 0 || start.checked_add(length).is_none() || address.checked_add(length).is_none() {
            return Err(ReachError::Place { start, length, address });
        }
        Ok(Self { memory, key: u32::from_le_bytes([k0, k1, k2, k3]), start, length, address })
    }
}

/// Memory at the worker, as a card names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePlace {
    /// Where it begins.
    pub address: u64,
    /// Its key.
    pub key: u32,
}

/// The two reads of a [`Plan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// Of the bytes: [`Plan::len`] of them.
    pub data: RemotePlace,
    /// Of their seals, once those are here: [`Plan::seals_len`].
    pub seals: RemotePlace,
}

/// The regions that one worker has opened on one connection.
#[derive(Debug, Default)]
pub struct Reach {
    /// By where they begin.
    regions: BTreeMap<(Memory, u64), Opened>,
}

impl Reach {
    /// A region was opened, maybe in the place of one that began there before.
    ///
    /// # Errors
    /// [`ReachError::Many`].
    pub fn open(&mut self, opened: Opened) -> Result<(), ReachError> {
        let key = (opened.memory, opened.start);
        if self.regions.len() >= MAX_REGIONS && !self.regions.contains_key(&key) {
            return Err(ReachError::Many);
        }
        self.regions.insert(key, opened);
        Ok(())
    }

    /// Nothing can be reached any more.
    pub fn close(&mut self) {
        self.regions.clear();
    }

    /// How to read what a plan wants; `None` when it is not all in one region each.
    #[must_use]
    pub fn requests(&self, plan: &Plan) -> Option<Requests> {
        let (data, seals) = (plan.data(), plan.seals());
        Some(Requests {
            data: self.find(Memory::Slab, data.start, data.end)?,
            seals: self.find(Memory::Board, seals.start, seals.end)?,
        })
    }

    fn find(&self, memory: Memory, start: u64, end: u64) -> Option<RemotePlace> {
        let (_, region) = self.regions.range((memory, 0)..=(memory, start)).next_back()?;
        let within = start - region.start;
        // Neither overflows: both were looked at when it was read.
        (end <= region.start + region.length).then(|| RemotePlace { address: region.address + within, key: region.key })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use forebay_types::{BlockKey, FileId};
    use proptest::prelude::*;

    use super::*;
    use crate::location::Location;
    use crate::seal::Generation;

    fn plan(at: u32, length: u32) -> Plan {
        let location = Location { generation: Generation::new(1).unwrap(), at, first: 0, length };
        location.plan(BlockKey { file: FileId([0; 16]), index: 0 }, 0, length).unwrap()
    }

    #[test]
    fn what_lies_in_an_open_region_is_read_by_its_key_and_nothing_else_is() {
        let mut reach = Reach::default();
        let slab =
            |start, key| Opened { memory: Memory::Slab, key, start, length: 1 << 20, address: 0x10_0000 + start };
        for opened in [
            slab(0, 1),
            slab(1 << 20, 2),
            Opened { memory: Memory::Board, key: 3, start: 0, length: 64 * 64, address: 0x9000 },
        ] {
            assert_eq!(Opened::decode(&opened.encode()), Ok(opened));
            reach.open(opened).unwrap();
        }
        let requests = reach.requests(&plan(33, 40_000)).unwrap();
        assert_eq!(requests.data, RemotePlace { address: 0x10_0000 + 33 * 32_768, key: 2 });
        assert_eq!(requests.seals, RemotePlace { address: 0x9000 + 33 * 64, key: 3 });
        assert_eq!(reach.requests(&plan(31, 40_000)), None, "it lies in two");
        assert_eq!(reach.requests(&plan(64, 1)), None, "nobody opened it");
        // Anew, under another key.
        reach.open(slab(1 << 20, 9)).unwrap();
        assert_eq!(reach.requests(&plan(33, 1)).unwrap().data.key, 9);
        reach.close();
        assert_eq!(reach.requests(&plan(33, 1)), None);
    }

    #[test]
    fn a_worker_that_opens_without_end_is_noticed() {
        let mut reach = Reach::default();
        let open = |start| Opened { memory: Memory::Slab, key: 1, start, length: 1, address: 0 };
        (0..MAX_REGIONS as u64).for_each(|start| reach.open(open(start)).unwrap());
        assert_eq!(reach.open(open(u64::MAX - 1)), Err(ReachError::Many));
        assert_eq!(reach.open(open(0)), Ok(()));
    }

    proptest! {
        #[test]
        fn no_bytes_open_what_ends_beyond_the_last_address(
            bytes in prop::array::uniform32(any::<u8>()),
            at in any::<u32>(),
        ) {
            for memory in [bytes[0], bytes[0] % 2] {
                let mut bytes = bytes;
                bytes[..4].copy_from_slice(&u32::from(memory).to_le_bytes());
                let Ok(opened) = Opened::decode(&bytes) else { continue };
                let mut reach = Reach::default();
                reach.open(opened).unwrap();
                let at = at % (u32::MAX - 128);
                let _ = reach.requests(&plan(at, 4096));
            }
        }
    }
}
