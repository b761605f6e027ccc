//! How what is written is cut into parts. Pure.
//!
//! A part is complete once a byte is known to follow it. So a file that is no longer than the first part has no complete one, and goes to
//! the origin in one request, as from a mount. Bytes that come a whole part at a time are not copied.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use forebay_staging::Schedule;

/// A file that is being written from its beginning to its end.
pub(crate) struct Parts {
    schedule: Arc<Schedule>,
    /// The part that is being filled, from 1, or that is full.
    number: u32,
    /// It, if it is full: whether it is the last is not known yet.
    full: Option<Bytes>,
    filling: BytesMut,
    size: u64,
}

impl Parts {
    pub(crate) fn new(schedule: Arc<Schedule>) -> Self {
        Self { schedule, number: 1, full: None, filling: BytesMut::new(), size: 0 }
    }

    /// How many bytes were taken.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Whether a file may have `more` bytes than it has by now.
    pub(crate) fn have_room(&self, more: usize) -> bool {
        self.size.checked_add(more as u64).is_some_and(|size| size <= self.schedule.max_size())
    }

    /// Takes from `bytes`, for which there is room. A part that is complete, and its number; none when all of `bytes` were taken.
    pub(crate) fn take(&mut self, bytes: &mut Bytes) -> Option<(u32, Bytes)> {
        while !bytes.is_empty() {
            if let Some(complete) = self.full.take() {
                self.number += 1;
                return Some((self.number - 1, complete));
            }
            self.fill(bytes);
        }
        None
    }

    /// What is left at the end, and its number: the last part, or, as part 1, the whole file.
    pub(crate) fn rest(&mut self) -> (u32, Bytes) {
        let rest = self.full.take().unwrap_or_else(|| self.filling.split().freeze());
        (self.number, rest)
    }

    fn fill(&mut self, bytes: &mut Bytes) {
        let range = self.schedule.range(self.number);
        // At most `MAX_PART`.
        let length = (range.end - range.start) as usize;
        let taken = bytes.split_to(bytes.len().min(length - self.filling.len()));
        self.size += taken.len() as u64;
        if taken.len() == length {
            self.full = Some(taken);
            return;
        }
        if self.filling.is_empty() && self.number > 1 {
            // It will be needed: few files end in their second part.
            self.filling.reserve(length);
        }
        self.filling.extend_from_slice(&taken);
        if self.filling.len() == length {
            self.full = Some(self.filling.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: usize = 5 << 10;

    fn content(size: usize) -> Bytes {
        (0..size).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
    }

    /// The parts of a file that is written `at_once` bytes at a time, and what is left.
    fn cut(content: &Bytes, at_once: usize) -> (Vec<(u32, Bytes)>, (u32, Bytes)) {
        let mut parts = Parts::new(Arc::new(Schedule::new(PART as u64)));
        let mut complete = Vec::new();
        for piece in content.chunks(at_once) {
            let mut piece = content.slice_ref(piece);
            assert!(parts.have_room(piece.len()));
            complete.extend(std::iter::from_fn(|| parts.take(&mut piece)));
        }
        assert_eq!(parts.size(), content.len() as u64);
        (complete, parts.rest())
    }

    #[test]
    fn parts_are_the_file_in_order_however_it_is_written() {
        for size in [0, 1, PART - 1, PART, PART + 1, 2 * PART, 3 * PART + 7] {
            let content = content(size);
            for at_once in [103, PART - 1, PART, PART + 1, usize::MAX] {
                let (complete, (last, rest)) = cut(&content, at_once);
                assert!(complete.iter().all(|(_, part)| part.len() == PART), "{size} by {at_once}");
                assert!(complete.iter().map(|(number, _)| *number).eq(1..last), "{size} by {at_once}");
                let whole: Vec<u8> = complete.iter().flat_map(|(_, part)| part).chain(&rest).copied().collect();
                assert!(whole == content, "{size} by {at_once}");
            }
        }
    }

    #[test]
    fn a_file_of_one_part_is_left_whole_and_the_last_part_is_never_empty() {
        for (size, parts, left) in [(PART, 0, PART), (PART + 1, 1, 1), (2 * PART, 1, PART)] {
            let (complete, (_, rest)) = cut(&content(size), 1 << 9);
            assert_eq!((complete.len(), rest.len()), (parts, left));
        }
    }

    #[test]
    fn whole_parts_are_not_copied() {
        let content = content(2 * PART);
        let (complete, (_, rest)) = cut(&content, 2 * PART);
        assert_eq!(complete[0].1.as_ptr(), content.as_ptr());
        assert_eq!(rest.as_ptr(), content[PART..].as_ptr());
    }

    #[test]
    fn there_is_no_room_beyond_the_last_part() {
        let schedule = Schedule::new(PART as u64);
        let most = schedule.max_size();
        let mut parts = Parts::new(Arc::new(schedule));
        parts.size = most - 10;
        assert!(parts.have_room(10) && !parts.have_room(11) && !parts.have_room(usize::MAX));
    }
}
