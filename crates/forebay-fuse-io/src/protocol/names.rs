//! The names of a directory, packed one after the other until the buffer is full.

use std::ops::DerefMut;
use std::time::Duration;

use crate::attributes::{Attributes, Kind};
use crate::protocol::encode::{ENTRY, put_entry};
use crate::protocol::fields::Record;

/// Bytes before each name: inode number, position of the next one, length, kind.
const ENTRY_HEAD: usize = 24;
/// Each name begins at a multiple of so many bytes.
const ALIGNMENT: usize = 8;

/// An answer to READDIR or READDIRPLUS while it is put together, in a byte buffer of any kind.
#[derive(Debug)]
pub struct NameBuffer<B> {
    bytes: B,
    limit: usize,
    used: usize,
}

impl<B: DerefMut<Target = [u8]>> NameBuffer<B> {
    /// None yet, and room for `limit` bytes of them, if `bytes` has it.
    pub fn new(bytes: B, limit: usize) -> Self {
        let limit = limit.min(bytes.len());
        Self { bytes, limit, used: 0 }
    }

    /// Adds a name for READDIR. `next` is the position after it. Says whether it is full: then the name was not added.
    pub fn add(&mut self, ino: u64, next: u64, kind: Kind, name: &[u8]) -> bool {
        let mut head = Record::<ENTRY_HEAD>::new();
        put_head(&mut head, ino, next, kind, name);
        self.put(&head, name)
    }

    /// Adds a name and its attributes for READDIRPLUS, in the same way. One that was added is looked up once more, as far as
    /// the kernel's references are concerned.
    pub fn add_plus(
        &mut self,
        attributes: &Attributes,
        generation: u64,
        next: u64,
        name: &[u8],
        name_ttl: Duration,
        attributes_ttl: Duration,
    ) -> bool {
        let mut head = Record::<{ ENTRY + ENTRY_HEAD }>::new();
        put_entry(&mut head, attributes, generation, name_ttl, attributes_ttl);
        put_head(&mut head, attributes.ino, next, attributes.kind, name);
        self.put(&head, name)
    }

    /// What there is to send.
    pub fn filled(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or_default()
    }

    /// How many bytes that is.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether there is no name yet.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The bytes, and how many of them are to be sent.
    pub fn into_parts(self) -> (B, usize) {
        (self.bytes, self.used)
    }

    fn put(&mut self, head: &[u8], name: &[u8]) -> bool {
        // A name is a few hundred bytes, and the buffer is in memory: nothing overflows.
        let end = self.used + (head.len() + name.len()).next_multiple_of(ALIGNMENT);
        if end > self.limit {
            return true;
        }
        let Some(place) = self.bytes.get_mut(self.used..end) else { return true };
        let (head_place, rest) = place.split_at_mut(head.len());
        let (name_place, padding) = rest.split_at_mut(name.len());
        head_place.copy_from_slice(head);
        name_place.copy_from_slice(name);
        padding.fill(0);
        self.used = end;
        false
    }
}

