//! What one process tells the next of a mount.

use forebay_handover::{Agreed, Handles, HeldInode, Open, State, decode, encode};
use forebay_types::{Attr, FsPath, crc32c};

use crate::targets::Seed;

/// The state of a mount.
pub(super) mod handover_state {
    use super::*;

    /// As they are, and with the checksum that they should have.
    pub(crate) fn run(bytes: &[u8]) {
        check(bytes);
        check(&corrected(bytes));
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        vec![("empty", encode(&empty()).unwrap_or_default())]
    }

    /// What is read makes sense, and is written as what it was.
    fn check(bytes: &[u8]) {
        let Ok(state) = decode(bytes) else { return };
        assert_eq!(state.check(), Ok(()));
        let written = encode(&state).expect("it makes sense");
        assert_eq!(decode(&written).expect("it was written"), state);
    }

    fn corrected(bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let checksum = crc32c(bytes.get(16..).unwrap_or_default());
        if let Some(place) = bytes.get_mut(12..16) {
            place.copy_from_slice(&checksum.to_le_bytes());
        }
        bytes
    }

    fn empty() -> State {
        let agreed = Agreed {
            kernel: (7, 45),
            capabilities: 0,
            max_readahead: 128 << 10,
            max_write: 1 << 20,
            max_pages: 256,
            page_size: 4096,
            max_background: 256,
            congestion_threshold: 256,
        };
        let root = HeldInode {
            ino: 1,
            lookups: 1,
            path: FsPath::root(),
            attr: Attr::directory(),
            revision: 0,
            changed: false,
            removed: false,
            lost: false,
            kept: false,
            open: Open::Not,
        };
        State {
            agreed,
            inodes: vec![root],
            names: Vec::new(),
            suspects: Vec::new(),
            files: Handles::default(),
            directories: Handles::default(),
            virtual_files: Handles::default(),
        }
    }
}
