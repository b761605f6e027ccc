//! What can be asked of a worker, and how a request wants to be treated.

use crate::limits::{MAX_CHANGE_BODY, MAX_REQUEST_BODY, MAX_UPLOAD_BODY};

/// What is asked. The numbers are part of the wire protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// Answer, so that the caller knows that the peer is alive.
    Ping = 1,
    /// Bytes of a block. Body: empty, or the file version's description.
    Read = 2,
    /// Bring bytes of a block into the cache and send none. Body as for [`Op::Read`].
    Fill = 3,
    /// Attributes of a path. Body: the path.
    Stat = 4,
    /// One page of a directory. Body: [`crate::message::ListRequest`].
    List = 5,
    /// Which sectors of a block are cached, and where. Body: empty.
    Coverage = 6,
    /// The worker's counters. Body of the reply: a JSON object. With [`Flags::BELOW`] only the room of the origins at which the
    /// caller may read: `origins`, each with `path` and `room`. A worker that does not know this tells all or refuses, as without.
    Stats = 7,
    /// The ways to reach the worker besides this one. Body of the reply: [`crate::message::PathsReply`].
    Paths = 8,
    /// Drop blocks from the cache. Body: [`crate::message::FreeRequest`]. Body of the reply: [`crate::message::FreeReply`].
    Free = 9,
    /// Take a part of a block that another worker holds, and is about to lose, into the cache. Body:
    /// [`crate::message::AdoptRequest`]. Bytes that are held already are not fetched; the reply's provenance says which were.
    Adopt = 10,
    /// Change the namespace. Body: [`crate::message::Change`]. Body of the reply: [`crate::message::ChangeReply`].
    Change = 11,
    /// Take the bytes of a small file, or a part of a larger one, to the origin. Body: [`crate::message::UploadRequest`]. Body of
    /// the reply: [`crate::message::ChangeReply`].
    Upload = 12,
    /// Forget what is known of a path, and ask the origin when it is asked for next. Body: the path. With [`Flags::BELOW`] also of
    /// everything below it. A worker has those wait who ask for it too often.
    Refresh = 13,
    /// Attributes of a path, and with them the bytes of a small file. Body: the path. The length is the most bytes that the caller
    /// has room for; with [`Flags::CACHED`], it wants none that would have to be fetched. Body of the reply:
    /// [`crate::message::StatReadReply`]; payload: the whole file, or nothing.
    StatRead = 14,
    /// Let the caller make one connection that proves nothing itself, over UCX. Body: the client id that it connects with, a `u64`.
    /// Body of the reply: the pass that it shows then, of 16 bytes. The server over TCP answers it: it knows who asks.
    Admit = 15,
    /// Where a part of a file lies that was uploaded in several. The block is the file's first, the offset the number of the part,
    /// counted from 1. Body as for [`Op::Read`]. Body of the reply: [`crate::message::PartReply`].
    Part = 16,
}

impl Op {
    /// The operation with this wire number.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        use Op::*;
        const OPS: [Op; 16] = [
            Ping, Read, Fill, Stat, List, Coverage, Stats, Paths, Free, Adopt, Change, Upload, Refresh, StatRead,
            Admit, Part,
        ];
        OPS.into_iter().find(|op| *op as u8 == number)
    }

    /// Its name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Read => "read",
            Self::Fill => "fill",
            Self::Stat => "stat",
            Self::List => "list",
            Self::Coverage => "coverage",
            Self::Stats => "stats",
            Self::Paths => "paths",
            Self::Free => "free",
            Self::Adopt => "adopt",
            Self::Change => "change",
            Self::Upload => "upload",
            Self::Refresh => "refresh",
            Self::StatRead => "stat-read",
            Self::Admit => "admit",
            Self::Part => "part",
        }
    }

    /// Whether answers bring a payload, which lands in the caller's buffer.
    #[must_use]
    pub fn brings_payload(self) -> bool {
        matches!(self, Self::Read | Self::StatRead)
    }

    /// The longest body that a request of this kind has.
    #[must_use]
    pub fn max_body(self) -> u32 {
        match self {
            Self::Upload => MAX_UPLOAD_BODY,
            Self::Change => MAX_CHANGE_BODY,
            _ => MAX_REQUEST_BODY,
        }
    }
}

/// How a request wants to be treated: a set of bits, part of the wire protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// Ask the origin, whatever a metadata cache says.
    pub const REVALIDATE: Self = Self(1);
    /// The caller checks the bytes of a read itself: send the checksums of its sectors as the reply's body, in the form of
    /// [`forebay_types::SectorChecksums::as_bytes`], and check nothing on the way. A service that cannot leaves the body empty
    /// and vouches for the bytes.
    pub const CHECKSUMS: Self = Self(2);
    /// What was sent before was corrupt: check what is cached of the block, whatever the settings, and drop what is bad.
    pub const SCRUB: Self = Self(4);
    /// Give only what is cached; what is not is [`forebay_types::FailureKind::NotCached`], and neither another worker
    /// nor the origin is asked for it.
    pub const CACHED: Self = Self(8);
    /// What is asked concerns everything below the path, too.
    pub const BELOW: Self = Self(16);
    /// Ask no other worker for what is not cached, but the origin: one of those that would be asked keeps the caller waiting.
    /// A worker that does not know this asks them, and answers later.
    pub const UNAIDED: Self = Self(32);
    /// The caller can read the worker's memory by itself: tell where the bytes lie, if they are in it. A worker that does not know
    /// this, or does not tell, answers as ever.
    pub const LOCATE: Self = Self(64);

    /// All bits of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_is_a_bit_of_its_own() {
        const ALL: [Flags; 7] = [
            Flags::REVALIDATE,
            Flags::CHECKSUMS,
            Flags::SCRUB,
            Flags::CACHED,
            Flags::BELOW,
            Flags::UNAIDED,
            Flags::LOCATE,
        ];
        assert!(ALL.iter().all(|flag| flag.0.is_power_of_two()));
        let together = ALL.iter().fold(Flags::default(), |all, flag| all.and(*flag));
        assert_eq!(together.0.count_ones() as usize, ALL.len());
        assert!(ALL.iter().all(|flag| together.contains(*flag)));
    }
}