fn put_head<const N: usize>(record: &mut Record<N>, ino: u64, next: u64, kind: Kind, name: &[u8]) {
    // The kernel takes none that is longer than a page, so one that does not fit in 32 bits is refused as well.
    let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
    record.u64(ino).u64(next).u32(length).u32(kind.entry_type());
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use proptest::prelude::*;

    use super::*;
    use crate::protocol::encode::entry;

    fn attributes(ino: u64) -> Attributes {
        Attributes {
            ino,
            size: 7,
            blocks: 1,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            kind: Kind::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 1,
            gid: 2,
            rdev: 0,
            blksize: 4096,
        }
    }

    fn u32_at(bytes: &[u8], offset: usize) -> u32 {
        u32::from_ne_bytes(bytes[offset..offset + 4].try_into().unwrap())
    }

    fn u64_at(bytes: &[u8], offset: usize) -> u64 {
        u64::from_ne_bytes(bytes[offset..offset + 8].try_into().unwrap())
    }

    /// Inode, position of the next, kind and name of each, as the kernel walks them.
    fn walk(mut bytes: &[u8], plus: bool) -> Vec<(u64, u64, u32, Vec<u8>)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let own = if plus { 128 } else { 0 };
            let length = u32_at(bytes, own + 16) as usize;
            let name = bytes[own + 24..own + 24 + length].to_vec();
            found.push((u64_at(bytes, own), u64_at(bytes, own + 8), u32_at(bytes, own + 20), name));
            let size = (own + 24 + length).next_multiple_of(8);
            assert_eq!(bytes[own + 24 + length..size], vec![0; size - own - 24 - length], "padding is zeros");
            bytes = &bytes[size..];
        }
        found
    }

    #[test]
    fn names_are_added_while_there_is_room() {
        let mut names = NameBuffer::new(vec![0xff; 100], 100);
        assert!(names.is_empty());
        assert!(!names.add(5, 1, Kind::RegularFile, b"a"));
        assert_eq!(names.len(), 32);
        assert!(!names.add(6, 2, Kind::Directory, b"eight ch"));
        assert_eq!(names.len(), 64);
        assert!(!names.add(7, 3, Kind::RegularFile, b"c"));
        // Four bytes are left.
        assert!(names.add(8, 4, Kind::RegularFile, b"d"));
        assert_eq!(names.len(), 96);
        let expected = [(5, 1, 8, b"a".to_vec()), (6, 2, 4, b"eight ch".to_vec()), (7, 3, 8, b"c".to_vec())];
        assert_eq!(walk(names.filled(), false), expected);
        let (bytes, used) = names.into_parts();
        assert_eq!((bytes.len(), used), (100, 96));
    }

    #[test]
    fn an_answer_may_be_full_to_the_last_byte() {
        let mut names = NameBuffer::new(vec![0xff; 64], 64);
        assert!(!names.add(5, 1, Kind::RegularFile, b"a"));
        assert!(!names.add(6, 2, Kind::RegularFile, b"b"));
        assert_eq!(names.len(), 64);
        assert!(names.add(7, 3, Kind::RegularFile, b"c"));
    }

    #[test]
    fn no_more_is_used_than_was_asked_for() {
        let mut place = [0xff; 4096];
        let mut names = NameBuffer::new(&mut place[..], 40);
        assert!(!names.add(5, 1, Kind::RegularFile, b"a"));
        assert!(names.add(6, 2, Kind::RegularFile, b"b"));
        assert_eq!(place[32..], [0xff; 4096 - 32]);
    }

    #[test]
    fn a_name_with_attributes_is_an_entry_and_a_name() {
        let mut names = NameBuffer::new(vec![0xff; 200], 200);
        let (name_ttl, ttl) = (Duration::from_millis(2500), Duration::from_secs(9));
        assert!(!names.add_plus(&attributes(77), 3, 1, b"directory", name_ttl, ttl));
        assert_eq!(names.len(), 128 + 24 + 16);
        assert_eq!(names.filled()[..128], *entry(&attributes(77), 3, name_ttl, ttl));
        assert_eq!(walk(names.filled(), true), [(77, 1, 4, b"directory".to_vec())]);
        assert!(names.add_plus(&attributes(78), 0, 2, b"b", ttl, ttl));
    }

    proptest! {
        #[test]
        fn what_was_added_is_what_the_kernel_finds(
            given in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..40),
            size in 0..6000usize, limit in 0..6000usize, plus: bool,
        ) {
            let mut names = NameBuffer::new(vec![0xff; size], limit);
            let mut added = Vec::new();
            for (position, name) in (1u64..).zip(given) {
                let is_full = match plus {
                    true => {
                        let ttl = Duration::from_secs(1);
                        names.add_plus(&attributes(position + 100), 0, position, &name, ttl, ttl)
                    }
                    false => names.add(position + 100, position, Kind::Directory, &name),
                };
                if is_full {
                    break;
                }
                added.push((position + 100, position, 4, name));
            }
            prop_assert!(names.len() <= size.min(limit));
            prop_assert_eq!(walk(names.filled(), plus), added);
        }
    }
}
